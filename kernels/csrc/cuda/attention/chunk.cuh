// How the query rows of one chunk of keys are computed: the arithmetic that the decode and the prefix kernel share.
//
// A chunk's keys go to kLanes lanes, every kLanes-th slice of 16 to one of them, and the lanes merge in order. Both
// kernels take exactly these steps for each row, with every rounding spelled out, so a row gets the same bits from
// either: whether sequences are grouped never shows in a result.
#pragma once

#include "attention/attention.cuh"
#include "attention/prefix.cuh"
#include "cache/cells.cuh"

namespace octavo {
namespace {

constexpr int kLanes = 4;

// Softmax state of one warp's query rows over C columns, `m` in the log2 domain. R = 1, at most eight rows: chunk_few.cuh.
template <int C, int R>
struct State;

// Sixteen rows: a thread holds rows lane / 4 and lane / 4 + 8 of every n-tile.
template <int C>
struct State<C, 2> {
  float m[2], l[2];
  float o[C / 8][4];

  __device__ void clear() {
    m[0] = m[1] = kNoScore, l[0] = l[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < C / 8; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
  }
  __device__ void scale(int r, float factor) {
#pragma unroll
    for (int n = 0; n < C / 8; ++n) o[n][2 * r] *= factor, o[n][2 * r + 1] *= factor;
  }
  // Joins the keys of a later lane.
  __device__ void merge(const State& later) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = fmaxf(m[r], later.m[r]);
      const float old_weight = fast_exp2(__fsub_rn(m[r], top)), weight = fast_exp2(__fsub_rn(later.m[r], top));
      m[r] = top, l[r] = __fmaf_rn(later.l[r], weight, __fmul_rn(l[r], old_weight));
#pragma unroll
      for (int n = 0; n < C / 8; ++n)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) o[n][i] = __fmaf_rn(later.o[n][i], weight, __fmul_rn(o[n][i], old_weight));
    }
  }

  static constexpr int kFloats = 2 * (2 + C / 4);
  __device__ void store(float* buffer) const {
    float* p = buffer + threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      p[0] = m[r], p[32] = l[r], p += 64;
#pragma unroll
      for (int n = 0; n < C / 8; ++n) p[0] = o[n][2 * r], p[32] = o[n][2 * r + 1], p += 64;
    }
  }
  // The other way round: this is the later lane, and those before are in `buffer`.
  __device__ void follow(const float* buffer) {
    const float* p = buffer + threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r, p += kFloats / 2 * 32) {
      const float before = p[0], top = fmaxf(before, m[r]);
      const float old_weight = fast_exp2(__fsub_rn(before, top)), weight = fast_exp2(__fsub_rn(m[r], top));
      m[r] = top, l[r] = __fmaf_rn(l[r], weight, __fmul_rn(p[32], old_weight));
#pragma unroll
      for (int n = 0; n < C / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& value = o[n][2 * r + i];
          value = __fmaf_rn(value, weight, __fmul_rn(p[(2 + 2 * n + i) * 32], old_weight));
        }
    }
  }
};

// How many multiprocessors work at the tiles of prefixes. Work that does not come out even is given to fewer; runs, which
// take longest, come first.
__device__ inline int prefix_blocks(const AttentionArgs& a, int multiprocessors) {
  const int items = a.header->prefix_items, runs = a.header->prefix_runs;
  if (items == 0) return 0;
  const int all = items + (kRun - 1) * runs, tokens = a.header->decode_tokens;
  // Streams keep the memory busy without a third of the multiprocessors, and tiles that end last hold up everything: up to
  // there they have as many as if warps took items alone.
  const int share = max(prefix_share(all, tokens, a.header->alone, multiprocessors),
                        min(prefix_share(all, tokens, true, multiprocessors), multiprocessors * 2 / 3));
  const int most = max(share, least_for_runs(runs * a.kv_heads, multiprocessors));
  const int tiles = (runs > 0 ? runs : items) * a.kv_heads, rounds = (tiles + most - 1) / most;
  return (tiles + rounds - 1) / rounds;
}

// One query row of a tile: the token it comes from, its place among the sequence's packed rows (token x grouped head),
// and the slot of its partial result. A row of a group's tile is found by the list of rows.
struct QueryRow {
  int token, row, slot;
};
__device__ inline QueryRow group_row(const AttentionArgs& a, int place, int chunk) {
  const GroupRow row = a.rows[place];
  return {row.token, row.row, row.first_partial + chunk};
}
// The same for an item of the prefix kernel, whose rows may be those of one split sequence.
__device__ inline QueryRow prefix_row(const AttentionArgs& a, int sequence, int place, int chunk, int group) {
  if (place < kOwnRows) return group_row(a, place, chunk);
  const int queries = a.partial_rows / group, rows = queries * group;  // of a part
  const int part = (place - kOwnRows) / rows, row = (place - kOwnRows) % rows;
  const FoldItem own = a.folds[sequence];
  return {own.query_row + part * queries + row / group, row, own.first_partial + part * own.chunks + chunk};
}

