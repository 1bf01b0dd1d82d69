// The arithmetic of RMS norm, for the kernels that must agree on it bit for bit.
#pragma once

#include "common.cuh"

namespace octavo {

template <class T, int N>
__device__ inline float sum_of_squares(const Elements<T, N>& x, float sum = 0.0f) {
#pragma unroll
  for (int j = 0; j < N; ++j) sum = __fmaf_rn(to_float(x.at[j]), to_float(x.at[j]), sum);
  return sum;
}

__device__ inline float inverse_rms(float squares, int width, float eps) {
  return 1.0f / sqrtf(squares / float(width) + eps);
}

}  // namespace octavo
