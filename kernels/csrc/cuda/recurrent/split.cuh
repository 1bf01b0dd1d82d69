// Numbers as two parts of bf16 each: their own rounding, and what that leaves. Three products of parts, all but that of both low ones,
// are nearly one of floats.
#pragma once

#include "device/common.cuh"

namespace octavo {

#if OCTAVO_CLUSTERS

// Two floats as pairs of bf16.
struct Split {
  uint32_t high, low;

  __device__ Split(float a, float b) : high(pack<bf16>(a, b)) {
    const float2 rounded = unpack<bf16>(high);
    low = pack<bf16>(a - rounded.x, b - rounded.y);
  }
};
// The left operand of a product from two neighbouring tiles of results, four of each: pairs of columns stay pairs.
struct Left {
  uint32_t high[4], low[4];

  __device__ Left(const float (&a)[4], const float (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Split split = i < 2 ? Split(a[2 * i], a[2 * i + 1]) : Split(b[2 * i - 4], b[2 * i - 3]);
      high[i] = split.high, low[i] = split.low;
    }
  }
};

#endif

}  // namespace octavo
