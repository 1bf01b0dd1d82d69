// The end of a product with weights of codes: bias, residual or gate, and the rounding.
#pragma once

#include "coded/args.h"
#include "linear/activation.cuh"

namespace octavo {

template <class T>
__device__ inline float biased(const CodedArgs& a, float sum, int column) {
  return a.bias ? sum + to_float(static_cast<const T*>(a.bias)[column]) : sum;
}

// Four elements of a row of the residual from this column on; zeros where there are none.
template <class T>
__device__ inline float4 addends(const CodedArgs& a, int64_t row, int column) {
  float sums[4] = {};
  if (!a.residual) return {0.0f, 0.0f, 0.0f, 0.0f};
  const T* from = static_cast<const T*>(a.residual) + row * a.residual_stride + column;
  if (column + 4 <= a.columns && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    const uint2 raw = __ldcg(reinterpret_cast<const uint2*>(from));
    const float2 low = unpack<T>(raw.x), high = unpack<T>(raw.y);
    return {low.x, low.y, high.x, high.y};
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (column + i < a.columns) sums[i] = to_float(from[i]);
  return {sums[0], sums[1], sums[2], sums[3]};
}

// Stores four results of a row. `sum` are those of the product's columns or, gated, of the gate, whose projections are
// rounded as if they had been stored; then `other` are what they multiply, else what is added.
template <class T>
__device__ inline void store4(const CodedArgs& a, int64_t row, int column, float4 sum, float4 other) {
  const int columns = a.gated ? a.columns / 2 : a.columns;
  float results[4] = {sum.x, sum.y, sum.z, sum.w};
  const float others[4] = {other.x, other.y, other.z, other.w};
  T* out = static_cast<T*>(a.out) + row * a.out_stride + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i >= columns) break;
    results[i] = biased<T>(a, results[i], column + i);
    if (a.gated)
      results[i] = activated(a.activation, to_float(from_float<T>(results[i]))) *
                   to_float(from_float<T>(biased<T>(a, others[i], columns + column + i)));
    else results[i] += others[i];
  }
  if (column + 4 <= columns && reinterpret_cast<uintptr_t>(out) % 8 == 0) {
    *reinterpret_cast<uint2*>(out) = make_uint2(pack<T>(results[0], results[1]), pack<T>(results[2], results[3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (column + i < columns) out[i] = from_float<T>(results[i]);
}

}  // namespace octavo
