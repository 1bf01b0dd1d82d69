// The last step of decoding: the partial results of a row's chunks become its result.
#pragma once

#include "decode.cuh"

namespace octavo {
namespace {

// One thread folds its columns alone.
template <int kAtOnce>
__device__ Folded fold_columns(const Partials& partials) {
  Folded all;
  all.clear();
  partials.fold<kAtOnce>(0, partials.runs(), [&](const Folded& group) { all.join(group); });
  return all;
}

// The same for at most N partial results, of which the first may be merged runs, with no branch between a load and the next:
// first they are loaded, then joined.
template <int N>
__device__ void load_few(const Partials& partials, Folded (&x)[N]) {
  const int count = partials.count(), merged = partials.merged;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    x[i].clear();
    if (i < count) x[i] = partials.at(i + min(i, merged) * (kRun - 1));
  }
}
template <int N>
__device__ Folded join_few(const Partials& partials, Folded (&x)[N]) {
  const int count = partials.count(), merged = partials.merged;
  Folded all;
  all.clear();
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < merged || (i - merged) % kRun == kRun - 1 || i + 1 >= count || i + 1 == N) {
      Folded group;
      group.clear();
      group.join(x[i]), all.join(group);
    } else {
      x[i].join(x[i + 1]), x[i + 1] = x[i];
    }
  }
  return all;
}
constexpr int kFewMerged = 6, kFewPaired = 3;
__device__ inline bool few_merged(const Partials& partials) {
  return partials.count() <= kFewMerged && partials.runs() <= kFoldGroups;
}
__device__ inline Folded fold_few_merged(const Partials& partials) {
  Folded x[kFewMerged];
  load_few(partials, x);
  return join_few(partials, x);
}

// The same for at most two runs of which nothing is merged yet, with no branch between a load and the next. What is not
// there weighs nothing.
__device__ inline Folded fold_few(const Partials& partials) {
  Folded x[2][kRun], all;
#pragma unroll
  for (int c = 0; c < 2 * kRun; ++c) {
    x[c / kRun][c % kRun].clear();
    if (c < partials.chunks) x[c / kRun][c % kRun] = partials.at(c);
  }
  all.clear();
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    Folded group;
    group.clear();
#pragma unroll
    for (int c = 1; c < kRun; ++c) x[run][0].join(x[run][c]);
    group.join(x[run][0]);
    all.join(group);
  }
  return all;
}

// Query rows of a part of a sequence, and where those of part `n` come from.
__device__ inline int part_queries(const AttentionArgs& a) { return a.partial_rows / (a.heads / a.kv_heads); }
__device__ inline FoldItem part_of(const FoldItem& all, int n, int queries) {
  return {all.first_slot + n * all.chunks, all.chunks, all.query_row + n * queries, min(all.queries - n * queries, queries),
          all.runs, all.shared_runs, {}};
}

// Before anything of the decode kernel is read. The next kernel may begin, and finds the counter as it was.
__device__ inline void begin_fold(const AttentionArgs& a) {
  wait_for_previous_kernel();
  launch_next_kernel();
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) a.header->next_decode = 0;
}

// All threads of a block fold one row of all parts of a sequence, or of every gridDim.z-th one.
template <class T, int D>
__global__ void __launch_bounds__(256, 2) fold_kernel(const __grid_constant__ AttentionArgs a, Merges merges) {
  __shared__ float4 outputs[kFoldGroups][D / 4];
  __shared__ float2 sums[kFoldGroups];
  const FoldItem all = a.folds[blockIdx.x];
  begin_fold(a);
  if (all.chunks <= 1) return;
  const int queries = part_queries(a), group = a.heads / a.kv_heads;
  const int head = blockIdx.y / a.partial_rows, row = blockIdx.y % a.partial_rows;
  for (int part = blockIdx.z; part * queries < all.queries; part += gridDim.z) {
    const FoldItem it = part_of(all, part, queries);
    if (row >= it.queries * group) break;
    fold_row<T, D, 256>(a, it, head, row, merges, outputs, sums);
    __syncthreads();  // before the next part's sums replace these
  }
}

