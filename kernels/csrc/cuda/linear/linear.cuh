// The common part of kernels for products of several rows.
#pragma once

#include "linear/activation.cuh"

namespace octavo {

constexpr int kGroup = 8;       // a group, in these kernels: the weight rows of one instruction
constexpr int kTokenTile = 16;  // rows of x of one instruction
constexpr int kStep = 32;       // of the depth, what a warp multiplies at once

cudaError_t linear_row(const LinearArgs&, const Device&, cudaStream_t);
cudaError_t linear_held(const LinearArgs&, const Device&, cudaStream_t);
cudaError_t linear_ring(const LinearArgs&, int cluster, const Device&, cudaStream_t);
// In builds for 90a, on Hopper.
cudaError_t linear_wide(const LinearArgs&, const LinearTile&, const Device&, cudaStream_t);
cudaError_t linear_uniform(const LinearArgs&, const LinearTile&, const Device&, cudaStream_t);

#if OCTAVO_BULK_COPY

// Tells the cluster that this block's barriers are there (which a fence has published), and waits for the others'.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores v in another block's shared memory, at the same address as in this one's, and tells that block's barrier.
__device__ inline void send(uint32_t address, uint32_t barrier, int rank, float4 v) {
  asm volatile(
      "{\n"
      ".reg .b32 to, done;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 done, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [done];\n"
      "}\n" ::"r"(address),
      "r"(barrier), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}

__device__ inline void send(uint32_t address, uint32_t barrier, int rank, int v) {
  asm volatile(
      "{\n"
      ".reg .b32 to, done;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 done, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [done];\n"
      "}\n" ::"r"(address),
      "r"(barrier), "r"(rank), "r"(v)
      : "memory");
}

__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
// factor * a + b, rounded once.
__device__ inline float4 multiply_add(float factor, float4 a, float4 b) {
  return {__fmaf_rn(factor, a.x, b.x), __fmaf_rn(factor, a.y, b.y), __fmaf_rn(factor, a.z, b.z),
          __fmaf_rn(factor, a.w, b.w)};
}

// A thread of a product: its place, what the launch is cut into, its block's shared memory.
template <class Cut>
struct Thread {
  const LinearArgs& a;
  const Cut& cut;
  char* shared;
  uint32_t base;
  int lane, warp;

  __device__ Thread(const LinearArgs& args, const Cut& how, char* memory)
      : a(args),
        cut(how),
        shared(memory),
        base(shared_address(memory)),
        lane(threadIdx.x % 32),
        warp(__shfl_sync(~0u, threadIdx.x / 32, 0)) {}
};

template <class T>
__device__ inline float4 load4(const void* base, int64_t at) {
  const auto v = *reinterpret_cast<const Elements<T, 4>*>(static_cast<const T*>(base) + at);
  return {to_float(v.at[0]), to_float(v.at[1]), to_float(v.at[2]), to_float(v.at[3])};
}

#endif

inline bool aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}
// True if everything begins at multiples of 16 bytes, and whole groups of the weight's rows are there.
inline bool in_groups(const LinearArgs& a) {
  return a.depth > 0 && a.columns % (kGroup * (a.gated ? 2 : 1)) == 0 && aligned(a.x, a.x_stride) &&
         aligned(a.weight, a.weight_stride) && aligned(a.bias, 0) && aligned(a.residual, a.residual_stride) &&
         aligned(a.out, a.out_stride);
}

}  // namespace octavo
