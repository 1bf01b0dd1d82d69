// The arithmetic of RMS norm, for the kernels that must agree on it bit for bit.
#pragma once

#include "device/common.cuh"
#include "linear/args.h"

namespace octavo {

// 16 bytes of T as floats, and back. Whole words keep the compiler from taking halves of them apart.
template <class T, int N = 16 / sizeof(T)>
__device__ inline void widen(const uint4& raw, float (&x)[N]) {
  const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      x[i] = __uint_as_float(words[i]);
    } else {
      const float2 pair = unpack<T>(words[i]);
      x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
  }
}
template <class T, int N = 16 / sizeof(T)>
__device__ inline uint4 narrow(const float (&x)[N]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) words[i] = __float_as_uint(x[i]);
    else words[i] = pack<T>(x[2 * i], x[2 * i + 1]);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <int N>
__device__ inline float sum_of_squares(const float (&x)[N]) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < N; ++j) sum = __fmaf_rn(x[j], x[j], sum);
  return sum;
}

// Sum over the block of what each thread has of each of its vectors; every thread gets it. Sums are of 32 vectors first,
// then of these, so that they do not depend on how many a thread holds. `scratch` holds one for each warp and vector.
template <int V>
__device__ inline float block_sum(const float (&x)[V], float* scratch) {
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float sum = warp_sum(x[i]);
    if (lane == 0) scratch[threadIdx.x / 32 + i * warps] = sum;
  }
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < V; ++i) sum += lane + 32 * i < V * warps ? scratch[lane + 32 * i] : 0.0f;
  return warp_sum(sum);
}

__device__ inline float inverse_rms(float squares, int width, float eps) {
  return 1.0f / sqrtf(squares / float(width) + eps);
}

}  // namespace octavo
