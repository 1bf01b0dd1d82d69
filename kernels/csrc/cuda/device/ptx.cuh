// Primitives in PTX: conversions, tensor cores, copies, barriers. `hip/primitives.cuh` has in plain C++ what the
// kernels take that are built for AMD, too.
#pragma once

#include "device/elements.cuh"

namespace octavo {

template <class T>
__device__ inline uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<bf16>(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <>
__device__ inline uint32_t pack<f16>(float low, float high) {
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x, within a few units in the last place.
__device__ inline float fast_inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Four FP8 values (e4m3) as two pairs of float16, in order.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define OCTAVO_WIDENS_F8 1
__device__ inline void widen_f8(uint32_t cells, uint32_t& low, uint32_t& high) {
  asm("{\n"
      ".reg .b16 first, second;\n"
      "mov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first;\n"
      "cvt.rn.f16x2.e4m3x2 %1, second;\n"
      "}\n"
      : "=r"(low), "=r"(high)
      : "r"(cells));
}
#else
#define OCTAVO_WIDENS_F8 0
#endif

// Tensor cores: d[16][8] += a[16][16] b[16][8], float accumulation.
template <class T>
__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ inline void mma<bf16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma<f16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Shared memory by numbers of 32 bits.
__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__device__ inline void* shared_pointer(uint32_t address) { return __cvta_shared_to_generic(address); }
__device__ inline void clear16(uint32_t shared) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(0) : "memory");
}

__device__ inline void ldmatrix(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}
__device__ inline void ldmatrix_transposed(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

// Transposes an 8 x 8 matrix of 16-bit values, of which a thread holds two of row g.
__device__ inline uint32_t transpose(uint32_t pair) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// 16-byte asynchronous copy of one thread; `valid` false writes zeros.
__device__ inline void copy16(uint32_t shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
// The same of what is read once a step, and must not push out of the L2 what other kernels are about to read. The policy is
// made where it is used, for want of registers.
__device__ inline void copy16_once(uint32_t shared, const void* global) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, policy;\n"
      "}\n" ::"r"(shared),
      "l"(global)
      : "memory");
}
// The same of 16, 8 or 4 bytes that other warps may want as well.
template <int kBytes>
__device__ inline void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)), "l"(global), "n"(kBytes)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Into registers, in the order in which they stand in the code: 16 bytes that are read once a step, or again, a number, a word.
// Never of what a kernel writes.
__device__ inline uint4 load16_once(const void* global) {
  uint4 v;
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], policy;\n"
      "}\n"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(global));
  return v;
}
__device__ inline uint4 load16(const void* global) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global));
  return v;
}
__device__ inline float load_float(const float* global) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(global));
  return v;
}
__device__ inline uint32_t load_word(const void* global) {
  uint32_t v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(global));
  return v;
}

// Words to consecutive places, as one access; the compiler may take a plain one apart where registers are few.
__device__ inline void store_words(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ inline void store_words(void* to, uint32_t a, uint32_t b) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(a), "r"(b) : "memory");
}

// Named barriers: `arrive` does not wait.
__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void barrier_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define OCTAVO_BULK_COPY 1
#else
#define OCTAVO_BULK_COPY 0
#endif
#define OCTAVO_CLUSTERS OCTAVO_BULK_COPY

#if OCTAVO_BULK_COPY
__device__ inline void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive_once(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// As that, and gives something of the barrier's state: what is computed with it comes afterwards.
__device__ inline uint32_t barrier_arrive(uint32_t barrier) {
  uint64_t state;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(barrier) : "memory");
  return uint32_t(state);
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// True if that phase is over. The answer takes a while: asked early, no thread waits for it.
__device__ inline bool barrier_is_over(uint32_t barrier, uint32_t parity) {
  int over;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over;
}
// All threads of the cluster's blocks: what they have stored in shared memory is there, and none has ended.
__device__ inline void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Four floats at this address of another block's shared memory.
__device__ inline float4 load_of(int rank, uint32_t address) {
  float4 v;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
      "}\n"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}
// Four words at the place `mine` of this block in another block's shared memory.
__device__ inline uint4 load_words_of(int rank, const void* mine) {
  uint32_t address;
  uint4 v;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(mine)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
// Additions that later loads of other blocks see with all that came before them.
__device__ inline void add_released(int* to, int count) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(to), "r"(count) : "memory");
}
__device__ inline int load_acquired(const int* from) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}
// L2 policy for what is read once a step: it must not push out what other kernels are about to read.
__device__ inline uint64_t read_once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Stores data for the next kernel: streams pass it by in the L2.
__device__ inline void store_kept(float* to, const float4& x) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w), "l"(policy)
               : "memory");
}
// Copies contiguous bytes (a multiple of 16) and reports them to the barrier.
__device__ inline void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ inline void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// Brings contiguous bytes (a multiple of 16) as far as the L2.
__device__ inline void prefetch_bulk(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
// Orders earlier plain accesses to shared memory before later bulk copies into it.
__device__ inline void fence_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#else
__device__ inline void store_kept(float* to, const float4& x) { *reinterpret_cast<float4*>(to) = x; }
#endif

// Warps of a block that have different work may share its registers out unevenly, in fours; only in code for 90a.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OCTAVO_UNEVEN 1
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
#else
#define OCTAVO_UNEVEN 0
#endif

// Programmatic dependent launch; nothing on chips before Hopper. A kernel first waits, then lets the next one begin, so
// what lies before a kernel's own wait runs after all but the last of its predecessors have ended. Norms let the next
// one begin at once, so that a product's weights are on their way while its rows are normalised, and so does a prefix
// kernel without tiles: what follows them reads nothing before its wait that is younger than the step's first kernels.
__device__ inline void launch_next_kernel() {
#if OCTAVO_BULK_COPY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_previous_kernel() {
#if OCTAVO_BULK_COPY
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Keeps a value in its register through a loop; the compiler would make it anew every time round.
__device__ inline void hold(float& x) { asm volatile("" : "+f"(x)); }
__device__ inline void hold(uint32_t& x) { asm volatile("" : "+r"(x)); }
__device__ inline void hold(int64_t& x) { asm volatile("" : "+l"(x)); }

}  // namespace octavo
