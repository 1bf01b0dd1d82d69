// Log-probabilities of chosen and of the likeliest tokens: one block a row.
#include "sampling/vocabulary.cuh"

namespace octavo {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

__device__ uint64_t block_max(uint64_t x) {
  __shared__ uint64_t best[kWarps];
  x = warp_max(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_max(best[threadIdx.x % kWarps]);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) logprobs_kernel(const __grid_constant__ LogprobArgs a) {
  __shared__ float sums[kWarps];
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t r = blockIdx.x;
  const Logits<T> logits{static_cast<const T*>(a.logits) + r * a.stride, a.vocab};
  const int groups = (a.vocab + 3) / 4;
  // The best one below `last`.
  auto next = [&](uint64_t last) {
    uint64_t best = 0;
    logits.template stream<kThreads, 4>(0, groups, [&](int group, float4 x) {
      auto consider = [&](int i, float logit) {
        const uint64_t c = candidate(logit, 4 * group + i);
        if (4 * group + i < a.vocab && c < last) best = max(best, c);
      };
      consider(0, x.x), consider(1, x.y), consider(2, x.z), consider(3, x.w);
    });
    return block_max(best);
  };
  uint64_t best = next(~uint64_t(0));
  const float top = value_of_candidate(best);
  float sum = 0.0f;
  logits.template stream<kThreads, 4>(0, groups, [&](int, float4 x) {
    sum += fast_exp2((x.x - top) * kLog2e) + fast_exp2((x.y - top) * kLog2e) + fast_exp2((x.z - top) * kLog2e) +
           fast_exp2((x.w - top) * kLog2e);
  });
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const float log_sum = top + logf(warp_sum(threadIdx.x % 32 < kWarps ? sums[threadIdx.x % 32] : 0.0f));
  if (threadIdx.x == 0) a.chosen[r] = a.tokens[r] < 0 ? NAN : to_float(logits.row[a.tokens[r]]) - log_sum;
  for (int i = 0; i < a.top; ++i) {
    if (i > 0) best = next(best);
    if (threadIdx.x > 0) continue;
    a.top_ids[r * a.top + i] = token_of_candidate(best);
    a.top_values[r * a.top + i] = value_of_candidate(best) - log_sum;
  }
}

}  // namespace

cudaError_t logprobs(const LogprobArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return with_dtype(a.dtype, [&](auto tag) {
    return launch_after(logprobs_kernel<decltype(tag)>, {dim3(unsigned(a.rows)), kThreads}, stream, a);
  });
}

}  // namespace octavo
