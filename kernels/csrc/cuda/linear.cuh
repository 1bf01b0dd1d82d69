// What the kernels for products of several rows have in common.
#pragma once

#include <algorithm>

#include "activation.cuh"

namespace octavo {

constexpr int kGroup = 8;  // weight rows of one instruction
constexpr int kTokenTile = 16;  // rows of x of one instruction
constexpr int kStep = 32;  // of the depth, what a warp multiplies at once

// Which matrices linear_held.cu takes, with 2 to 32 rows: by measurement on an H200, those whose x fits into registers,
// but for sizes between small and large.
constexpr int kHeldDepth = 5120;
inline bool is_held(const Matrix& m) {
  const int64_t size = int64_t(m.columns) * m.depth;
  return m.depth <= kHeldDepth && (size <= 1 << 23 || size >= 1 << 25);
}
cudaError_t linear_held(const LinearArgs&, const Device&, cudaStream_t);

#if OCTAVO_BULK_COPY

__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

template <class T>
__device__ inline float4 load4(const void* base, int64_t at) {
  const auto v = *reinterpret_cast<const Elements<T, 4>*>(static_cast<const T*>(base) + at);
  return {to_float(v.at[0]), to_float(v.at[1]), to_float(v.at[2]), to_float(v.at[3])};
}


#endif

inline bool aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

// Launches blocks in clusters of `cluster`; they may begin before the stream's previous kernel has ended.
template <class... Parameters, class... Arguments>
cudaError_t launch_clusters(void (*kernel)(Parameters...), int cluster, int blocks, int threads, int bytes,
                            cudaStream_t stream, const Arguments&... arguments) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks), config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes;
  config.stream = stream, config.attrs = attributes, config.numAttrs = cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace octavo
