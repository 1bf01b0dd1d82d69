// Sums and norms between two sublayers of a block with norms behind them: one block a row, the row in registers. Every value is
// rounded as if it were stored, so that bits are those of one launch after the other.
#include "linear/norm.cuh"

namespace octavo {
namespace {

constexpr int kNorms = 4;  // of both addends, of their sum, of the residual stream

// A thread holds V vectors of 16 bytes: as many as registers allow.
template <class T, int V>
struct Row {
  static constexpr int N = 16 / sizeof(T);
  static constexpr bool early = V == 1;  // weights come before the wait, where registers allow it
  const AddNormsArgs& a;
  float (*const scratch)[V * 32];
  const int vectors = a.width / N;
  uint4 scales[kNorms];

  __device__ const NormWeights& norm(int k) const { return k < 2 ? a.x_norm[k] : k == 2 ? a.post : a.norm; }
  __device__ int at(int i) const { return threadIdx.x + i * blockDim.x; }
  __device__ void load_scales() {
#pragma unroll
    for (int k = 0; k < kNorms; ++k)
      if (early && norm(k).weight && at(0) < vectors) scales[k] = static_cast<const uint4*>(norm(k).weight)[at(0)];
  }
  __device__ void load(const void* rows, int64_t stride, uint4 (&value)[V]) const {
    const uint4* from = reinterpret_cast<const uint4*>(static_cast<const T*>(rows) + int64_t(blockIdx.x) * stride);
#pragma unroll
    for (int i = 0; i < V; ++i) value[i] = at(i) < vectors ? from[at(i)] : make_uint4(0, 0, 0, 0);
  }
  __device__ void store(void* rows, int64_t stride, const uint4 (&value)[V]) const {
    uint4* to = reinterpret_cast<uint4*>(static_cast<T*>(rows) + int64_t(blockIdx.x) * stride);
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (at(i) < vectors) to[at(i)] = value[i];
  }
  // f(own, other) of each pair of elements in place of the first.
  template <class F>
  __device__ void each(uint4 (&value)[V], const uint4 (&other)[V], F&& f) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float own[N], theirs[N];
      widen<T>(value[i], own), widen<T>(other[i], theirs);
#pragma unroll
      for (int j = 0; j < N; ++j) own[j] = f(own[j], theirs[j]);
      value[i] = narrow<T>(own);
    }
  }
  // The k-th norm in place, if there is one. By all threads.
  template <int k>
  __device__ void take_norm(uint4 (&value)[V]) const {
    if (!norm(k).weight) return;
    float sum[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float own[N];
      widen<T>(value[i], own);
      sum[i] = sum_of_squares(own);
    }
    const float inverse = inverse_rms(block_sum(sum, scratch[k]), a.width, norm(k).eps);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (at(i) >= vectors) continue;
      float own[N], factor[N];
      widen<T>(value[i], own);
      widen<T>(early ? scales[k] : static_cast<const uint4*>(norm(k).weight)[at(i)], factor);
#pragma unroll
      for (int j = 0; j < N; ++j) own[j] = own[j] * inverse * (factor[j] + norm(k).offset);
      value[i] = narrow<T>(own);
    }
  }
};

template <class T, int V>
__global__ void __launch_bounds__(1024, 1) add_norms_kernel(const __grid_constant__ AddNormsArgs a) {
  __shared__ float scratch[kNorms][V * 32];
  launch_next_kernel();
  Row<T, V> row{a, scratch};
  row.load_scales();
  wait_for_previous_kernel();
  uint4 value[V], other[V], hidden[V];
  row.load(a.x[0], a.x_stride[0], value);
  if (a.x[1]) row.load(a.x[1], a.x_stride[1], other);
  row.load(a.hidden, a.hidden_stride, hidden);
  const float scalar = a.scalar ? to_float(*static_cast<const T*>(a.scalar)) : 1.0f;
  row.template take_norm<0>(value);
  if (a.x[1]) {
    row.template take_norm<1>(other);
    row.each(value, other, [](float x, float y) { return x + y; });
  }
  row.template take_norm<2>(value);
  if (a.factor != 1.0f) row.each(value, value, [&](float x, float) { return x * a.factor; });
  row.each(hidden, value, [](float x, float y) { return x + y; });
  if (a.scalar) row.each(hidden, hidden, [&](float x, float) { return x * scalar; });
  row.store(a.hidden, a.hidden_stride, hidden);
  if (!a.out) return;
  row.template take_norm<3>(hidden);
  row.store(a.out, a.out_stride, hidden);
}

}  // namespace

cudaError_t add_norms(const AddNormsArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return with_dtype(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = 16 / sizeof(T), kMost = sizeof(T);  // of 16,384 columns
    const int vectors = a.width / N, held = vectors <= 1024 ? 1 : vectors <= 2048 ? 2 : kMost;
    const int threads = ((vectors + held - 1) / held + 31) / 32 * 32;
    if (a.width % N != 0 || threads > 1024) return cudaErrorInvalidValue;
    const Launch how{dim3(unsigned(a.rows)), threads};
    if (held == 1) return launch_after(add_norms_kernel<T, 1>, how, stream, a);
    if (held == 2) return launch_after(add_norms_kernel<T, 2>, how, stream, a);
    return launch_after(add_norms_kernel<T, kMost>, how, stream, a);
  });
}

}  // namespace octavo
