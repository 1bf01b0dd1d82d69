// Token choice by the Gumbel-max trick. A row belongs to a few blocks, a cluster where the chip has those, each of
// which searches its part of the vocabulary.
//
// Every row is read once where that is enough. Without filters, a token's noise is compared with what it would take to
// beat the best token so far, and few are looked at further. With filters, samples of a part bound its largest logits
// from below; what reaches the bound is listed, and the row's first block chooses from all lists. Where lists are too
// short for the filters, or too long, the row is read again and again: a threshold for each filter is found by
// histograms of 2048 ranges of values, each time of the range in which it must lie, with as much of a part in shared
// memory as fits.
//
// The filters are defined on sets and every step is exact (integer counts, masses in 64-bit fixed point, arithmetic
// without contraction), so the choice depends neither on an order of summation nor on the batch, and equals that of the
// CPU module (csrc/cpu/sample.h) bit for bit.
#include "sampling/sample_lists.cuh"
#include "sampling/sample_search.cuh"

namespace octavo {
namespace {

__device__ inline int64_t chosen(uint64_t best) {
  return value_of_candidate(best) > -INFINITY ? token_of_candidate(best) : -1;
}

template <class T>
__device__ __noinline__ uint64_t best_logit(const Part<T> part) {
  float best = -INFINITY;
  int where = 0;
  part.logits.template stream<kThreads, 4>(part.begin, part.end, [&](int index, float4 x) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (at(x, i) > best) best = at(x, i), where = 4 * index + i;
  });
  return candidate(best, where);
}

// Takes logits into shared memory.
template <class T>
__device__ __noinline__ void hold(const Part<T> part) {
  part.logits.template stream<kThreads, 4>(part.begin, part.begin + scratch.held_groups,
                                           [&](int index, float4 x) { held[index - part.begin] = x; });
}

// Not inlined: it would cost the rest of the kernel its registers.
__device__ __noinline__ float log_of(float x) { return float(log(double(x))); }

template <class T>
__device__ uint64_t best_filtered(const Part<T>& part) {
  share_lists(list_largest(part), part.temperature);
  const uint64_t best = best_short(part);
  if (best != kUnknown) return best;
  row_sync();  // what was exchanged has been read
  hold(part);
  __syncthreads();
  float floor = -FLT_MAX;  // what is minus infinity stays out
  if (scratch.by_rank) floor = threshold<Count>(part, floor);
  if (scratch.by_mass) floor = threshold<Mass>(part, floor);
  return choice_of(best_of_some(part, fmaxf(floor, __fadd_rn(scratch.top, scratch.log_min_p))));
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    sample_kernel(const __grid_constant__ SampleArgs a, int held_groups) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t r = blockIdx.y;
  const int groups = (a.vocab + 3) / 4;
  const T* row = static_cast<const T*>(a.logits) + r * a.stride - a.first;  // tokens are counted from the whole row's
  const int begin = a.first / 4 + int(int64_t(groups) * int(blockIdx.x) / parts());
  const int end = a.first / 4 + int(int64_t(groups) * (int(blockIdx.x) + 1) / parts());
  const StepSample& s = a.samples[r];
  const Part<T> part{Logits<T>{row, a.first + a.vocab}, begin, end, s.temperature};
  if (threadIdx.x == 0) {
    scratch.held_groups = min(held_groups, part.end - part.begin), scratch.listed = 0, scratch.largest = 0;
    scratch.noise = {uint64_t(s.seed_high) << 32 | s.seed_low, uint32_t(s.position), uint32_t(s.index)};
    scratch.top_k = s.top_k, scratch.top_p = s.top_p;
    scratch.by_rank = scratch.top_k > 0 && scratch.top_k < a.vocab, scratch.by_mass = scratch.top_p < 1.0f;
    scratch.log_min_p = s.min_p > 0.0f ? log_of(s.min_p) : -INFINITY;
  }
  __syncthreads();
  const bool is_part = a.reached != nullptr;
  const bool filtered = !is_part && (scratch.by_rank || scratch.by_mass || scratch.log_min_p > -INFINITY);
  uint64_t best;
  if (!(part.temperature > 0.0f)) {
    best = choice_of(best_logit(part));
  } else if (filtered) {
    best = best_filtered(part);
  } else {
    best = choice_of(best_of_all(part, part.logits));
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (is_part) a.reached[blockIdx.y] = best;
    else a.tokens[blockIdx.y] = chosen(best);
  }
  row_sync();  // no block leaves while others read
}

constexpr int kRowsEach = 128;

// The best of the parts' candidates, of each row.
__global__ void __launch_bounds__(kRowsEach) best_part_kernel(const __grid_constant__ BestPartArgs a) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t r = int64_t(blockIdx.x) * kRowsEach + threadIdx.x;
  if (r >= a.rows) return;
  uint64_t best = 0;
  for (int64_t part = 0; part < a.parts; ++part) best = max(best, a.reached[part * a.rows + r]);
  a.tokens[r] = chosen(best);
}

// Blocks of a row: enough to fill the chip, where they can work together. Clusters of more than two leave places empty,
// an eleventh of an H200's: one row more than fits would take as long as twice the rows.
int parts_of(const SampleArgs& a, const Device& device) {
  if (device.major < 9) return 1;
  const int64_t groups = (int64_t(a.vocab) + 3) / 4, blocks = kBlocksPerMultiprocessor * device.multiprocessors;
  int parts = 1;
  while (parts < kMostParts && groups > parts * 512 &&
         2 * parts * a.rows <= (parts > 1 ? blocks * 10 / 11 : blocks))
    parts *= 2;
  return parts;
}

template <class T>
cudaError_t launch(const SampleArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const int parts = parts_of(a, device);
  // Blocks that all fit side by side are not to share a multiprocessor.
  const bool apart = parts <= 2 && parts * a.rows <= device.multiprocessors;
  constexpr int kReserved = 1024;  // bytes of each block
  const int available = device.shared_per_multiprocessor / (apart ? 1 : kBlocksPerMultiprocessor) - kReserved;
  const int held_bytes = (min(available, device.shared_per_block) - int(sizeof(Scratch))) / 16 * 16;
  if (a.vocab > int64_t(kMostTokens) * parts) return cudaErrorInvalidValue;
  const Launch how{dim3(unsigned(parts), unsigned(a.rows)), kThreads, held_bytes, parts};
  return launch_after(sample_kernel<T>, how, stream, a, held_bytes / 16);
}

}  // namespace

cudaError_t sample(const SampleArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return with_dtype(a.dtype, [&](auto tag) { return launch<decltype(tag)>(a, stream); });
}

cudaError_t best_part(const BestPartArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return launch_after(best_part_kernel, {dim3(unsigned((a.rows + kRowsEach - 1) / kRowsEach)), kRowsEach}, stream, a);
}

}  // namespace octavo