// The query rows of a warp as tensor-core fragments: in registers, or read again for each slice where those are full. With
// R = 1 there are at most eight, and the other half of the fragments takes no registers.
template <class T, int D, int R = 2>
struct Queries {
  static constexpr bool kHeld = D <= 128;
  const T* rows[R];  // of rows lane / 4 and lane / 4 + 8; null: padding
  uint32_t held[kHeld ? D / 16 : 1][2 * R];

  // `count` rows that lie `stride` elements apart, as those of a head in shared memory.
  __device__ Queries(const T* first, int stride, int count) {
#pragma unroll
    for (int half = 0; half < R; ++half) {
      const int row = threadIdx.x % 32 / 4 + 8 * half;
      rows[half] = row < count ? first + row * stride + threadIdx.x % 4 * 2 : nullptr;
    }
    hold();
  }
  // Eight rows in shared memory: `at(row, unit)` gives the address of 16 bytes.
  template <class F>
  __device__ explicit Queries(F&& at) : rows{} {
    static_assert(kHeld && R == 1 && D % 32 == 0);
#pragma unroll
    for (int k = 0; k < D / 16; k += 2) {
      uint32_t x[4];
      ldmatrix(x, at(threadIdx.x % 8, 2 * k + threadIdx.x % 32 / 8));
      held[k][0] = x[0], held[k][1] = x[1], held[k + 1][0] = x[2], held[k + 1][1] = x[3];
    }
  }
  // `locate(row)` gives the QueryRow of a row below `count`. Nothing is read of the rows themselves before `hold`.
  template <class F>
  __device__ Queries(const AttentionArgs& a, int head, int count, F&& locate) {
    const int group = a.heads / a.kv_heads;
#pragma unroll
    for (int half = 0; half < R; ++half) {
      const int row = threadIdx.x % 32 / 4 + 8 * half;
      rows[half] = nullptr;
      if (row >= count) continue;
      const QueryRow at = locate(row);
      rows[half] = static_cast<const T*>(a.q) + int64_t(at.token) * a.q_stride + (head * group + at.row % group) * D +
                   threadIdx.x % 4 * 2;
    }
  }
  __device__ void hold() {
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) read(k, held[k]);
    }
  }
  __device__ void read(int k, uint32_t (&out)[2 * R]) const {
#pragma unroll
    for (int i = 0; i < 2 * R; ++i)
      out[i] = rows[i % R] ? *reinterpret_cast<const uint32_t*>(rows[i % R] + k * 16 + i / R * 8) : 0;
  }
  __device__ void fragment(int k, uint32_t (&out)[4]) const {
    uint32_t x[2 * R];
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < 2 * R; ++i) x[i] = held[k][i];
    } else {
      read(k, x);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = i % 2 < R ? x[i / 2 * R + i % 2] : 0;
  }
};

// Products of the query rows with N slices of 16 keys, `stride` bytes apart.
template <class T, int D, int N>
__device__ void score(const Queries<T, D, 2>& queries, uint32_t keys, int stride, float (&s)[N][2][4]) {
  const int lane = threadIdx.x % 32, row = (lane & 7) + (lane >> 4) * 8;
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) s[i][j / 4][j % 4] = 0.0f;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t q[4];
    queries.fragment(k, q);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      uint32_t b[4];
      ldmatrix(b, keys + i * stride + row * (D * 2) + swizzle(D, row, 2 * k + (lane >> 3 & 1)) * 16);
      mma<T>(s[i][0], q, b[0], b[1]);
      mma<T>(s[i][1], q, b[2], b[3]);
    }
  }
}

// Scores stand for score * unit in the log2 domain.
__device__ inline float score_unit(const AttentionArgs& a) { return (a.softcap > 0.0f ? a.softcap : a.scale) * kLog2e; }

template <int R>
__device__ void cap(const AttentionArgs& a, float (&s)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4 * R; ++i) {
    float& x = s[i / 2 % 2][i / 4 * 2 + i % 2];
    x = tanhf(x * (a.scale / a.softcap));
  }
}

// How far scores may lie above the maximum that a row's sums refer to before it is raised, in the log2 domain: weights
// stay below 2^8, and rescaling, which costs as much as the products, becomes rare. Each row decides for itself.
constexpr float kSlack = 8.0f;

