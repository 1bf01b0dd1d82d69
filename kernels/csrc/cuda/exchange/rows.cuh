// A row of a sum: a block has it in registers, a thread one or two of its vectors. The norm has the bits of `rms_norm`.
#pragma once

#include "exchange/meeting.cuh"
#include "linear/norm.cuh"

namespace octavo {

template <class T>
__device__ inline uint4* row_of(void* rows, int64_t stride, int64_t row) {
  return reinterpret_cast<uint4*>(static_cast<T*>(rows) + row * stride);
}
template <class T>
__device__ inline const uint4* row_of(const void* rows, int64_t stride, int64_t row) {
  return reinterpret_cast<const uint4*>(static_cast<const T*>(rows) + row * stride);
}

template <class T, int N>
__device__ inline void add_vector(float (&sum)[N], const uint4& vector) {
  float own[N];
  widen<T>(vector, own);
#pragma unroll
  for (int j = 0; j < N; ++j) sum[j] += own[j];
}

// The sum of a row so far, and its use.
template <class T, int V>
struct SummedRow {
  static constexpr int N = 16 / sizeof(T);
  static constexpr bool kEarly = V == 1;  // whether registers allow for what is not needed yet
  uint4 value[V], scale;

  // The norm's weights are older than the kernel before this one.
  __device__ void load_weight(const ExchangeAddArgs& a) {
    if (kEarly && a.weight && int(threadIdx.x) < a.columns / N) scale = static_cast<const uint4*>(a.weight)[threadIdx.x];
  }

  // Stores the row and its norm. `scratch` is not that of the block's row before.
  __device__ void finish(const ExchangeAddArgs& a, int64_t row, float* scratch) {
    uint4* out = row_of<T>(a.out, a.out_stride, row);
    float sum[V] = {};
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int at = threadIdx.x + i * blockDim.x;
      if (at >= a.columns / N) continue;
      out[at] = value[i];
      float own[N];
      widen<T>(value[i], own);
      sum[i] = sum_of_squares(own);
    }
    if (!a.weight) return;
    const float inverse = inverse_rms(block_sum(sum, scratch), a.columns, a.eps);
    uint4* normed = row_of<T>(a.normed, a.normed_stride, row);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int at = threadIdx.x + i * blockDim.x;
      if (at >= a.columns / N) continue;
      if (!kEarly) scale = static_cast<const uint4*>(a.weight)[at];
      float own[N], factor[N];
      widen<T>(value[i], own), widen<T>(scale, factor);
#pragma unroll
      for (int j = 0; j < N; ++j) own[j] = own[j] * inverse * (factor[j] + a.offset);
      normed[at] = narrow<T>(own);
    }
  }
};

// Calls f with the type of element, the vectors of a thread, and the most ranks that are read at once, all as constants.
template <class F>
cudaError_t with_row_kind(const ExchangeAddArgs& a, F&& f) {
  return with_dtype(a.dtype, [&](auto tag) {
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    using Four = std::integral_constant<int, 4>;
    const int64_t row_bytes = int64_t(a.columns) * sizeof(tag);
    if (row_bytes % 16 != 0 || row_bytes < 16 || row_bytes / 16 > kRowVectors) return cudaErrorInvalidValue;
    if (held_of(int(row_bytes / 16)) == 2) return f(tag, Two{}, Two{});  // for want of registers
    return a.peers.ranks <= 2 ? f(tag, One{}, Two{}) : f(tag, One{}, Four{});
  });
}

}  // namespace octavo
