// The common part of the decode and the extend kernel.
#pragma once

#include "attention/args.h"
#include "device/common.cuh"

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
    if (row < low || row >= high) clear16(values + i * 16);
  }
#if OCTAVO_BULK_COPY
  fence_bulk();
#endif
}

}  // namespace
}  // namespace octavo
