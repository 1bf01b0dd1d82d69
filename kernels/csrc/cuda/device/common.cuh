// Parts of every kernel: element types, primitives of the chip, sums of a warp, launches.
#pragma once

#include "device/elements.cuh"
#if OCTAVO_HIP
#include "hip/primitives.cuh"
#else
#include "device/ptx.cuh"
#endif
#include "device/launch.cuh"

namespace octavo {

// The two that `pack` puts into a word.
template <class T>
__device__ inline float2 unpack(uint32_t word) {
  if constexpr (std::is_same_v<T, bf16>) return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  else return __half22float2(reinterpret_cast<const __half2&>(word));
}

template <int kLanes = 32>
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Each of four threads has a word of four units, at its place: gives it the unit of its number.
__device__ inline void transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool high = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t got = __shfl_xor_sync(~0u, high ? words[i] : words[i | step], step);
      (high ? words[i] : words[i | step]) = got;
    }
  }
}

}  // namespace octavo