// Turns the scores of N slices of 16 keys into weights, as tensor-core fragments, and for each slice the factor that
// earlier results must be multiplied with before its values are added. Where a warp has not `rescaled`, it is one.
template <int N>
struct Weights {
  uint32_t at[N][4];
  float factor[N][2];
  bool rescaled[N];
};

// Turns scores into weights, slice by slice, and adds them to the sums `l` that refer to the maxima `m`.
template <class T, int N>
__device__ void soften(const float (&s)[N][2][4], float unit, float (&m)[2], float (&l)[2], Weights<N>& w) {
  float high[N][2], shift[N][2];
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      high[j][r] = quad_max(fmaxf(fmaxf(s[j][0][2 * r], s[j][0][2 * r + 1]), fmaxf(s[j][1][2 * r], s[j][1][2 * r + 1])));
#pragma unroll
  for (int j = 0; j < N; ++j) {
    bool rises = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = __fmul_rn(high[j][r], unit);
      const bool mine = top > __fadd_rn(m[r], kSlack);
      w.factor[j][r] = mine ? fast_exp2(__fsub_rn(m[r], top)) : 1.0f;
      m[r] = shift[j][r] = mine ? top : m[r];
      rises |= mine;
    }
    w.rescaled[j] = __any_sync(~0u, rises);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float p[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        p[i / 2][2 * r + i % 2] = fast_exp2(__fmaf_rn(s[j][i / 2][2 * r + i % 2], unit, -shift[j][r]));
      const float sum = __fadd_rn(__fadd_rn(p[0][2 * r], p[0][2 * r + 1]), __fadd_rn(p[1][2 * r], p[1][2 * r + 1]));
      l[r] = __fmaf_rn(l[r], w.factor[j][r], sum);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) w.at[j][i] = pack<T>(p[i / 2][i % 2 * 2], p[i / 2][i % 2 * 2 + 1]);
  }
}

// Adds N slices of 16 keys, of which the scores are known, to the state, one after the other; values lie `stride` bytes
// apart. The state takes the columns from the 16-byte unit `first_unit` on.
template <class T, int D, int C, int N>
__device__ void absorb(const float (&s)[N][2][4], float unit, uint32_t values, int stride, int first_unit,
                       State<C, 2>& st) {
  Weights<N> w;
  soften<T>(s, unit, st.m, st.l, w);
  const int lane = threadIdx.x % 32, row = lane & 15;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (w.rescaled[j]) st.scale(0, w.factor[j][0]), st.scale(1, w.factor[j][1]);  // for the other rows exactly one
#pragma unroll
    for (int n = 0; n < C / 16; ++n) {
      uint32_t b[4];
      ldmatrix_transposed(b, values + j * stride + row * (D * 2) + swizzle(D, row, first_unit + 2 * n + (lane >> 4)) * 16);
      mma<T>(st.o[2 * n], w.at[j], b[0], b[1]);
      mma<T>(st.o[2 * n + 1], w.at[j], b[2], b[3]);
    }
  }
}

__device__ inline int64_t partial_row(const AttentionArgs& a, int slot, int head) {
  return (int64_t(slot) * a.kv_heads + head) * a.partial_rows;
}

// Leaves the state of rows below `count` for the fold: C columns from `column` on. `locate` as for Queries.
template <int D, int C, class F>
__device__ void write_partial(const AttentionArgs& a, int head, int count, int column, const State<C, 2>& st,
                              F&& locate) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (lane / 4 + 8 * r >= count) continue;
    const QueryRow to = locate(lane / 4 + 8 * r);
    const int64_t at = partial_row(a, to.slot, head) + to.row;
#pragma unroll
    for (int n = 0; n < C / 8; ++n)
      *reinterpret_cast<float2*>(a.partial + at * D + column + n * 8 + lane % 4 * 2) =
          make_float2(st.o[n][2 * r], st.o[n][2 * r + 1]);
    if (lane % 4 == 0 && column == 0)
      *reinterpret_cast<float2*>(a.partial_sums + at * 2) = make_float2(st.m[r], st.l[r]);
  }
}

#if !OCTAVO_BULK_COPY
// Waits for the oldest of `stages` groups of copies.
__device__ inline void wait_oldest(int stages) {
  switch (stages) {
    case 1: return wait_copies<0>();
    case 2: return wait_copies<1>();
    case 3: return wait_copies<2>();
    case 4: return wait_copies<3>();
    case 5: return wait_copies<4>();
    case 6: return wait_copies<5>();
    case 7: return wait_copies<6>();
    default: return wait_copies<7>();
  }
}
#endif

}  // namespace
}  // namespace octavo
