// Residual addition with RMS or layer norm: one block a row, the row in registers, float32 accumulation. The block size
// depends on the width alone, so a row's result does not depend on the batch.
#include "linear/norm.cuh"

namespace octavo {
namespace {

enum class Kind { rms, layer };

// How many of the largest blocks a multiprocessor holds: those of smaller chips before Hopper have room for 1,536 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900
[[maybe_unused]] constexpr int kBlocks = 1;
#else
[[maybe_unused]] constexpr int kBlocks = 2;
#endif

// A thread holds V vectors of 16 bytes. What bounds this is how many bytes are on their way and how many instructions a
// row takes; with V up to 2, and 32 registers, a multiprocessor is full of threads.
template <class T, int V, Kind kind>
__global__ void __launch_bounds__(1024, V <= 2 && kind == Kind::rms ? kBlocks : 1)
    norm_kernel(const __grid_constant__ NormArgs a, const __grid_constant__ unsigned abreast) {
  constexpr int N = 16 / sizeof(T);
  __shared__ float scratch[2][V * 32];
  launch_next_kernel();
  const int64_t row = blockIdx.x / abreast, within = blockIdx.x % abreast * a.width;
  const int vectors = a.width / N;
  const uint4* x = reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + row * a.x_stride + within);
  uint4* residual = a.residual ? reinterpret_cast<uint4*>(static_cast<T*>(a.residual) + row * a.residual_stride) : nullptr;
  const uint4* weight = static_cast<const uint4*>(a.weight);
  const uint4* bias = static_cast<const uint4*>(a.bias);
  uint4* out = reinterpret_cast<uint4*>(static_cast<T*>(a.out) + row * a.out_stride + within);

  constexpr bool early = V == 1;  // where registers allow it, weights come before the wait, all that is added at once
  uint4 value[V], addend, scale;
  if (early && int(threadIdx.x) < vectors) scale = weight[threadIdx.x];
  wait_for_previous_kernel();
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at < vectors) value[i] = x[at];
    if (early && at < vectors && residual) addend = residual[at];
  }
  float sum[V] = {};
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= vectors) continue;
    float own[N];
    widen<T>(value[i], own);
    if (residual) {
      if (!early) addend = residual[at];
      float other[N];
      widen<T>(addend, other);
#pragma unroll
      for (int j = 0; j < N; ++j) own[j] += other[j];
      residual[at] = value[i] = narrow<T>(own);
      widen<T>(value[i], own);
    }
    if constexpr (kind == Kind::rms) {
      sum[i] = sum_of_squares(own);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) sum[i] += own[j];
    }
  }
  float mean = 0.0f, squares = block_sum(sum, scratch[0]);
  if constexpr (kind == Kind::layer) {
    mean = squares / float(a.width);
    float deviation[V] = {};
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (int(threadIdx.x + i * blockDim.x) >= vectors) continue;
      float own[N];
      widen<T>(value[i], own);
#pragma unroll
      for (int j = 0; j < N; ++j) own[j] -= mean;
      deviation[i] = sum_of_squares(own);
    }
    squares = block_sum(deviation, scratch[1]);
  }
  const float inverse = inverse_rms(squares, a.width, a.eps);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= vectors) continue;
    if (!early) scale = weight[at];
    float own[N], factor[N], shift[N] = {};
    widen<T>(value[i], own), widen<T>(scale, factor);
    if (kind == Kind::layer && bias) widen<T>(bias[at], shift);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float y = (own[j] - mean) * inverse;
      own[j] = kind == Kind::rms ? y * (factor[j] + a.offset) : __fmaf_rn(y, factor[j] + a.offset, shift[j]);
    }
    out[at] = narrow<T>(own);
  }
}

// Vectors of a row that a thread holds. The bits of a row do not depend on it.
cudaError_t choose_held(const NormArgs& a, int vectors, int& held) {
  held = vectors <= 1024 ? 1 : vectors <= 2048 ? 2 : 4;
  if (held > 1 || a.residual) return cudaSuccess;
  Device device;
  const cudaError_t error = describe(device);
  if (a.rows * vectors > int64_t(device.multiprocessors) * 2048) held = 2;  // more than the chip has threads
  return error;
}

// Of rows that lie `abreast` of each other, as heads do, strides are those from the first to the next first.
template <Kind kind>
cudaError_t launch(const NormArgs& a, cudaStream_t stream, unsigned abreast = 1) {
  if (a.rows == 0) return cudaSuccess;
  return with_dtype(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = 16 / sizeof(T);
    if (a.width % N != 0) return cudaErrorInvalidValue;
    const int vectors = a.width / N;
    int held;
    if (cudaError_t error = choose_held(a, vectors, held); error != cudaSuccess) return error;
    const int threads = ((vectors + held - 1) / held + 31) / 32 * 32;
    if (threads > 1024) return cudaErrorInvalidValue;
    const dim3 rows{unsigned(a.rows)};
    if (held == 1) return launch_after(norm_kernel<T, 1, kind>, {rows, threads}, stream, a, abreast);
    if (held == 2) return launch_after(norm_kernel<T, 2, kind>, {rows, threads}, stream, a, abreast);
    return launch_after(norm_kernel<T, 4, kind>, {rows, threads}, stream, a, abreast);
  });
}

}  // namespace

cudaError_t rms_norm(const NormArgs& a, cudaStream_t stream) { return launch<Kind::rms>(a, stream); }
cudaError_t norm_heads(const NormArgs& a, int heads, cudaStream_t stream) { return launch<Kind::rms>(a, stream, heads); }
cudaError_t layer_norm(const NormArgs& a, cudaStream_t stream) { return launch<Kind::layer>(a, stream); }

}  // namespace octavo
