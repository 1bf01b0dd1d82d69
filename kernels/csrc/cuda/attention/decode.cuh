// The common part of the decode kernel and the one that does a whole step for few sequences: they must agree bit for bit.
#pragma once

#include "attention/chunk_cells.cuh"

namespace octavo {
namespace {

constexpr int kWarps = kLanes;

// Barrier of those warps of a block, which may have others beside them.
__device__ inline void sync_warps() { asm volatile("barrier.sync.aligned 1, %0;" ::"n"(kWarps * 32) : "memory"); }

// Tokens [begin, end) of the context that an item covers; begin is a multiple of the slice.
struct Range {
  int begin, end;
  __device__ int slices(int warp) const { return (end - begin + kSlice * (kWarps - warp) - 1) / (kSlice * kWarps); }
};

// Range of `chunks` chunks from the item's own on.
__device__ inline Range range_of(const AttentionArgs& a, const DecodeItem& it, int chunks = 1) {
  int begin = it.chunk * kChunk;
  if (a.window > 0) begin = max(begin, max(0, it.context - it.queries + 1 - a.window) / kSlice * kSlice);
  return {begin, max(begin, min(it.context, (it.chunk + chunks) * kChunk))};
}

__device__ inline int row_count(const DecodeItem& it, int group) {
  return it.group_rows > 0 ? it.group_rows : it.queries * group;
}
__device__ inline QueryRow row_of(const AttentionArgs& a, const DecodeItem& it, int row, int group) {
  if (it.group_rows > 0) return group_row(a, it.slot + row, it.chunk);
  return {it.query_row + row / group, row, it.slot};
}

// Which keys of an item its rows see.
struct Sight {
  int first_last, lowest, highest_low;  // last key of the first query, first keys of the first and of the last

  __device__ Sight(const AttentionArgs& a, const DecodeItem& it)
      : first_last(it.context - it.queries),
        lowest(a.window > 0 ? first_last + 1 - a.window : 0),
        highest_low(a.window > 0 ? it.context - a.window : 0) {}

  // Scores of the keys of a slice from position `token` on, where some row does not see all of them.
  template <int R>
  __device__ void mask(const AttentionArgs& a, int group, int token, float (&s)[2][4]) const {
    if (token + kSlice - 1 <= first_last && token >= highest_low) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int last = first_last + (lane / 4 + 8 * r) / group;
      const int low = a.window > 0 ? last - a.window + 1 : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = token + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (position > last || position < low) s[i / 2][2 * r + i % 2] = -INFINITY;
      }
    }
  }
  // The same where keys are the rows of a tile.
  template <int R>
  __device__ void mask_rows(const AttentionArgs& a, int group, int token, float (&s)[R][4]) const {
    if (token + kSlice - 1 <= first_last && token >= highest_low) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int last = first_last + (8 * r + lane % 4 * 2 + i % 2) / group, low = a.window > 0 ? last - a.window + 1 : 0;
        const int position = token + i / 2 * 8 + lane / 4;
        if (position > last || position < low) s[r][i] = -INFINITY;
      }
  }
};

template <class C, int D, int R>
using StateFor = std::conditional_t<is_scaled<C>, CellState<D, R>, State<D, R>>;

// Values that no row sees, which may be anything, become zeros.
template <int D>
__device__ void clear_unseen(const DecodeItem& it, const Sight& sight, int token, uint32_t values) {
  if (token + kSlice <= it.context && token >= sight.lowest) return;
  clear_values<D>(values, kSlice, sight.lowest - token, it.context - token, threadIdx.x % 32, 32);
  __syncwarp();
}

