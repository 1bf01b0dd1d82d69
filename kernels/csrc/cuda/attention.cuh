// What the decode and the extend kernel share.
#pragma once

#include "common.cuh"

namespace octavo {
namespace {

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Factor that turns an unnormalised output into the result. A row without keys gives zeros.
__device__ inline float normaliser(const AttentionArgs& a, int head, float m, float l) {
  float scale = 1.0f;
  if (a.sinks) {
    const float sink = a.sinks[head] * kLog2e, top = fmaxf(m, sink);
    scale = fast_exp2(m - top);
    l = l * scale + fast_exp2(sink - top);
  }
  return l == 0.0f ? 0.0f : scale / l;
}

// Zeroes the rows outside [low, high) of `rows` rows of V: their weight is zero, but 0 * NaN would be NaN.
template <int D>
__device__ inline void clear_values(uint32_t values, int rows, int low, int high, int thread, int threads) {
  constexpr int units = D / 8;
  for (int i = thread; i < rows * units; i += threads) {
    const int row = i / units;
    if (row < low || row >= high)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(values + i * 16), "r"(0) : "memory");
  }
#if OCTAVO_BULK_COPY
  fence_bulk();
#endif
}

struct Device {
  int major, multiprocessors, shared_per_multiprocessor, shared_per_block;
};

inline cudaError_t describe(Device& d) {
  int device;
  cudaError_t error = cudaGetDevice(&device);
  auto get = [&](int& value, cudaDeviceAttr attribute) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, device);
  };
  get(d.major, cudaDevAttrComputeCapabilityMajor);
  get(d.multiprocessors, cudaDevAttrMultiProcessorCount);
  get(d.shared_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  get(d.shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return error;
}

// Launches a kernel that may begin before the previous one of the stream ends, where the device can do that; the kernel
// calls `wait_for_previous_kernel` before it reads what that one wrote.
template <class... Parameters, class... Arguments>
cudaError_t launch_after(const Device& device, void (*kernel)(Parameters...), dim3 grid, int threads,
                         cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(threads), config.stream = stream;
  config.attrs = &overlap, config.numAttrs = device.major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace
}  // namespace octavo
