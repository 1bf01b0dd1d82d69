// Hopper's own instructions: warpgroup matrix products on shared memory, and copies of boxes of a tensor into it.
#pragma once

#include <cuda.h>

#include "device/common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OCTAVO_WGMMA 1
#else
#define OCTAVO_WGMMA 0
#endif

namespace octavo {

#if OCTAVO_WGMMA

// Descriptor of an operand in shared memory whose rows of `row` bytes, 128 or 64, are swizzled and lie one after the other:
// eight of them are an atom. `units`: its address over 16. `columns`: bytes between atoms across the rows, for an operand
// that is read transposed.
template <int row>
__device__ inline uint64_t operand(uint32_t units, uint32_t columns = 16) {
  static_assert(row == 128 || row == 64);
  return uint64_t(units + (columns / 16 << 16)) | uint64_t(8 * row / 16 | (row == 128 ? 1u : 2u) << 30) << 32;
}
// Tells the compiler that all lanes hold the same value: descriptors are then made once a warp.
__device__ inline uint32_t uniform(uint32_t x) { return __shfl_sync(~0u, x, 0); }

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Keeps what computes or uses these registers on its side of this place.
template <int N>
__device__ inline void pin(float (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int N>
__device__ inline void pin(int (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}
// Waits until at most kPending committed groups are under way.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The same; `results` are those of a finished one.
template <int kPending, class Sum, int N>
__device__ inline void products_wait(Sum (&results)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  pin(results);
}

#define OCTAVO_FLOATS_4(kind, d, i) kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3])
#define OCTAVO_FLOATS_8(kind, d, i)                                                                                   \
  kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3]), kind(d[i + 4]), kind(d[i + 5]), kind(d[i + 6]),         \
      kind(d[i + 7])
#define OCTAVO_FLOATS_16(kind, d, i) OCTAVO_FLOATS_8(kind, d, i), OCTAVO_FLOATS_8(kind, d, i + 8)
#define OCTAVO_FLOATS_24(kind, d, i) OCTAVO_FLOATS_16(kind, d, i), OCTAVO_FLOATS_8(kind, d, i + 16)
#define OCTAVO_FLOATS_32(kind, d, i) OCTAVO_FLOATS_16(kind, d, i), OCTAVO_FLOATS_16(kind, d, i + 16)
#define OCTAVO_FLOATS_48(kind, d, i) OCTAVO_FLOATS_32(kind, d, i), OCTAVO_FLOATS_16(kind, d, i + 32)
#define OCTAVO_FLOATS_52(kind, d, i) OCTAVO_FLOATS_48(kind, d, i), OCTAVO_FLOATS_4(kind, d, i + 48)
#define OCTAVO_FLOATS_64(kind, d, i) OCTAVO_FLOATS_32(kind, d, i), OCTAVO_FLOATS_32(kind, d, i + 32)
#define OCTAVO_FLOATS_80(kind, d, i) OCTAVO_FLOATS_64(kind, d, i), OCTAVO_FLOATS_16(kind, d, i + 64)
#define OCTAVO_FLOATS_96(kind, d, i) OCTAVO_FLOATS_64(kind, d, i), OCTAVO_FLOATS_32(kind, d, i + 64)
#define OCTAVO_FLOATS_104(kind, d, i) OCTAVO_FLOATS_80(kind, d, i), OCTAVO_FLOATS_24(kind, d, i + 80)
#define OCTAVO_FLOATS_112(kind, d, i) OCTAVO_FLOATS_64(kind, d, i), OCTAVO_FLOATS_48(kind, d, i + 64)
#define OCTAVO_FLOATS_128(kind, d, i) OCTAVO_FLOATS_64(kind, d, i), OCTAVO_FLOATS_64(kind, d, i + 64)
#define OCTAVO_NAMES_4 "%0,%1,%2,%3"
#define OCTAVO_NAMES_8 OCTAVO_NAMES_4 ",%4,%5,%6,%7"
#define OCTAVO_NAMES_16                                                                                               \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define OCTAVO_NAMES_24                                                                                               \
  OCTAVO_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define OCTAVO_NAMES_32                                                                                               \
  OCTAVO_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OCTAVO_NAMES_48                                                                                               \
  OCTAVO_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define OCTAVO_NAMES_52 OCTAVO_NAMES_48 ",%48,%49,%50,%51"
#define OCTAVO_NAMES_64                                                                                               \
  OCTAVO_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define OCTAVO_NAMES_80                                                                                               \
  OCTAVO_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define OCTAVO_NAMES_96 OCTAVO_NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define OCTAVO_NAMES_104 OCTAVO_NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define OCTAVO_NAMES_112 OCTAVO_NAMES_104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define OCTAVO_NAMES_128                                                                                              \
  OCTAVO_NAMES_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// d[64][columns] += a[64][16] b[columns][16]^T, both in shared memory, rows along the 16; d is `half` registers.
#define OCTAVO_WGMMA_SUM(T, NAME, columns, half, A, B)                                                                \
  __device__ inline void wgmma(T, float(&d)[half], uint64_t a, uint64_t b) {                                          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." NAME "." NAME " {" OCTAVO_NAMES_##half       \
                 "}, %" #A ", %" #B ", 1, 1, 1, 0, 0;\n"                                                              \
                 : OCTAVO_FLOATS_##half("+f", d, 0)                                                                   \
                 : "l"(a), "l"(b)                                                                                     \
                 : "memory");                                                                                         \
  }

// d = the same.
#define OCTAVO_WGMMA_FIRST(T, NAME, columns, half, A, B)                                                              \
  __device__ inline void wgmma_first(T, float(&d)[half], uint64_t a, uint64_t b) {                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." NAME "." NAME " {" OCTAVO_NAMES_##half       \
                 "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n"                                                           \
                 : OCTAVO_FLOATS_##half("=f", d, 0)                                                                   \
                 : "l"(a), "l"(b)                                                                                     \
                 : "memory");                                                                                         \
  }

// d[64][columns] += a[64][16] b[16][columns], a in registers, b in shared memory, rows along the columns.
#define OCTAVO_WGMMA_TRANSPOSED(T, NAME, columns, half, A, B, C, D, E)                                                \
  __device__ inline void wgmma_transposed(T, float(&d)[half], const uint32_t* a, uint64_t b) {                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." NAME "." NAME " {" OCTAVO_NAMES_##half       \
                 "}, {%" #A ",%" #B ",%" #C ",%" #D "}, %" #E ", 1, 1, 1, 1;\n"                                       \
                 : OCTAVO_FLOATS_##half("+f", d, 0)                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                                 \
                 : "memory");                                                                                         \
  }

// d[64][256] += a[64][16] b[16][256], both in shared memory, rows of a along the 16, those of b along the columns.
#define OCTAVO_WGMMA_ACROSS(T, NAME)                                                                                  \
  __device__ inline void wgmma_across(T, float(&d)[128], uint64_t a, uint64_t b) {                                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." NAME "." NAME " {" OCTAVO_NAMES_128                   \
                 "}, %128, %129, 1, 1, 1, 0, 1;\n"                                                                    \
                 : OCTAVO_FLOATS_128("+f", d, 0)                                                                      \
                 : "l"(a), "l"(b)                                                                                     \
                 : "memory");                                                                                         \
  }
OCTAVO_WGMMA_ACROSS(bf16, "bf16")
OCTAVO_WGMMA_ACROSS(f16, "f16")
#undef OCTAVO_WGMMA_ACROSS

#define OCTAVO_WGMMA_TYPE(T, NAME)                                                                                    \
  OCTAVO_WGMMA_FIRST(T, NAME, 32, 16, 16, 17)                                                                         \
  OCTAVO_WGMMA_FIRST(T, NAME, 64, 32, 32, 33)                                                                         \
  OCTAVO_WGMMA_FIRST(T, NAME, 128, 64, 64, 65)                                                                        \
  OCTAVO_WGMMA_SUM(T, NAME, 32, 16, 16, 17)                                                                           \
  OCTAVO_WGMMA_SUM(T, NAME, 48, 24, 24, 25)                                                                           \
  OCTAVO_WGMMA_SUM(T, NAME, 64, 32, 32, 33)                                                                           \
  OCTAVO_WGMMA_SUM(T, NAME, 96, 48, 48, 49)                                                                           \
  OCTAVO_WGMMA_SUM(T, NAME, 128, 64, 64, 65)                                                                          \
  OCTAVO_WGMMA_SUM(T, NAME, 160, 80, 80, 81)                                                                          \
  OCTAVO_WGMMA_SUM(T, NAME, 224, 112, 112, 113)                                                                       \
  OCTAVO_WGMMA_SUM(T, NAME, 256, 128, 128, 129)                                                                       \
  OCTAVO_WGMMA_TRANSPOSED(T, NAME, 64, 32, 32, 33, 34, 35, 36)                                                        \
  OCTAVO_WGMMA_TRANSPOSED(T, NAME, 96, 48, 48, 49, 50, 51, 52)                                                        \
  OCTAVO_WGMMA_TRANSPOSED(T, NAME, 128, 64, 64, 65, 66, 67, 68)
OCTAVO_WGMMA_TYPE(bf16, "bf16")
OCTAVO_WGMMA_TYPE(f16, "f16")

// Eight-bit codes, which both lie with their rows along the depth: d[64][columns] += a[64][32] b[columns][32]^T. Floats
// (e4m3) add up to floats, of which the tensor cores keep fewer than 24 bits; whole numbers to whole numbers.
#define OCTAVO_WGMMA_CODES(columns, half, A, B)                                                                       \
  __device__ inline void wgmma_codes(int(&d)[half], uint64_t a, uint64_t b) {                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k32.s32.s8.s8 {" OCTAVO_NAMES_##half                   \
                 "}, %" #A ", %" #B ", 1;\n"                                                                          \
                 : OCTAVO_FLOATS_##half("+r", d, 0)                                                                   \
                 : "l"(a), "l"(b)                                                                                     \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  __device__ inline void wgmma_codes(float(&d)[half], uint64_t a, uint64_t b) {                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32.e4m3.e4m3 {" OCTAVO_NAMES_##half               \
                 "}, %" #A ", %" #B ", 1, 1, 1;\n"                                                                    \
                 : OCTAVO_FLOATS_##half("+f", d, 0)                                                                   \
                 : "l"(a), "l"(b)                                                                                     \
                 : "memory");                                                                                         \
  }                                                                                                                   \
  __device__ inline void wgmma_codes_first(float(&d)[half], uint64_t a, uint64_t b) {                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32.e4m3.e4m3 {" OCTAVO_NAMES_##half               \
                 "}, %" #A ", %" #B ", p, 1, 1;\n}\n"                                                                 \
                 : OCTAVO_FLOATS_##half("=f", d, 0)                                                                   \
                 : "l"(a), "l"(b)                                                                                     \
                 : "memory");                                                                                         \
  }
OCTAVO_WGMMA_CODES(8, 4, 4, 5)
OCTAVO_WGMMA_CODES(16, 8, 8, 9)
OCTAVO_WGMMA_CODES(32, 16, 16, 17)
OCTAVO_WGMMA_CODES(64, 32, 32, 33)
OCTAVO_WGMMA_CODES(104, 52, 52, 53)
OCTAVO_WGMMA_CODES(128, 64, 64, 65)
OCTAVO_WGMMA_CODES(208, 104, 104, 105)
OCTAVO_WGMMA_CODES(256, 128, 128, 129)

// d[64][columns] (+)= a[64][16] b[columns][16]^T: a in registers, b in shared memory, rows along the 16.
#define OCTAVO_WGMMA_HELD(T, NAME, columns, half, A, B, C, D, E, F)                                                   \
  __device__ inline void wgmma_held(T, float(&d)[half], const uint32_t* a, uint64_t b, bool adds) {                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #F ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." NAME "." NAME " {" OCTAVO_NAMES_##half       \
                 "}, {%" #A ",%" #B ",%" #C ",%" #D "}, %" #E ", p, 1, 1, 0;\n}\n"                                    \
                 : OCTAVO_FLOATS_##half("+f", d, 0)                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds))                                 \
                 : "memory");                                                                                         \
  }
#define OCTAVO_WGMMA_HELD_TYPE(T, NAME)                              \
  OCTAVO_WGMMA_HELD(T, NAME, 8, 4, 4, 5, 6, 7, 8, 9)                 \
  OCTAVO_WGMMA_HELD(T, NAME, 16, 8, 8, 9, 10, 11, 12, 13)            \
  OCTAVO_WGMMA_HELD(T, NAME, 32, 16, 16, 17, 18, 19, 20, 21)         \
  OCTAVO_WGMMA_HELD(T, NAME, 64, 32, 32, 33, 34, 35, 36, 37)         \
  OCTAVO_WGMMA_HELD(T, NAME, 128, 64, 64, 65, 66, 67, 68, 69)        \
  OCTAVO_WGMMA_HELD(T, NAME, 192, 96, 96, 97, 98, 99, 100, 101)      \
  OCTAVO_WGMMA_HELD(T, NAME, 256, 128, 128, 129, 130, 131, 132, 133)
OCTAVO_WGMMA_HELD_TYPE(bf16, "bf16")
OCTAVO_WGMMA_HELD_TYPE(f16, "f16")
#undef OCTAVO_WGMMA_HELD_TYPE
#undef OCTAVO_WGMMA_HELD
#undef OCTAVO_WGMMA_CODES
#undef OCTAVO_WGMMA_TYPE
#undef OCTAVO_WGMMA_TRANSPOSED
#undef OCTAVO_WGMMA_FIRST
#undef OCTAVO_WGMMA_SUM
#undef OCTAVO_NAMES_128
#undef OCTAVO_NAMES_112
#undef OCTAVO_NAMES_104
#undef OCTAVO_NAMES_96
#undef OCTAVO_NAMES_80
#undef OCTAVO_NAMES_64
#undef OCTAVO_NAMES_52
#undef OCTAVO_NAMES_48
#undef OCTAVO_NAMES_32
#undef OCTAVO_NAMES_24
#undef OCTAVO_NAMES_16
#undef OCTAVO_NAMES_8
#undef OCTAVO_NAMES_4
#undef OCTAVO_FLOATS_128
#undef OCTAVO_FLOATS_112
#undef OCTAVO_FLOATS_104
#undef OCTAVO_FLOATS_96
#undef OCTAVO_FLOATS_80
#undef OCTAVO_FLOATS_64
#undef OCTAVO_FLOATS_52
#undef OCTAVO_FLOATS_48
#undef OCTAVO_FLOATS_32
#undef OCTAVO_FLOATS_24
#undef OCTAVO_FLOATS_16
#undef OCTAVO_FLOATS_8
#undef OCTAVO_FLOATS_4

// Copies a box of a matrix and reports its bytes to the barrier.
__device__ inline void copy_rows(uint32_t shared, const CUtensorMap& map, int depth, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared),
      "l"(&map), "r"(depth), "r"(row), "r"(barrier)
      : "memory");
}

// Copies a box of a tensor likewise.
__device__ inline void copy_box(uint32_t shared, const CUtensorMap& map, int column, int token, int head, int block,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4,%5,%6}], "
      "[%7];" ::"r"(shared),
      "l"(&map), "r"(0), "r"(column), "r"(token), "r"(head), "r"(block), "r"(barrier)
      : "memory");
}

#endif

}  // namespace octavo