// Where there are many rows they run side by side, kRows a block.
template <class T, int D, int kRows>
__global__ void __launch_bounds__(128, 128 % (D / 4) == 0 ? 6 : 5)
    fold_wide_kernel(const __grid_constant__ AttentionArgs a, Merges merges) {
  const FoldItem all = a.folds[blockIdx.x];
  begin_fold(a);
  const int mine = blockIdx.y * kRows + threadIdx.x / (D / 4), column = threadIdx.x % (D / 4) * 4;
  const int head = mine / a.partial_rows, row = mine % a.partial_rows;
  if (all.chunks <= 1 || head >= a.kv_heads || int(threadIdx.x) >= kRows * (D / 4)) return;
  const int queries = part_queries(a), group = a.heads / a.kv_heads;
#pragma unroll 1
  for (int part = 0; part * queries < all.queries; ++part) {
    const FoldItem it = part_of(all, part, queries);
    if (row >= it.queries * group) return;
    const Partials partials(a, it, head, row, column, merges);
    const auto folded = [&] {
      if (partials.merged == 0 && it.chunks <= 2 * kRun) return fold_few(partials);
      if constexpr (merges_shared_runs(D))
        if (few_merged(partials)) return fold_few_merged(partials);
      return fold_columns<4>(partials);
    };
    write_folded<T>(a, it.query_row, head, row, column, folded());
  }
}

// Of groups, whose sequences are in one part here, there may be more rows than those blocks have threads, and few partial
// results of each. So a thread has two rows, which come together, and registers are few enough for all blocks to run at once.
template <class T, int D, int kRows>
__global__ void __launch_bounds__(128, 8) fold_pairs_kernel(const __grid_constant__ AttentionArgs a, Merges merges) {
  const FoldItem it = a.folds[blockIdx.x];
  begin_fold(a);
  if (it.chunks <= 1 || int(threadIdx.x) >= kRows * (D / 4)) return;
  const int first = blockIdx.y * 2 * kRows + threadIdx.x / (D / 4), column = threadIdx.x % (D / 4) * 4;
  const int rows = it.queries * (a.heads / a.kv_heads);
  const auto is_real = [&](int i) { return i < a.kv_heads * a.partial_rows && i % a.partial_rows < rows; };
  const auto partials = [&](int i) { return Partials(a, it, i / a.partial_rows, i % a.partial_rows, column, merges); };
  const auto write = [&](int i, const Folded& f) {
    write_folded<T>(a, it.query_row, i / a.partial_rows, i % a.partial_rows, column, f);
  };
  const Partials one = partials(is_real(first) ? first : 0);
  if (one.count() <= kFewPaired && one.runs() <= kFoldGroups) {
    const int second = first + kRows;
    Folded x[kFewPaired], y[kFewPaired];
    load_few(one, x), load_few(partials(is_real(second) ? second : 0), y);
    const Folded f = join_few(one, x), g = join_few(one, y);
    if (is_real(first)) write(first, f);
    if (is_real(second)) write(second, g);
    return;
  }
#pragma unroll 1
  for (int i = first; i <= first + kRows; i += kRows)
    if (is_real(i)) write(i, fold_columns<3>(partials(i)));
}

template <class T, int D>
cudaError_t launch_fold(const AttentionArgs& a, const Device& device, Merges merges, cudaStream_t stream) {
  constexpr int kRows = 128 / (D / 4);
  const int rows = a.kv_heads * a.partial_rows, parts = a.extends && a.window == 0 ? kSplitRows / kDecodeRows : 1;
  if (a.sequences * rows <= (a.prefix ? 1024 : 512))
    return launch_after(fold_kernel<T, D>, dim3(a.sequences, rows, parts), 256, 0, stream, a, merges);
  const dim3 grid(a.sequences, (rows + kRows - 1) / kRows);
  if constexpr (merges_shared_runs(D))
    if (a.prefix && parts == 1 && int(grid.x * grid.y) > 6 * device.multiprocessors)
      return launch_after(fold_pairs_kernel<T, D, kRows>, dim3(grid.x, (grid.y + 1) / 2), 128, 0, stream, a, merges);
  return launch_after(fold_wide_kernel<T, D, kRows>, grid, 128, 0, stream, a, merges);
}

}  // namespace
}  // namespace octavo
