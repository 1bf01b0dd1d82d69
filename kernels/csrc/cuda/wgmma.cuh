// Hopper's own instructions: warpgroup matrix products on shared memory, and copies of boxes of a tensor into it.
#pragma once

#include <cuda.h>

#include "common.cuh"

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
// An address over 16 as descriptors have room for it: in a cluster, it also tells the block.
__device__ inline uint32_t units(uint32_t address) { return (address & 0x3ffff) / 16; }
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
// Waits until at most kPending committed groups are under way.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The same; `results` are those of a finished one.
template <int kPending, int N>
__device__ inline void products_wait(float (&results)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  pin(results);
}

#define OCTAVO_FLOATS_8(kind, d, i)                                                                             \
  kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3]), kind(d[i + 4]), kind(d[i + 5]), kind(d[i + 6]), \
      kind(d[i + 7])
#define OCTAVO_FLOATS_16(kind, d, i) OCTAVO_FLOATS_8(kind, d, i), OCTAVO_FLOATS_8(kind, d, i + 8)
#define OCTAVO_FLOATS_32(kind, d, i)                                                                    \
  OCTAVO_FLOATS_8(kind, d, i), OCTAVO_FLOATS_8(kind, d, i + 8), OCTAVO_FLOATS_8(kind, d, i + 16), \
      OCTAVO_FLOATS_8(kind, d, i + 24)
#define OCTAVO_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define OCTAVO_NAMES_32                                                                                          \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31"
#define OCTAVO_NAMES_48                                                                                          \
  OCTAVO_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define OCTAVO_NAMES_64                                                                                          \
  OCTAVO_NAMES_32                                                                                                \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58," \
  "%59,%60,%61,%62,%63"

#define OCTAVO_WGMMA_TYPE(T, NAME)                                                                               \
  /* d[64][128] = a[64][16] b[128][16]^T, both in shared memory, rows along the 16 */                            \
  __device__ inline void wgmma_first(T, float(&d)[64], uint64_t a, uint64_t b) {                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                      \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" OCTAVO_NAMES_64               \
                 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"                                                              \
                 : OCTAVO_FLOATS_32("=f", d, 0), OCTAVO_FLOATS_32("=f", d, 32)                                   \
                 : "l"(a), "l"(b)                                                                                \
                 : "memory");                                                                                    \
  }                                                                                                              \
  /* d += the same */                                                                                            \
  __device__ inline void wgmma(T, float(&d)[64], uint64_t a, uint64_t b) {                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" OCTAVO_NAMES_64               \
                 "}, %64, %65, 1, 1, 1, 0, 0;\n"                                                                 \
                 : OCTAVO_FLOATS_32("+f", d, 0), OCTAVO_FLOATS_32("+f", d, 32)                                   \
                 : "l"(a), "l"(b)                                                                                \
                 : "memory");                                                                                    \
  }                                                                                                              \
  /* the same two for 64 columns, and the second for 32 */                                                       \
  __device__ inline void wgmma_first(T, float(&d)[32], uint64_t a, uint64_t b) {                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                                      \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" OCTAVO_NAMES_32                \
                 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"                                                              \
                 : OCTAVO_FLOATS_32("=f", d, 0)                                                                  \
                 : "l"(a), "l"(b)                                                                                \
                 : "memory");                                                                                    \
  }                                                                                                              \
  __device__ inline void wgmma(T, float(&d)[32], uint64_t a, uint64_t b) {                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" OCTAVO_NAMES_32                \
                 "}, %32, %33, 1, 1, 1, 0, 0;\n"                                                                 \
                 : OCTAVO_FLOATS_32("+f", d, 0)                                                                  \
                 : "l"(a), "l"(b)                                                                                \
                 : "memory");                                                                                    \
  }                                                                                                              \
  __device__ inline void wgmma(T, float(&d)[16], uint64_t a, uint64_t b) {                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." NAME "." NAME " {" OCTAVO_NAMES_16                \
                 "}, %16, %17, 1, 1, 1, 0, 0;\n"                                                                 \
                 : OCTAVO_FLOATS_16("+f", d, 0)                                                                  \
                 : "l"(a), "l"(b)                                                                                \
                 : "memory");                                                                                    \
  }                                                                                                              \
  /* d[64][128] += a[64][16] b[16][128], a in registers, b in shared memory, rows along the 128 */               \
  __device__ inline void wgmma_transposed(T, float(&d)[64], const uint32_t* a, uint64_t b) {                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" OCTAVO_NAMES_64               \
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"                                                      \
                 : OCTAVO_FLOATS_32("+f", d, 0), OCTAVO_FLOATS_32("+f", d, 32)                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                            \
                 : "memory");                                                                                    \
  }                                                                                                              \
  /* the same for 96 and for 64 columns */                                                                        \
  __device__ inline void wgmma_transposed(T, float(&d)[48], const uint32_t* a, uint64_t b) {                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32." NAME "." NAME " {" OCTAVO_NAMES_48                \
                 "}, {%48,%49,%50,%51}, %52, 1, 1, 1, 1;\n"                                                      \
                 : OCTAVO_FLOATS_32("+f", d, 0), OCTAVO_FLOATS_16("+f", d, 32)                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                            \
                 : "memory");                                                                                    \
  }                                                                                                              \
  __device__ inline void wgmma_transposed(T, float(&d)[32], const uint32_t* a, uint64_t b) {                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" OCTAVO_NAMES_32                \
                 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;\n"                                                      \
                 : OCTAVO_FLOATS_32("+f", d, 0)                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                            \
                 : "memory");                                                                                    \
  }
OCTAVO_WGMMA_TYPE(bf16, "bf16")
OCTAVO_WGMMA_TYPE(f16, "f16")
#undef OCTAVO_WGMMA_TYPE
#undef OCTAVO_NAMES_64
#undef OCTAVO_NAMES_48
#undef OCTAVO_NAMES_32
#undef OCTAVO_NAMES_16
#undef OCTAVO_FLOATS_32
#undef OCTAVO_FLOATS_16
#undef OCTAVO_FLOATS_8

// Copies one box of a tensor and reports its bytes to the barrier.
__device__ inline void copy_box(uint32_t shared, const CUtensorMap& map, int column, int token, int head, int block,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4,%5,%6}], "
      "[%7];" ::"r"(shared),
      "l"(&map), "r"(0), "r"(column), "r"(token), "r"(head), "r"(block), "r"(barrier)
      : "memory");
}
// The same for both blocks of a cluster of two, each of which has the bytes reported to its own barrier.
__device__ inline void copy_box_to_pair(uint32_t shared, const CUtensorMap& map, int column, int token, int head,
                                        int block, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%2,%3,%4,%5,%6}], [%7], %8;" ::"r"(shared),
      "l"(&map), "r"(0), "r"(column), "r"(token), "r"(head), "r"(block), "r"(barrier), "h"(uint16_t(3))
      : "memory");
}

#endif

}  // namespace octavo
