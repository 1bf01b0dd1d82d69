// What the decode kernel has in common with the one that does a whole step for few sequences: they must agree bit for bit.
#pragma once

#include "chunk.cuh"

namespace octavo {
namespace {

constexpr int kWarps = kLanes;

// Tokens [begin, end) of the context that an item covers; begin is a multiple of the slice.
struct Range {
  int begin, end;
  __device__ int slices(int warp) const { return (end - begin + kSlice * (kWarps - warp) - 1) / (kSlice * kWarps); }
};

__device__ inline Range range_of(const AttentionArgs& a, const DecodeItem& it) {
  int begin = it.chunk * kChunk;
  if (a.window > 0) begin = max(begin, max(0, it.context - it.queries + 1 - a.window) / kSlice * kSlice);
  return {begin, max(begin, min(it.context, (it.chunk + 1) * kChunk))};
}

__device__ inline int row_count(const DecodeItem& it, int group) {
  return it.group_rows > 0 ? it.group_rows : it.queries * group;
}
__device__ inline QueryRow row_of(const AttentionArgs& a, const DecodeItem& it, int row, int group) {
  if (it.group_rows > 0) return group_row(a, it.slot + row, it.chunk, group);
  return {it.query_row + row / group, row, it.slot};
}

// One slice of 16 tokens, the first at position `token`.
template <class T, int D, int R>
__device__ void attend(const AttentionArgs& a, const DecodeItem& it, int group, uint32_t keys, int token,
                       const Queries<T, D>& queries, State<D, R>& st) {
  const int lane = threadIdx.x % 32;
  const uint32_t values = keys + slice_bytes<T, D>;
  const int first_last = it.context - it.queries;  // last key that the first query sees
  const int lowest = a.window > 0 ? first_last + 1 - a.window : 0;
  const int highest_low = a.window > 0 ? it.context - a.window : 0;
  if (token + kSlice > it.context || token < lowest) {
    clear_values<D>(values, kSlice, lowest - token, it.context - token, lane, 32);
    __syncwarp();
  }
  float s[1][2][4];
  score<T, D, 1>(queries, keys, 0, s);
  if (a.softcap > 0.0f) cap<R>(a, s[0]);
  if (token + kSlice - 1 > first_last || token < highest_low) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int last = first_last + (lane / 4 + 8 * r) / group;
      const int low = a.window > 0 ? last - a.window + 1 : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = token + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (position > last || position < low) s[0][i / 2][2 * r + i % 2] = -INFINITY;
      }
    }
  }
  absorb<T, D, D, R, 1>(s, score_unit(a), values, 0, 0, st);
}

template <class T, int D, int R>
__device__ void write_result(const AttentionArgs& a, const DecodeItem& it, int head, int rows,
                             const State<D, R>& st) {
  const int lane = threadIdx.x % 32, group = a.heads / a.kv_heads;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = lane / 4 + 8 * r;
    if (row >= rows) continue;
    const int query_head = head * group + row % group;
    const float factor = normaliser(a, query_head, st.m[r], st.l[r]);
    T* out = static_cast<T*>(a.out) + int64_t(it.query_row + row / group) * a.out_stride + query_head * D;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<uint32_t*>(out + n * 8 + lane % 4 * 2) =
          pack<T>(st.o[n][2 * r] * factor, st.o[n][2 * r + 1] * factor);
  }
}

// What the fold gathers of one row: `column` is the first of the thread's four columns.
struct Folded {
  float m, l;
  float4 o;

  __device__ void clear() { m = kNoScore, l = 0.0f, o = make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
  __device__ void add(float weight, float sum, const float4& x) {
    l = __fmaf_rn(sum, weight, l);
    o.x = __fmaf_rn(x.x, weight, o.x), o.y = __fmaf_rn(x.y, weight, o.y);
    o.z = __fmaf_rn(x.z, weight, o.z), o.w = __fmaf_rn(x.w, weight, o.w);
  }
  __device__ void scale(float by) { l *= by, o.x *= by, o.y *= by, o.z *= by, o.w *= by; }
};

template <class T>
__device__ void write_folded(const AttentionArgs& a, const FoldItem& it, int head, int row, int column, const Folded& f) {
  const int group = a.heads / a.kv_heads, query_head = head * group + row % group;
  const float factor = normaliser(a, query_head, f.m, f.l);
  T* out = static_cast<T*>(a.out) + int64_t(it.query_row + row / group) * a.out_stride + query_head * a.head_dim + column;
  *reinterpret_cast<uint2*>(out) =
      make_uint2(pack<T>(f.o.x * factor, f.o.y * factor), pack<T>(f.o.z * factor, f.o.w * factor));
}

// Folds the chunks of one query row: the n-th of kFoldGroups groups takes every kFoldGroups-th chunk from n on, then the
// groups merge in order. All threads of the block come here; neither their number nor the batch changes a result.
constexpr int kFoldGroups = 8;

template <class T, int D, int kThreads>
__device__ void fold_row(const AttentionArgs& a, const FoldItem& it, int head, int row,
                         float4 (&outputs)[kFoldGroups][D / 4], float2 (&sums)[kFoldGroups]) {
  constexpr int kAtOnce = kThreads / (D / 4) < kFoldGroups ? kThreads / (D / 4) : kFoldGroups;
  const int part = threadIdx.x / (D / 4), column = threadIdx.x % (D / 4) * 4;
  const int64_t step = int64_t(a.kv_heads) * a.partial_rows, first = partial_row(a, it.first_slot, head) + row;
  for (int n = part; part < kAtOnce && n < kFoldGroups; n += kAtOnce) {
    Folded f;
    f.clear();
#pragma unroll 4
    for (int c = n; c < it.chunks; c += kFoldGroups) {
      const float2 sum = __ldcg(reinterpret_cast<const float2*>(a.partial_sums) + first + c * step);
      const float4 x = __ldcg(reinterpret_cast<const float4*>(a.partial + (first + c * step) * D + column));
      const float top = fmaxf(f.m, sum.x);
      f.scale(fast_exp2(__fsub_rn(f.m, top)));
      f.add(fast_exp2(__fsub_rn(sum.x, top)), sum.y, x);
      f.m = top;
    }
    outputs[n][column / 4] = f.o;
    if (column == 0) sums[n] = make_float2(f.m, f.l);
  }
  __syncthreads();
  if (part > 0) return;
  Folded f;
  f.clear();
#pragma unroll
  for (int i = 0; i < kFoldGroups; ++i) f.m = fmaxf(f.m, sums[i].x);
#pragma unroll
  for (int i = 0; i < kFoldGroups; ++i) f.add(fast_exp2(__fsub_rn(sums[i].x, f.m)), sums[i].y, outputs[i][column / 4]);
  write_folded<T>(a, it, head, row, column, f);
}

}  // namespace
}  // namespace octavo