// One slice of 16 tokens, the first at position `token`.
template <class T, int D>
__device__ void attend(const AttentionArgs& a, const DecodeItem& it, int group, uint32_t keys, int token,
                       const Queries<T, D, 2>& queries, State<D, 2>& st) {
  const uint32_t values = keys + slice_bytes<T, D>;
  const Sight sight(a, it);
  clear_unseen<D>(it, sight, token, values);
  float s[1][2][4];
  score<T, D, 1>(queries, keys, 0, s);
  if (a.softcap > 0.0f) cap<2>(a, s[0]);
  sight.mask<2>(a, group, token, s[0]);
  absorb<T, D, D, 1>(s, score_unit(a), values, 0, 0, st);
}
struct Stay {
  __device__ void operator()() const {}
};
// The same for at most eight rows. `first`: of a state that nothing has been added to yet, and that need not be cleared.
// `leave` is called when nothing more is read of the slice.
template <class T, int D, bool first = false, class F = Stay>
__device__ void attend(const AttentionArgs& a, const DecodeItem& it, int group, uint32_t keys, int token,
                       const Queries<T, D, 1>& queries, State<D, 1>& st, const F& leave = {}) {
  const uint32_t values = keys + slice_bytes<T, D>;
  const Sight sight(a, it);
  clear_unseen<D>(it, sight, token, values);
  const SliceTiles<D> tiles(keys, values);
  if constexpr (tiles.kHeld) leave();
  float s[2][4];
  score(queries, tiles, s);
  if (a.softcap > 0.0f) cap<1>(a, s);
  sight.mask<1>(a, group, token, s);
  absorb<T, D, first>(s, score_unit(a), tiles, st);
  if constexpr (!tiles.kHeld) leave();
}

// N slices of cells in eight bits, each as far from the one before as the lanes take turns.
template <class C, int D, int R, int N>
__device__ void attend_cells(const AttentionArgs& a, const DecodeItem& it, int group, const uint32_t (&keys)[N],
                             int token, const HalfQueries<D, R>& queries, CellState<D, R>& st) {
  const Sight sight(a, it);
  uint32_t values[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = keys[n] + slice_bytes<C, D>;
    const int first = token + n * kLanes * kSlice;
    if (first + kSlice > it.context || first < sight.lowest) {
      clear_cells<D>(values[n], sight.lowest - first, it.context - first);
      __syncwarp();
    }
  }
  float s[N][R][4], by[R][2];
  score_cells<C>(queries, keys, s);
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      by[r][i] = score_unit(a) * (a.softcap > 0.0f ? 1.0f : queries.factor[r][i]);
      if (a.softcap > 0.0f) {
        const float inside = queries.factor[r][i] * (a.scale / a.softcap);
#pragma unroll
        for (int n = 0; n < N; ++n) s[n][r][i] = tanhf(s[n][r][i] * inside), s[n][r][2 + i] = tanhf(s[n][r][2 + i] * inside);
      }
    }
#pragma unroll
  for (int n = 0; n < N; ++n) sight.mask_rows<R>(a, group, token + n * kLanes * kSlice, s[n]);
  absorb_cells<C>(s, by, values, st);
}

// After the last slice of a warp: sums of what its threads hold apart.
template <int D, int R>
__device__ void finish(State<D, R>& st) {
#pragma unroll
  for (int r = 0; r < R; ++r) st.l[r] = warp_sum<4>(st.l[r]);
}
template <int D, int R>
__device__ void finish(CellState<D, R>& st) {
  st.finish();
}

// The gathered part of one row: N times four of its columns.
template <int N>
struct Folded {
  float m, l;
  float4 o[N];

  __device__ void clear() {
    m = kNoScore, l = 0.0f;
#pragma unroll
    for (int n = 0; n < N; ++n) o[n] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  // Joins later keys: their maximum and sum, and what `columns` gives for each four.
  template <class F>
  __device__ void join(float2 sums, F&& columns) {  // as State::join does
    const float top = fmaxf(m, sums.x), before = fast_exp2(__fsub_rn(m, top)), weight = fast_exp2(__fsub_rn(sums.x, top));
    m = top, l = __fmaf_rn(sums.y, weight, __fmul_rn(l, before));
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float4 x = columns(n);
      o[n].x = __fmaf_rn(x.x, weight, __fmul_rn(o[n].x, before)), o[n].y = __fmaf_rn(x.y, weight, __fmul_rn(o[n].y, before));
      o[n].z = __fmaf_rn(x.z, weight, __fmul_rn(o[n].z, before)), o[n].w = __fmaf_rn(x.w, weight, __fmul_rn(o[n].w, before));
    }
  }
  __device__ void join(const Folded& later) {
    join(make_float2(later.m, later.l), [&](int n) { return later.o[n]; });
  }
};

