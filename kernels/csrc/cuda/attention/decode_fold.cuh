// The last step of decoding: the partial results of a row's chunks become its result.
#pragma once

#include "attention/decode.cuh"

namespace octavo {
namespace {

// One thread folds its columns alone.
template <int kAtOnce>
__device__ Folded<1> fold_columns(const Partials& partials) {
  Folded<1> all;
  all.clear();
  partials.fold<kAtOnce>(0, partials.runs(), [&](const Folded<1>& group) { all.join(group); });
  return all;
}

// The same for few partial results of which the first are merged runs, with no branch between a load and the next.
constexpr int kFewMerged = 6;
__device__ inline Folded<1> fold_few_merged(const Partials& partials) {
  const int count = partials.count(), merged = partials.merged;
  Folded<1> x[kFewMerged], all;
#pragma unroll
  for (int i = 0; i < kFewMerged; ++i) {
    x[i].clear();
    if (i < count) x[i] = partials.at(i + min(i, merged) * (kRun - 1));
  }
  all.clear();
#pragma unroll
  for (int i = 0; i < kFewMerged; ++i) {
    if (i < merged || (i - merged) % kRun == kRun - 1 || i + 1 >= count || i + 1 == kFewMerged) {
      Folded<1> group;
      group.clear();
      group.join(x[i]), all.join(group);
    } else {
      x[i].join(x[i + 1]), x[i + 1] = x[i];
    }
  }
  return all;
}

// The same for at most two runs of which nothing is merged yet, with no branch between a load and the next. What is not
// there weighs nothing.
__device__ inline Folded<1> fold_few(const Partials& partials) {
  Folded<1> x[2][kRun], all;
#pragma unroll
  for (int c = 0; c < 2 * kRun; ++c) {
    x[c / kRun][c % kRun].clear();
    if (c < partials.chunks) x[c / kRun][c % kRun] = partials.at(c);
  }
  all.clear();
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    Folded<1> group;
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
  return {all.first_partial + n * all.chunks, all.chunks, all.query_row + n * queries, min(all.queries - n * queries, queries),
          all.runs, all.shared_runs, {}};
}

// A block's share of the fold; tiles have ended then. It comes while their end is asked for.
__device__ inline FoldItem item_after_tiles(const AttentionArgs& a) {
  const FoldItem item = a.folds[blockIdx.x];
  if (a.prefix) {
    if (threadIdx.x == 0) wait_for_tiles(a);
    __syncthreads();
  }
  return item;
}
// Before anything of the decode kernel is read. The next kernel may begin, and finds the counter as it was. Blocks without
// anything to fold end at once, but for the first: the next kernel relies on it having waited for the decode kernel.
__device__ inline bool begin_fold(const AttentionArgs& a, const FoldItem& item) {
  const bool first = blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
  if (item.chunks <= 1 && !first) return false;
  wait_for_previous_kernel();
  launch_next_kernel();
  if (first && threadIdx.x == 0) a.header->next_decode = 0;
  return item.chunks > 1;
}

// All threads of a block fold one row of all parts of a sequence, or of every gridDim.z-th one.
template <class T, int D>
__global__ void __launch_bounds__(256, 2) fold_kernel(const __grid_constant__ AttentionArgs a, Merges merges) {
  __shared__ float4 outputs[kFoldGroups][D / 4];
  __shared__ float2 sums[kFoldGroups];
  const FoldItem all = item_after_tiles(a);
  if (!begin_fold(a, all)) return;
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
  const FoldItem all = item_after_tiles(a);
  if (!begin_fold(a, all)) return;
  const int mine = blockIdx.y * kRows + threadIdx.x / (D / 4), column = threadIdx.x % (D / 4) * 4;
  const int head = mine / a.partial_rows, row = mine % a.partial_rows;
  if (head >= a.kv_heads || int(threadIdx.x) >= kRows * (D / 4)) return;
  const int queries = part_queries(a), group = a.heads / a.kv_heads;
#pragma unroll 1
  for (int part = 0; part * queries < all.queries; ++part) {
    const FoldItem it = part_of(all, part, queries);
    if (row >= it.queries * group) return;
    const Partials partials(a, it, head, row, column, merges);
    const auto folded = [&] {
      if (partials.merged == 0 && it.chunks <= 2 * kRun) return fold_few(partials);
      if constexpr (merges_shared_runs(D))
        if (partials.count() <= kFewMerged && partials.runs() <= kFoldGroups) return fold_few_merged(partials);
      return fold_columns<4>(partials);
    };
    write_folded<T>(a, it.query_row, head, row, column, folded());
  }
}

// Of a large batch, whose sequences are in one part here, there are many rows and, of groups or of runs, few partial results of
// each: what counts is how many instructions a row takes. So a thread has eight columns, and all blocks run at once: 64
// registers.
constexpr int kFewColumns = 8, kFewPartials = 5;
constexpr int kFewThreads = 256;  // half as many blocks as of 128, whose start takes as long as their work

using FoldedFew = Folded<kFewColumns / 4>;

__device__ inline void load(FoldedFew& x, const float2* sums, const float* columns) {
  const float2 sum = __ldcg(sums);
  x.m = sum.x, x.l = sum.y;
#pragma unroll
  for (int n = 0; n < kFewColumns / 4; ++n) x.o[n] = __ldcg(reinterpret_cast<const float4*>(columns) + n);
}
// The partial joined to nothing: no negative zeros.
__device__ inline void settle(FoldedFew& x) {
#pragma unroll
  for (float4& o : x.o)
    o = make_float4(__fadd_rn(o.x, 0.0f), __fadd_rn(o.y, 0.0f), __fadd_rn(o.z, 0.0f), __fadd_rn(o.w, 0.0f));
}

template <class T, int D>
__global__ void __launch_bounds__(kFewThreads, 1024 / kFewThreads)
    fold_few_kernel(const __grid_constant__ AttentionArgs a, Merges merges) {
  constexpr int threads = D / kFewColumns;
  const FoldItem it = item_after_tiles(a);
  const int mine = blockIdx.y * (kFewThreads / threads) + threadIdx.x / threads;
  const int column = threadIdx.x % threads * kFewColumns;
  const int head = mine / a.partial_rows, row = mine % a.partial_rows, group = a.heads / a.kv_heads;
  const Partials partials(a, it, head, row, column, merges);
  const int count = partials.count(), merged = partials.merged;
  const bool real = head < a.kv_heads && row < it.queries * group;
  if (!begin_fold(a, it) || !real) return;
  if (count > kFewPartials || partials.runs() > kFoldGroups) {
#pragma unroll 1
    for (int i = 0; i < kFewColumns; i += 4)
      write_folded<T>(a, it.query_row, head, row, column + i,
                      fold_columns<3>(Partials(a, it, head, row, column + i, merges)));
    return;
  }
  FoldedFew x[kFewPartials];
  const float2* sums = partials.sums;
  const float* columns = partials.columns;
#pragma unroll
  for (int i = 0; i < kFewPartials; ++i) {
    if (i < count) load(x[i], sums, columns);
    const int64_t rows = i < merged ? kRun * partials.step : partials.step;
    sums += rows, columns += rows * D;
  }
  // Chunks that are not merged become one run, or two: in place, because registers are what there is least of.
#pragma unroll
  for (int first = 0; first < kFewPartials; ++first)
    if (first == merged)
#pragma unroll
      for (int i = first + 1; i < kFewPartials && i < first + kRun; ++i)
        if (i < count) x[first].join(x[i]);
  settle(x[0]);
#pragma unroll
  for (int i = 1; i < kFewPartials; ++i)
    if (i < count && (i <= merged || i == merged + kRun)) settle(x[i]), x[0].join(x[i]);
  const int query_head = head * group + row % group;
  const float factor = normaliser(a, query_head, x[0].m, x[0].l);
  T* out = static_cast<T*>(a.out) + int64_t(it.query_row + row / group) * a.out_stride + query_head * D + column;
  const auto pair = [&](float low, float high) { return pack<T>(low * factor, high * factor); };
  const float4 &first = x[0].o[0], &second = x[0].o[1];
  *reinterpret_cast<uint4*>(out) =
      make_uint4(pair(first.x, first.y), pair(first.z, first.w), pair(second.x, second.y), pair(second.z, second.w));
}

template <class T, int D>
cudaError_t launch_fold(const AttentionArgs& a, const Device& device, Merges merges, cudaStream_t stream) {
  constexpr int kRows = 128 / (D / 4);
  const bool splits = a.window == 0 && a.partial_rows == kDecodeRows;
  const int rows = a.kv_heads * a.partial_rows, parts = splits ? (a.extends ? kSplitRows : kFewRows) / kDecodeRows : 1;
  if (a.sequences * rows <= (a.prefix ? 1024 : 512))
    return launch_after(fold_kernel<T, D>, {dim3(a.sequences, rows, parts), 256}, stream, a, merges);
  const dim3 grid(a.sequences, (rows + kRows - 1) / kRows);
  if constexpr (merges_shared_runs(D))
    if (merges.decodes && parts == 1 && int(grid.x * grid.y) > 6 * device.multiprocessors)
      return launch_after(fold_few_kernel<T, D>, {dim3(grid.x, (grid.y + 3) / 4), kFewThreads}, stream, a, merges);
  return launch_after(fold_wide_kernel<T, D, kRows>, {grid, 128}, stream, a, merges);
}

}  // namespace
}  // namespace octavo
