// Residual addition with RMS or layer norm: one block a row, the row in registers, float32 accumulation. The block size
// depends on the width alone, so a row's result does not depend on the batch.
#include "norm.cuh"

namespace octavo {
namespace {

enum class Kind { rms, layer };

// Sum over the block; every thread gets it. `scratch` holds one value a warp.
__device__ float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f;
  return warp_sum(x);
}

// A thread holds V vectors of 16 bytes.
template <class T, int V, Kind kind>
__global__ void __launch_bounds__(1024) norm_kernel(const __grid_constant__ NormArgs a) {
  constexpr int N = 16 / sizeof(T);
  using Vector = Elements<T, N>;
  __shared__ float scratch[2][32];
  launch_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  const int vectors = a.width / N;
  const Vector* x = reinterpret_cast<const Vector*>(static_cast<const T*>(a.x) + row * a.x_stride);
  Vector* residual = a.residual ? reinterpret_cast<Vector*>(static_cast<T*>(a.residual) + row * a.residual_stride) : nullptr;
  const Vector* weight = static_cast<const Vector*>(a.weight);
  const Vector* bias = static_cast<const Vector*>(a.bias);
  Vector* out = reinterpret_cast<Vector*>(static_cast<T*>(a.out) + row * a.out_stride);

  constexpr bool early = V <= 2;  // where registers allow it, weights come while the sum is made
  Vector value[V], scale[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at < vectors) value[i] = x[at];
    if (early && at < vectors) scale[i] = weight[at];
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= vectors) continue;
    if (residual) {
      const Vector addend = residual[at];
#pragma unroll
      for (int j = 0; j < N; ++j) value[i].at[j] = from_float<T>(to_float(value[i].at[j]) + to_float(addend.at[j]));
      residual[at] = value[i];
    }
    if constexpr (kind == Kind::rms) {
      sum = sum_of_squares(value[i], sum);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) sum += to_float(value[i].at[j]);
    }
  }
  float mean = 0.0f, squares = block_sum(sum, scratch[0]);
  if constexpr (kind == Kind::layer) {
    mean = squares / float(a.width);
    float deviation = 0.0f;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (int(threadIdx.x + i * blockDim.x) >= vectors) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float d = to_float(value[i].at[j]) - mean;
        deviation += d * d;
      }
    }
    squares = block_sum(deviation, scratch[1]);
  }
  const float inverse = inverse_rms(squares, a.width, a.eps);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= vectors) continue;
    if (!early) scale[i] = weight[at];
    Vector y;
#pragma unroll
    for (int j = 0; j < N; ++j)
      y.at[j] = from_float<T>((to_float(value[i].at[j]) - mean) * inverse * (to_float(scale[i].at[j]) + a.offset) +
                              (bias ? to_float(bias[at].at[j]) : 0.0f));
    out[at] = y;
  }
}

template <Kind kind>
cudaError_t launch(const NormArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return with_dtype(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = 16 / sizeof(T);
    if (a.width % N != 0) return cudaErrorInvalidValue;
    const int vectors = a.width / N, held = vectors <= 1024 ? 1 : vectors <= 2048 ? 2 : 4;
    const int threads = ((vectors + held - 1) / held + 31) / 32 * 32;
    if (threads > 1024) return cudaErrorInvalidValue;
    const dim3 rows{unsigned(a.rows)};
    switch (held) {
      case 1: return launch_after(norm_kernel<T, 1, kind>, rows, threads, 0, stream, a);
      case 2: return launch_after(norm_kernel<T, 2, kind>, rows, threads, 0, stream, a);
      default: return launch_after(norm_kernel<T, 4, kind>, rows, threads, 0, stream, a);
    }
  });
}

}  // namespace

cudaError_t rms_norm(const NormArgs& a, cudaStream_t stream) { return launch<Kind::rms>(a, stream); }
cudaError_t layer_norm(const NormArgs& a, cudaStream_t stream) { return launch<Kind::layer>(a, stream); }

}  // namespace octavo