template <class T, int N>
__device__ void write_folded(const AttentionArgs& a, int query_row, int head, int row, int column, const Folded<N>& f,
                             int apart = 4) {
  const int group = a.heads / a.kv_heads, query_head = head * group + row % group;
  const float factor = normaliser(a, query_head, f.m, f.l);
  T* out = static_cast<T*>(a.out) + int64_t(query_row + row / group) * a.out_stride + query_head * a.head_dim + column;
#pragma unroll
  for (int n = 0; n < N; ++n)
    *reinterpret_cast<uint2*>(out + n * apart) =
        make_uint2(pack<T>(f.o[n].x * factor, f.o[n].y * factor), pack<T>(f.o[n].z * factor, f.o[n].w * factor));
}

// The states of an item's warps become one: each warp leaves its own in shared memory, and after a barrier all threads
// join the warps' rows, in the order of the warps.
template <int D, int R>
class Exchange {
 public:
  static constexpr bool kPadded = D > 128;  // there is room for it
  static constexpr int kRows = 8 * R, kWidth = D + 4 * R * kPadded;
  static constexpr int kSumsAt = kRows * kWidth, kFloats = kSumsAt + 2 * kRows;  // of one warp
  static constexpr int kBytes = kWarps * kFloats * 4;

  __device__ explicit Exchange(void* memory) : buffer(static_cast<float*>(memory)) {}

  __device__ void leave(const State<D, 2>& st) const {
    const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row = lane / 4 + 8 * r;
      if (lane % 4 == 0) sums(warp, row) = make_float2(st.m[r], st.l[r]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<float2*>(at(warp, row, n * 8 + lane % 4 * 2)) =
            make_float2(st.o[n][2 * r], st.o[n][2 * r + 1]);
    }
  }
  __device__ void leave(const State<D, 1>& st) const {
    const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
    if (lane % 4 == 0) sums(warp, lane / 4) = make_float2(st.m[0], st.l[0]);
    leave_columns(0, st.o);
  }
  __device__ void leave(const CellState<D, R>& st) const {
    const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 8 * r + lane % 4 * 2 + i;
        if (lane / 4 == 0) sums(warp, row) = make_float2(st.m[r][i], st.l[r][i]);
      }
#pragma unroll
    for (int r = 0; r < R; ++r) leave_columns(r, st.o[r]);
  }
  // A thread has so many times four columns of a row, `kApart` from each other because neighbours read neighbouring banks,
  // and joins at most kFours of them at once.
  static constexpr int kMine = (kRows * (D / 4) + kWarps * 32 - 1) / (kWarps * 32), kApart = D / kMine;
  static constexpr int kFours = kMine < 4 ? kMine : 4;
  static_assert(D % (4 * kMine) == 0 && kMine % kFours == 0);

  // Calls take(row, first column, Folded) for what the thread has of rows below `rows`.
  template <class F>
  __device__ void join(int rows, F&& take) const {
    const int row = thread_index() / (kApart / 4);
    if (row >= rows) return;
#pragma unroll
    for (int first = 0; first < kMine; first += kFours) {
      const int column = thread_index() % (kApart / 4) * 4 + first * kApart;
      const auto columns = [&](int warp, int n) {
        return *reinterpret_cast<const float4*>(at(warp, row, column + n * kApart));
      };
      Folded<kFours> f{sums(0, row).x, sums(0, row).y, {}};
#pragma unroll
      for (int n = 0; n < kFours; ++n) f.o[n] = columns(0, n);
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) f.join(sums(warp, row), [&](int n) { return columns(warp, n); });
      take(row, column, f);
    }
  }

 private:
  float* buffer;

  // Read when it is needed: what is computed from it would otherwise take registers all along.
  __device__ static int thread_index() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
  }

  // Eight rows' outputs of which columns are the rows of tiles.
  __device__ void leave_columns(int r, const float (&o)[D / 16][4]) const {
    const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *at(warp, 8 * r + lane % 4 * 2 + i, k * 16 + half * 8 + lane / 4) = o[k][2 * half + i];
  }
  __device__ float2& sums(int warp, int row) const {
    return *reinterpret_cast<float2*>(buffer + warp * kFloats + kSumsAt + 2 * row);
  }
  // Four rows that are written together lie in different banks: neighbours, or with at most eight every other one.
  __device__ float* at(int warp, int row, int column) const {
    return buffer + warp * kFloats + row * kWidth + (kPadded ? column : column ^ (row / (3 - R) & 3) * 8);
  }
};

