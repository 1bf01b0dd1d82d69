// Paged attention: online softmax over tiles, one state a chunk, chunks folded in ascending order. A level may
// specialise `Attend`, before attention.h.
//
// A query row never sees how many other rows, chunks or sequences are in the call: its scores are sums over the head
// dimension in order, its output sums over keys in order, and tiles and chunks lie on absolute positions.
#pragma once

#include "cache.h"

namespace octavo {
namespace {

constexpr float kNoScore = -1e30f;  // running maximum of a row that has seen no key
constexpr int kSegments = kTile / kSegment;
constexpr int kColumns = kSegment / W;  // vectors of scores in a segment

// Softmax state of all rows of an item: sum of weights * V (unnormalised), maximum (log2 domain), sum of weights.
struct State {
  float *o, *m, *l;
};

struct Shape {
  int rows, group, width, padded;  // padded: head_dim rounded up to whole vectors
  int values, padded_values;       // the same of values, which have another width only where they lie within keys
  bool within_keys;
  Shape(const AttentionArgs& a, int tokens)
      : rows(tokens * (a.heads / a.kv_heads)),
        group(a.heads / a.kv_heads),
        width(a.head_dim),
        padded(int(round_up(a.head_dim, W))),
        values(a.value_dim),
        padded_values(int(round_up(a.value_dim, W))),
        within_keys(!a.cache.kv_stride) {}
  size_t state() const { return size_t(rows) * size_t(padded_values + 2); }
  size_t tile() const { return size_t(kTile) * size_t(padded); }
};

inline State state_at(float* p, const Shape& s) {
  float* m = p + size_t(s.rows) * s.padded_values;
  return {p, m, m + s.rows};
}

inline void clear(const State& st, const Shape& s) {
  for (int i = 0; i < s.rows * s.padded_values; i += W) vstore(st.o + i, vset(0.0f));
  for (int r = 0; r < s.rows; ++r) st.m[r] = kNoScore, st.l[r] = 0.0f;
}

inline float exp2_scalar(float x) {
  alignas(64) float out[W];
  vstore(out, exp2v(vset(x)));
  return out[0];
}

// total := total (+) part
inline void fold(const State& total, const State& part, const Shape& s) {
  for (int r = 0; r < s.rows; ++r) {
    float m = total.m[r] > part.m[r] ? total.m[r] : part.m[r];
    float old_weight = exp2_scalar(total.m[r] - m), new_weight = exp2_scalar(part.m[r] - m);
    float *to = total.o + r * s.padded_values, *po = part.o + r * s.padded_values;
    for (int i = 0; i < s.padded_values; i += W)
      vstore(to + i, vfma(vload(po + i), vset(new_weight), vload(to + i) * vset(old_weight)));
    total.l[r] = total.l[r] * old_weight + part.l[r] * new_weight;
    total.m[r] = m;
  }
}

template <class T>
inline void finish(const AttentionArgs& a, const AttentionItem& it, const State& st, const Shape& s) {
  const int64_t first = a.query_start[it.sequence] + it.token;
  for (int r = 0; r < s.rows; ++r) {
    const int head = it.kv_head * s.group + r % s.group;
    float *o = st.o + r * s.padded_values, l = st.l[r], scale = 1.0f;
    if (a.sinks) {
      float sink = a.sinks[head] * kLog2e, m = st.m[r] > sink ? st.m[r] : sink;
      scale = exp2_scalar(st.m[r] - m);
      l = l * scale + exp2_scalar(sink - m);
    }
    // A row without keys gives zeros.
    Vec factor = vset(l == 0.0f ? 0.0f : scale / l);
    for (int i = 0; i < s.padded_values; i += W) vstore(o + i, vload(o + i) * factor);
    narrow_row(o, static_cast<T*>(a.out) + (first + r / s.group) * a.out_stride + head * s.values, s.values);
  }
}

// Keys [begin, end) that a row sees.
struct Span {
  int begin, end;
};

inline Span row_span(const AttentionArgs& a, const AttentionItem& it, int token) {
  const int queries = a.query_start[it.sequence + 1] - a.query_start[it.sequence];
  const int position = a.context_lens[it.sequence] - queries + it.token + token;
  int begin = a.window > 0 ? position - a.window + 1 : 0;
  return {begin > 0 ? begin : 0, position + 1 > 0 ? position + 1 : 0};
}

// scores[R][segments * 16] = q[R][width] . K[width][segments * 16]
template <class T, int R, int S>
inline void score_block(const float* q, int q_stride, const T* const* keys, int width, int bs, float* scores) {
  Vec acc[R][S * kColumns];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < S * kColumns; ++c) acc[r][c] = vset(0.0f);
  const T* k[S];
  for (int i = 0; i < S; ++i) k[i] = keys[i];
  for (int d = 0; d < width; ++d) {
    Vec column[S * kColumns];
#pragma GCC unroll 16
    for (int c = 0; c < S * kColumns; ++c) column[c] = vload(k[c / kColumns] + c % kColumns * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Vec value = vset(q[r * q_stride + d]);
#pragma GCC unroll 16
      for (int c = 0; c < S * kColumns; ++c) acc[r][c] = vfma(value, column[c], acc[r][c]);
    }
    for (int i = 0; i < S; ++i) k[i] += bs;
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < S * kColumns; ++c) vstore(scores + r * kTile + c * W, acc[r][c]);
}

// o[R][N * W] += weights[R][begin..end) . V[begin..end)[N * W]; `lanes` < W only for a partial last vector (N = 1).
template <class T, int R, int N>
inline void value_block(float* o, int o_stride, const float* weights, const T* const* values, int v_stride, int begin,
                        int end, int lanes) {
  Vec acc[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) acc[r][n] = vload(o + r * o_stride + n * W);
  for (int segment = begin / kSegment; segment * kSegment < end; ++segment) {
    const int first = segment * kSegment;
    const int lo = begin > first ? begin : first, hi = end < first + kSegment ? end : first + kSegment;
    const T* v = values[segment] + (lo - first) * v_stride;
    for (int j = lo; j < hi; ++j, v += v_stride) {
      Vec row[N];
      if (N == 1 && lanes < W) {
        row[0] = vload_n(v, lanes);
      } else {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) row[n] = vload(v + n * W);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        Vec weight = vset(weights[r * kTile + j]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) acc[r][n] = vfma(weight, row[n], acc[r][n]);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) vstore(o + r * o_stride + n * W, acc[r][n]);
}

template <class T, int R>
inline void score_rows(const float* q, int q_stride, const T* const* keys, int segments, int width, int bs,
                       float* scores) {
  for (int i = 0; i < segments; i += kScoreSegments)
    score_block<T, R, kScoreSegments>(q, q_stride, keys + i, width, bs, scores + i * kSegment);
}

template <class T, int R>
inline void value_rows(float* o, int o_stride, const float* weights, const T* const* values, int v_stride, int width,
                       int begin, int end) {
  const T* v[kSegments];
  int i = 0;
  for (; i + kValueVectors * W <= width; i += kValueVectors * W) {
    for (int s = 0; s < kSegments; ++s) v[s] = values[s] + i;
    value_block<T, R, kValueVectors>(o + i, o_stride, weights, v, v_stride, begin, end, W);
  }
  for (; i < width; i += W) {
    for (int s = 0; s < kSegments; ++s) v[s] = values[s] + i;
    value_block<T, R, 1>(o + i, o_stride, weights, v, v_stride, begin, end, width - i < W ? width - i : W);
  }
}

// Calls f(first row, std::integral_constant-like R) for groups of nearly equal size.
template <int R>
struct Rows {
  static constexpr int value = R;
};
template <int R, class F>
inline void call_rows(int rows, int first, F&& f) {
  if (rows == R) return f(first, Rows<R>{});
  if constexpr (R > 1) call_rows<R - 1>(rows, first, f);
}
template <class F>
inline void for_row_groups(int rows, F&& f) {
  const int groups = (rows + kScoreRows - 1) / kScoreRows;
  for (int g = 0, first = 0; g < groups; ++g) {
    int n = (rows - first + groups - g - 1) / (groups - g);
    call_rows<kScoreRows>(n, first, f);
    first += n;
  }
}

// Turns a row of raw scores into weights relative to the new maximum and rescales the row's state. `scales`: of the
// tile's keys, which the scores still lack, then of its values, which the weights take along; null for none.
inline void soften(const AttentionArgs& a, float* scores, const float* scales, float* o, float& m, float& l, int lo,
                   int hi, int padded) {
  constexpr int n = kTile / W;
  Vec v[n], top = vset(kNoScore), iota = viota();
  for (int c = 0; c < n; ++c) {
    v[c] = vload(scores + c * W);
    if (scales) v[c] = v[c] * vload(scales + c * W);
    if (a.softcap > 0.0f) v[c] = tanhv(v[c]) * vset(a.softcap * kLog2e);
    if (lo > c * W || hi < (c + 1) * W) {
      Vec index = iota + vset(float(c * W));
      Mask seen = mask_and(vge(index, vset(float(lo))), vlt(index, vset(float(hi))));
      v[c] = vselect(seen, v[c], vset(-__builtin_inff()));
    }
    top = vmax(top, v[c]);
  }
  float tile_max = vmax_all(top), new_m = m > tile_max ? m : tile_max;
  Vec sum = vset(0.0f);
  for (int c = 0; c < n; ++c) {
    Vec p = exp2v(v[c] - vset(new_m));
    vstore(scores + c * W, scales ? p * vload(scales + kTile + c * W) : p);
    sum = sum + p;
  }
  if (new_m != m) {
    float old_weight = exp2_scalar(m - new_m);
    for (int i = 0; i < padded; i += W) vstore(o + i, vload(o + i) * vset(old_weight));
    l *= old_weight;
    m = new_m;
  }
  l += vsum(sum);
}

// Where a tile's keys ([width][k_stride]) and values ([16][v_stride]) lie, segment by segment.
template <class C>
struct Tile {
  const C *keys[kSegments], *values[kSegments];
  int k_stride, v_stride;
};

// Also copies the scales of the tile's keys, then of its values, where there are any.
template <class C>
inline Tile<C> find_tile(const AttentionArgs& a, const AttentionItem& it, const Shape& s, int base, Span all,
                         [[maybe_unused]] float* scales) {
  const int bs = a.cache.block_size;
  const int32_t* table = a.tables + it.sequence * a.table_stride;
  Tile<C> tile;
  tile.k_stride = bs, tile.v_stride = s.width;
  for (int i = 0; i < kSegments; ++i) {
    // Segments that no query sees are computed from a seen one and masked: their table entries may not exist.
    int token = base + i * kSegment;
    if (token + kSegment <= all.begin || token >= all.end)
      token = (all.begin > base ? all.begin : base) / kSegment * kSegment;
    const C* keys = static_cast<const C*>(a.cache.data) + int64_t(table[token / bs]) * a.cache.block_stride +
                    it.kv_head * a.cache.head_stride;
    const C* values = keys + a.cache.kv_stride;
    tile.keys[i] = keys + token % bs;
    tile.values[i] = values + token % bs * s.width;
    if constexpr (kScaled<C>) {
      load_scales(keys, s.width, bs, token % bs, scales + i * kSegment);
      load_scales(values, s.width, bs, token % bs, scales + kTile + i * kSegment);
    }
  }
  return tile;
}

// The same tile in float32: many rows of queries would otherwise widen it again and again.
template <class C>
inline Tile<float> widen_tile(const Tile<C>& tile, const Shape& s, float* memory) {
  Tile<float> wide;
  wide.k_stride = kSegment, wide.v_stride = s.padded;
  for (int i = 0; i < kSegments; ++i) {
    float* keys = memory + size_t(i) * kSegment * s.width;
    float* values = memory + s.tile() + size_t(i) * kSegment * s.padded;
    for (int d = 0; d < s.width; ++d) widen_row(tile.keys[i] + d * tile.k_stride, keys + d * kSegment, kSegment);
    for (int j = 0; j < kSegment; ++j) widen_row(tile.values[i] + j * tile.v_stride, values + j * s.padded, s.width);
    wide.keys[i] = keys, wide.values[i] = values;
  }
  return wide;
}

// Calls f(first token's place in the segment, K and V of the block and head, its place in the block, tokens) for each
// block that the segment at `token` lies in and a query sees: table entries of others may not exist.
template <class C, class F>
inline void for_pieces(const AttentionArgs& a, const AttentionItem& it, int token, Span all, F&& f) {
  const int bs = a.cache.block_size, count = bs < kSegment ? bs : kSegment;
  const int32_t* table = a.tables + it.sequence * a.table_stride;
  for (int i = 0; i < kSegment; i += count) {
    if (token + i + count <= all.begin || token + i >= all.end) continue;
    const C* keys = static_cast<const C*>(a.cache.data) + int64_t(table[(token + i) / bs]) * a.cache.block_stride +
                    it.kv_head * a.cache.head_stride;
    f(i, keys, keys + a.cache.kv_stride, (token + i) % bs, count);
  }
}

// A tile in float32 of blocks that are smaller than a segment. What no query sees is zero.
template <class C>
inline Tile<float> gather_tile(const AttentionArgs& a, const AttentionItem& it, const Shape& s, int base, Span all,
                               float* memory, [[maybe_unused]] float* scales) {
  Tile<float> wide;
  wide.k_stride = kSegment, wide.v_stride = s.padded;
  const int bs = a.cache.block_size;
  __builtin_memset(memory, 0, 2 * s.tile() * sizeof(float));
  if constexpr (kScaled<C>) __builtin_memset(scales, 0, 2 * kTile * sizeof(float));
  for (int i = 0; i < kSegments; ++i) {
    float* keys = memory + size_t(i) * kSegment * s.width;
    float* values = memory + s.tile() + size_t(i) * kSegment * s.padded;
    for_pieces<C>(a, it, base + i * kSegment, all, [&](int at, const C* k, const C* v, int, int count) {
      for (int d = 0; d < s.width; ++d) widen_row(k + d * bs, keys + d * kSegment + at, count);
      for (int j = 0; j < count; ++j) widen_row(v + j * s.width, values + (at + j) * s.padded, s.width);
      if constexpr (kScaled<C>) {
        copy_scales(k, s.width, bs, count, scales + i * kSegment + at);
        copy_scales(v, s.width, bs, count, scales + kTile + i * kSegment + at);
      }
    });
    wide.keys[i] = keys, wide.values[i] = values;
  }
  return wide;
}

// `count` tokens of a latent's rows from `offset` of a block on, each column sixteen floats behind the one before. In eight
// bits the columns behind the values are not codes.
template <class T, class C>
inline void widen_latent(const Shape& s, const C* cells, int block_size, int offset, int count, float* keys) {
  const int coded = kScaled<C> ? s.values : s.width;
  for (int d = 0; d < coded; ++d) widen_row(cells + d * block_size + offset, keys + d * kSegment, count);
  if constexpr (kScaled<C>) {
    C* const block = const_cast<C*>(cells);
    const float* scales = scales_of(block, coded, block_size) + offset;
    for (int d = 0; d < coded; ++d)
      for (int j = 0; j < count; ++j) keys[d * kSegment + j] *= scales[j] * Codes<C>::unit;
    const T* exact = exact_of<T>(block, coded, block_size) + offset;
    for (int d = coded; d < s.width; ++d) widen_row(exact + (d - coded) * block_size, keys + d * kSegment, count);
  }
}

// A tile in float32 whose values are the leading elements of its keys. What no query sees is zero.
template <class T, class C>
inline Tile<float> latent_tile(const AttentionArgs& a, const AttentionItem& it, const Shape& s, int base, Span all,
                               float* memory) {
  Tile<float> wide;
  wide.k_stride = kSegment, wide.v_stride = s.padded_values;
  const int bs = a.cache.block_size;
  for (int i = 0; i < kSegments; ++i) {
    float* keys = memory + size_t(i) * kSegment * s.width;
    float* values = memory + s.tile() + size_t(i) * kSegment * s.padded_values;
    wide.keys[i] = keys, wide.values[i] = values;
    const int token = base + i * kSegment;
    if (token < all.begin || token + kSegment > all.end)
      __builtin_memset(keys, 0, size_t(kSegment) * size_t(s.width) * sizeof(float));
    for_pieces<C>(a, it, token, all, [&](int at, const C* k, const C*, int offset, int count) {
      widen_latent<T>(s, k, bs, offset, count, keys + at);
    });
    for (int d = 0; d < s.values; ++d)
      for (int j = 0; j < kSegment; ++j) values[j * s.padded_values + d] = keys[d * kSegment + j];
  }
  return wide;
}

template <class C>
void attend_tile(const AttentionArgs& a, const AttentionItem& it, const Shape& s, const float* q, const State& st,
                 float* scores, const Tile<C>& tile, const float* scales, int base, Span all) {
  const int lo = all.begin > base ? all.begin - base : 0;
  const int hi = all.end < base + kTile ? all.end - base : kTile;
  const int segments = int(round_up((hi + kSegment - 1) / kSegment, kScoreSegments));
  for_row_groups(s.rows, [&](int first, auto count) {
    constexpr int R = decltype(count)::value;
    score_rows<C, R>(q + first * s.padded, s.padded, tile.keys, segments, s.width, tile.k_stride,
                     scores + first * kTile);
  });
  for (int r = 0; r < s.rows; ++r) {
    Span span = row_span(a, it, r / s.group);
    soften(a, scores + r * kTile, scales, st.o + r * s.padded_values, st.m[r], st.l[r], span.begin - base,
           span.end - base, s.padded_values);
  }
  for_row_groups(s.rows, [&](int first, auto count) {
    constexpr int R = decltype(count)::value;
    value_rows<C, R>(st.o + first * s.padded_values, s.padded_values, scores + first * kTile, tile.values,
                     tile.v_stride, s.values, lo, hi);
  });
}

// Walks the chunks of an item; `tiles(chunk, part)` adds the keys of one to a cleared state.
template <class T, class F>
inline void for_chunks(const AttentionArgs& a, const AttentionItem& it, const Shape& s, float* states, F&& tiles) {
  State total = state_at(states, s), part = state_at(it.partial ? it.partial : states + s.state(), s);
  if (!it.partial) clear(total, s);
  for (int chunk = it.chunk; chunk < it.chunk_end; ++chunk) {
    clear(part, s);
    tiles(chunk, part);
    if (!it.partial) fold(total, part, s);
  }
  if (!it.partial) finish<T>(a, it, total, s);
}

// All keys that some row of an item sees.
inline Span item_span(const AttentionArgs& a, const AttentionItem& it) {
  return {row_span(a, it, 0).begin, row_span(a, it, it.tokens - 1).end};
}

// Queries and outputs are T, cells of the cache C.
template <class T, class C>
struct AttendVectors {
  using Out = T;
  struct Mode {};  // lives as long as an item or a merge of its parts

  // Query rows (tokens times grouped heads) of one item: enough to reuse each key and value from registers.
  static int rows(const AttentionArgs&) { return 32; }

  // Floats for both states, queries, scores, and a tile of K and V in float32.
  static size_t scratch(const Shape& s) {
    return 2 * s.state() + size_t(s.rows) * size_t(s.padded + kTile) + 2 * s.tile();
  }

  static void run(const AttentionArgs& a, const AttentionItem& it, const AttentionItem*, const Shape& s,
                  float* scratch) {
    float* q = scratch;
    float* scores = q + size_t(s.rows) * s.padded;
    float* wide = scores + size_t(s.rows) * kTile;
    const float scale = a.softcap > 0.0f ? a.scale / a.softcap : a.scale * kLog2e;
    const int64_t first = a.query_start[it.sequence] + it.token;
    for (int r = 0; r < s.rows; ++r) {
      const int head = it.kv_head * s.group + r % s.group;
      float* row = q + r * s.padded;
      widen_row(static_cast<const T*>(a.q) + (first + r / s.group) * a.q_stride + head * s.width, row, s.width);
      for (int i = 0; i < s.width; ++i) row[i] *= scale;
    }
    const Span all = item_span(a, it);
    alignas(64) float memory[2 * kTile];
    float* scales = kScaled<C> ? memory : nullptr;
    for_chunks<T>(a, it, s, wide + 2 * s.tile(), [&](int chunk, const State& part) {
      for (int base = chunk * kChunk; base < (chunk + 1) * kChunk; base += kTile) {
        if (base + kTile <= all.begin || base >= all.end) continue;
        if (s.within_keys) {
          attend_tile<float>(a, it, s, q, part, scores, latent_tile<T, C>(a, it, s, base, all, wide), nullptr, base, all);
          continue;
        }
        if (a.cache.block_size < kSegment) {
          const Tile<float> found = gather_tile<C>(a, it, s, base, all, wide, scales);
          attend_tile<float>(a, it, s, q, part, scores, found, scales, base, all);
          continue;
        }
        const Tile<C> found = find_tile<C>(a, it, s, base, all, scales);
        if (sizeof(C) < sizeof(float) && s.rows > 2 * kScoreRows)
          attend_tile<float>(a, it, s, q, part, scores, widen_tile(found, s, wide), scales, base, all);
        else
          attend_tile<C>(a, it, s, q, part, scores, found, scales, base, all);
      }
    });
  }
};

template <class T, class C>
struct Attend : AttendVectors<T, C> {};

}  // namespace
}  // namespace octavo
