// Rows, or their RMS norm, as codes of eight bits: one block a row, the row in registers.
#include "linear/norm.cuh"
#include "w8a8/w8a8.cuh"

namespace octavo {
namespace {

constexpr int kMostThreads = 1024;

// The largest over the block of what each thread has. `scratch` holds one for each warp.
__device__ uint32_t block_max(uint32_t x, uint32_t* scratch) {
  const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
  x = __reduce_max_sync(~0u, x);
  if (lane == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  return __reduce_max_sync(~0u, lane < warps ? scratch[lane] : 0u);
}

template <class C, int N>
__device__ void store_codes(uint8_t* to, float (&x)[N], float factor) {
  uint32_t words[N / 4];
#pragma unroll
  for (int w = 0; w < N / 4; ++w) {
    float four[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) four[j] = __fmul_rn(x[4 * w + j], factor);
    words[w] = C::encode(four);
  }
  if constexpr (N == 8) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  else *reinterpret_cast<uint32_t*>(to) = words[0];
}

// A thread holds V vectors of 16 bytes. The norm is that of norm.cu, bit for bit.
template <class T, int V, class C>
__global__ void __launch_bounds__(kMostThreads, 1) quantise_kernel(const __grid_constant__ QuantiseArgs a) {
  constexpr int N = 16 / sizeof(T), kGroupLanes = kScaledDepth / N;
  __shared__ float squares[V * 32];
  __shared__ uint32_t largest[32];
  launch_next_kernel();
  const int64_t row = blockIdx.x;
  const int vectors = a.width / N;
  const uint4* x = reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + row * a.x_stride);
  const uint4* weight = static_cast<const uint4*>(a.norm);
  wait_for_previous_kernel();
  uint4 value[V];
  float sum[V] = {};
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    value[i] = at < vectors ? x[at] : make_uint4(0, 0, 0, 0);
    float own[N];
    widen<T>(value[i], own);
    sum[i] = sum_of_squares(own);
  }
  if (a.norm) {
    const float inverse = inverse_rms(block_sum(sum, squares), a.width, a.eps);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int at = threadIdx.x + i * blockDim.x;
      if (at >= vectors) continue;
      float own[N], factor[N];
      widen<T>(value[i], own), widen<T>(weight[at], factor);
#pragma unroll
      for (int j = 0; j < N; ++j) own[j] = own[j] * inverse * (factor[j] + a.offset);
      value[i] = narrow<T>(own);
    }
  }
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < V && !a.in_blocks; ++i) {
    float own[N];
    widen<T>(value[i], own);
    most = max(most, largest_of(own));
  }
  if (!a.in_blocks) most = block_max(most, largest);
  uint8_t* codes = static_cast<uint8_t*>(a.out.codes) + row * a.out.stride;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    float own[N];
    widen<T>(value[i], own);
    if (a.in_blocks) most = lanes_max<kGroupLanes>(largest_of(own));
    const RowScale scale = row_scale<C>(most);
    if (at >= vectors) continue;
    store_codes<C>(codes + at * N, own, scale.forth);
    if (a.in_blocks ? at % kGroupLanes == 0 : at == 0)
      a.out.scales[(a.in_blocks ? at / kGroupLanes : 0) * a.out.scales_stride + row] = scale.back;
  }
}

template <class T, class C>
cudaError_t launch(const QuantiseArgs& a, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  if (a.width == 0 || a.width % N != 0) return cudaErrorInvalidValue;
  const int vectors = a.width / N, held = vectors <= kMostThreads ? 1 : vectors <= 2 * kMostThreads ? 2 : 4;
  const int threads = ((vectors + held - 1) / held + 31) / 32 * 32;
  if (threads > kMostThreads) return cudaErrorInvalidValue;
  const dim3 rows{unsigned(a.rows)};
  if (held == 1) return launch_after(quantise_kernel<T, 1, C>, {rows, threads}, stream, a);
  if (held == 2) return launch_after(quantise_kernel<T, 2, C>, {rows, threads}, stream, a);
  return launch_after(quantise_kernel<T, 4, C>, {rows, threads}, stream, a);
}

}  // namespace

cudaError_t quantise_rows(const QuantiseArgs& a, cudaStream_t stream) {
  if (!begins_aligned(a.x, a.x_stride * int64_t(item_size(a.dtype))) || !begins_aligned(a.norm, 0) ||
      !begins_aligned(a.out.codes, a.out.stride))
    return cudaErrorInvalidValue;
  if (a.rows == 0) return cudaSuccess;
  return with_dtype(a.dtype, [&](auto tag) {
    return with_codes(a.cells, [&](auto codes) { return launch<decltype(tag), decltype(codes)>(a, stream); });
  });
}

}  // namespace octavo