// Leaves columns of a row for the fold.
template <int D, int N>
__device__ void write_partial(const AttentionArgs& a, int head, const QueryRow& to, int column, const Folded<N>& f, int apart) {
  const int64_t at = partial_row(a, to.slot, head) + to.row;
#pragma unroll
  for (int n = 0; n < N; ++n) store_kept(a.partial + at * D + column + n * apart, f.o[n]);
  if (column == 0) *reinterpret_cast<float2*>(a.partial_sums + at * 2) = make_float2(f.m, f.l);
}

// How the chunks of one query row are folded: those of a run of kRun merge one after the other, then the runs of each group
// of neighbours, then the groups, of which there are kFoldGroups at most. The first `merged` runs may be merged already, each
// in the slot of its first chunk. Neither that nor the number of threads nor the batch changes a result.
constexpr int kFoldGroups = 8;

// Which kernels merge the chunks of runs: the decode kernel those of a sequence alone, the prefix kernel those of a group.
struct Merges {
  bool decodes, tiles;
};

// The partial results of four columns of a row.
struct Partials {
  const float2* sums;
  const float* columns;
  int64_t step;  // rows from one chunk to the next
  int width, chunks, merged;

  __device__ Partials(const AttentionArgs& a, const FoldItem& it, int head, int row, int column, Merges merges)
      : step(int64_t(a.kv_heads) * a.partial_rows), width(a.head_dim), chunks(it.chunks),
        merged((merges.decodes ? it.runs : 0) + (merges.tiles ? it.shared_runs : 0)) {  // never both
    const int64_t first = partial_row(a, it.first_partial, head) + row;
    sums = reinterpret_cast<const float2*>(a.partial_sums) + first, columns = a.partial + first * width + column;
  }
  __device__ Folded<1> at(int chunk) const {
    const float2 sum = __ldcg(sums + chunk * step);
    return {sum.x, sum.y, {__ldcg(reinterpret_cast<const float4*>(columns + chunk * step * width))}};
  }
  __device__ int count() const { return chunks - merged * (kRun - 1); }
  __device__ int runs() const { return (chunks + kRun - 1) / kRun; }
  __device__ int group_size() const { return (runs() + kFoldGroups - 1) / kFoldGroups; }  // in runs

  // Calls take(Folded) for the groups of the runs [first, last), in order; loads of kAtOnce partial results are under way
  // together.
  template <int kAtOnce, class F>
  __device__ void fold(int first, int last, F&& take) const {
    const int end = min(last * kRun, chunks), size = group_size();
    int left = size;
    Folded<1> run, group;
    run.clear(), group.clear();
#pragma unroll 1
    for (int chunk = first * kRun; chunk < end;) {
      Folded<1> x[kAtOnce];
      int next = chunk;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (next >= end) break;
        x[i] = at(next);
        next = after(next);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (chunk >= end) break;
        if (chunk % kRun == 0) run = x[i];
        else run.join(x[i]);
        chunk = after(chunk);
        if (chunk % kRun != 0 && chunk < end) continue;
        group.join(run);
        if (--left > 0 && chunk < end) continue;
        take(group);
        group.clear(), left = size;
      }
    }
  }

 private:
  __device__ int after(int chunk) const { return chunk + (chunk < merged * kRun ? kRun : 1); }
};

// All threads of a block fold one row, a group each of those that share columns.
template <class T, int D, int kThreads>
__device__ void fold_row(const AttentionArgs& a, const FoldItem& it, int head, int row, Merges merges,
                         float4 (&outputs)[kFoldGroups][D / 4], float2 (&sums)[kFoldGroups]) {
  constexpr int kAtOnce = kThreads / (D / 4) < kFoldGroups ? kThreads / (D / 4) : kFoldGroups;
  const int part = threadIdx.x / (D / 4), column = threadIdx.x % (D / 4) * 4;
  const Partials partials(a, it, head, row, column, merges);
  const int runs = partials.runs(), size = partials.group_size();
  for (int n = part; part < kAtOnce && n * size < runs; n += kAtOnce)
    partials.fold<4>(n * size, min((n + 1) * size, runs), [&](const Folded<1>& f) {
      outputs[n][column / 4] = f.o[0];
      if (column == 0) sums[n] = make_float2(f.m, f.l);
    });
  __syncthreads();
  if (part > 0) return;
  Folded<1> f;
  f.clear();
  for (int n = 0; n * size < runs; ++n) f.join(sums[n], [&](int) { return outputs[n][column / 4]; });
  write_folded<T>(a, it.query_row, head, row, column, f);
}

}  // namespace
}  // namespace octavo
