// bf16 attention in tile registers, for decode and prefill alike: scores are q . K, and outputs weights . V with the
// weights rounded to bf16. K and V of a tile of keys are first put into pairs; many rows of queries share that.
//
// A row's sums do not depend on the rows beside it, and keys that it does not see add zeros. Denormals are flushed
// throughout, as tiles do: whether a tile of unseen keys was added leaves no trace.
#pragma once

#include "attention_kernel.h"
#include "tile.h"

namespace octavo {
namespace {

class FlushDenormals {
 public:
  FlushDenormals() { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  const unsigned before_ = _mm_getcsr();
};

// 2^x by the series around 0 (2.4e-6 off at most); zero below 2^-126; NaN stays NaN.
inline Vec exp2_series(Vec x) {
  const Vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), f = x - n;
  Vec p = vset(1.333355815e-3f);
  p = vfma(p, f, vset(9.618129108e-3f));
  p = vfma(p, f, vset(5.550410866e-2f));
  p = vfma(p, f, vset(2.402265070e-1f));
  p = vfma(p, f, vset(6.931471806e-1f));
  p = vfma(p, f, vset(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, vset(-126.0f), _CMP_NLT_UQ), p, n);
}

// Lanes [lo, hi) of sixteen.
inline Mask lanes(int lo, int hi) {
  auto below = [](int n) { return n <= 0 ? 0u : n >= W ? 0xffffu : (1u << n) - 1; };
  return Mask(below(hi) & ~below(lo));
}

// Sixteen values from each of two places.
inline UVec two_rows(const bf16* first, const bf16* second) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
// Codes are exact in bf16.
inline UVec two_rows(const i8* first, const i8* second) { return narrow_both(vload(first), vload(second)); }
// As `vload` has them, 2^8 times too small, but without the way through float32: three bits of the mantissa and four of
// the exponent move into place. Codes without a leading one come from a table.
inline UVec two_rows(const f8* first, const f8* second) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second));
  const UVec codes = _mm512_cvtepu8_epi16(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
  const UVec sign = uand(_mm512_slli_epi16(codes, 8), _mm512_set1_epi16(short(0x8000)));
  const UVec shifted = uand(_mm512_slli_epi16(codes, 4), _mm512_set1_epi16(0x07f0));
  const UVec size = _mm512_add_epi16(shifted, _mm512_set1_epi16((127 - 7 - 8) << 7));
  const UVec small = _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0x3700, 0x3780, 0x37c0, 0x3800, 0x3820, 0x3840, 0x3860));
  const __mmask32 tiny = _mm512_testn_epi16_mask(codes, _mm512_set1_epi16(0x78));
  return uor(sign, _mm512_mask_permutexvar_epi16(size, tiny, codes, small));
}

// Where a segment lies: the block's K and V of one head, and where in them it begins.
template <class C>
struct Segment {
  const C *k, *v, *keys, *values;
  int offset;
  Segment(const AttentionArgs& a, const AttentionItem& it, int token) : offset(token % a.cache.block_size) {
    k = static_cast<const C*>(a.cache.data) +
        int64_t(a.tables[it.sequence * a.table_stride + token / a.cache.block_size]) * a.cache.block_stride +
        it.kv_head * a.cache.head_stride;
    v = k + a.cache.kv_stride;
    keys = k + offset, values = v + offset * a.head_dim;
  }
};

// The keys [token, end) of an item, brought into the cache line by line: blocks lie on pages of their own, which the
// hardware does not foresee.
template <class C>
struct Ahead {
  static constexpr int kLine = 64 / sizeof(C);

  const AttentionItem* item = nullptr;
  int token = 0, end = 0, line = 0;

  void fetch(const AttentionArgs& a, int lines) {
    if (a.cache.block_size < kSegment) return fetch_small(a, lines);
    const int of_segment = a.head_dim * kSegment / kLine + kScaled<C>;  // in blocks of 16, scales are the next line
    while (lines > 0 && token < end) {
      const Segment<C> at(a, *item, token);
      for (; lines > 0 && line < of_segment; --lines, ++line) {
        __builtin_prefetch(at.keys + line * (kLine / kSegment) * a.cache.block_size, 0, 2);
        __builtin_prefetch(at.values + line * kLine, 0, 2);
      }
      if (line == of_segment) line = 0, token += kSegment;
    }
  }
  // Of blocks that are smaller than a segment.
  [[gnu::noinline]] void fetch_small(const AttentionArgs& a, int lines) {
    const int of_block = (a.head_dim * a.cache.block_size + kLine - 1) / kLine;
    for (; lines > 0 && token < end; line = 0, token += a.cache.block_size) {
      const Segment<C> at(a, *item, token);
      for (; lines > 0 && line < of_block; --lines, ++line) {
        __builtin_prefetch(at.keys + line * kLine, 0, 2);
        __builtin_prefetch(at.values + line * kLine, 0, 2);
      }
      if (line < of_block) return;
    }
  }
};

template <class C>
struct TileAttention {
  // Keys of a tile from `base` that a query sees.
  struct Keys {
    int base, lo, hi;
    bool none(int segment) const { return (segment + 1) * kSegment <= lo || segment * kSegment >= hi; }
  };

  static constexpr int kKeys = 128, kRows = 2 * kTileSide;  // of a tile; rows that multiply at a time
  static constexpr int kLines = 16;  // of K and of V, to expect beside a step
  static constexpr int64_t kTileSize = kTileSide * kTileDepth;

  const AttentionArgs& a;
  const AttentionItem& it;
  const AttentionItem* next;  // null: none
  const Shape& s;
  const Span all;
  const int steps;  // of the head dimension
  const float scale;
  float* scores;  // [kRows][kKeys]
  bf16 *q, *weights, *keys, *values;

  static int head_steps(int width) { return (width + kTileDepth - 1) / kTileDepth; }
  static int64_t q_size(const Shape& s) { return round_up(s.rows, kRows) * head_steps(s.width) * kTileDepth; }
  static int64_t keys_size(const Shape& s) { return int64_t(kKeys) * head_steps(s.width) * kTileDepth; }
  // Two pairs of tiles across the head at least.
  static int64_t values_size(const Shape& s) { return int64_t(kKeys) * (s.width > 64 ? s.width : 64); }

  static size_t scratch(const Shape& s) {
    return size_t(kRows * kKeys) + size_t(q_size(s) + kRows * kKeys + keys_size(s) + values_size(s)) / 2;
  }

  TileAttention(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* following,
                const Shape& shape, float* memory)
      : a(args), it(item), next(following), s(shape), all(item_span(args, item)), steps(head_steps(shape.width)),
        scale(args.softcap > 0.0f ? args.scale / args.softcap : args.scale * kLog2e), scores(memory),
        q(reinterpret_cast<bf16*>(scores + kRows * kKeys)), weights(q + q_size(s)), keys(weights + kRows * kKeys),
        values(keys + keys_size(s)) {
    const int64_t first = a.query_start[it.sequence] + it.token;
    for (int r = 0; r < s.rows; ++r) {
      const bf16* in = static_cast<const bf16*>(a.q) + (first + r / s.group) * a.q_stride +
                       (it.kv_head * s.group + r % s.group) * s.width;
      bf16* out = q + r / kTileSide * steps * kTileSize + r % kTileSide * kTileDepth;
      for (int i = 0; i < s.width; i += kTileDepth, out += kTileSize)
        _mm512_store_si512(out, _mm512_maskz_loadu_epi16(first_halves(s.width - i), in + i));
    }
  }

  // Adds the keys [base, base + kKeys) to the state.
  void add(const State& st, int base) {
    const Keys seen = {base, all.begin > base ? all.begin - base : 0, all.end < base + kKeys ? all.end - base : kKeys};
    const bool shared = s.rows > kRows;
    if constexpr (kScaled<C>) find_scales(seen);
    if (shared) {
      const int across = s.width / kTileSide;
      for (int i = seen.lo / kTileDepth * 2; i * kSegment < round_up(seen.hi, kTileDepth); ++i) {
        pack_keys(seen, i, keys + i * steps * kTileSize);
        pack_values(seen, i, 0, across, values + i / 2 * across * kTileSize);
      }
      tile_fence();
    }
    look_ahead(base + kKeys);
    for (int row = 0; row < s.rows; row += kRows) {
      const int count = s.rows - row < kRows ? s.rows - row : kRows;
      const int last = row_span(a, it, (row + count - 1) / s.group).end - base;  // that the block's last row sees
      if (last <= 0) continue;
      configure(count);
      const Keys block = {base, seen.lo, last < seen.hi ? last : seen.hi};
      if (count > kTileSide)
        shared ? add_rows<2, true>(st, block, row, count) : add_rows<2, false>(st, block, row, count);
      else
        shared ? add_rows<1, true>(st, block, row, count) : add_rows<1, false>(st, block, row, count);
    }
  }

 private:
  // To the tile after this one, or the next item's first.
  void look_ahead(int base) {
    const int limit = it.chunk_end * kChunk < all.end ? it.chunk_end * kChunk : all.end;
    if (base < limit) {
      ahead_ = {&it, base, limit < base + kKeys ? limit : base + kKeys, 0};
    } else if (next) {
      const Span span = item_span(a, *next);
      const int first = next->chunk * kChunk > span.begin ? next->chunk * kChunk : span.begin / kSegment * kSegment;
      const int end = first / kKeys * kKeys + kKeys;
      ahead_ = {next, first, span.end < end ? span.end : end, 0};
    }
  }

  int configured_ = 0;
  Ahead<C> ahead_;
  // Of a tile's keys, `scale` included, and of its values; 0 for what no query sees.
  alignas(64) float key_scales_[kScaled<C> ? kKeys : 1], value_scales_[kScaled<C> ? kKeys : 1];

  void find_scales(const Keys& seen) {
    for (int i = 0; i < kKeys / kSegment; ++i) {
      float *of_keys = key_scales_ + i * kSegment, *of_values = value_scales_ + i * kSegment;
      if (seen.none(i)) {
        vstore(of_keys, vset(0.0f)), vstore(of_values, vset(0.0f));
        continue;
      }
      const int bs = a.cache.block_size;
      if (bs < kSegment) {
        vstore(of_keys, vset(0.0f)), vstore(of_values, vset(0.0f));
        for_pieces<C>(a, it, seen.base + i * kSegment, all, [&](int at, const C* k, const C* v, int, int count) {
          copy_scales(k, s.width, bs, count, of_keys + at), copy_scales(v, s.width, bs, count, of_values + at);
        });
      } else {
        const Segment<C> at(a, it, seen.base + i * kSegment);
        load_scales(at.k, s.width, bs, at.offset, of_keys);
        load_scales(at.v, s.width, bs, at.offset, of_values);
      }
      const Mask kept = lanes(seen.lo - i * kSegment, seen.hi - i * kSegment);
      vstore(of_keys, vselect(kept, vload(of_keys) * vset(scale), vset(0.0f)));
      vstore(of_values, vselect(kept, vload(of_values), vset(0.0f)));
    }
  }

  // Raw scores of a vector of keys, scaled.
  Vec scaled(const float* row, int c) const {
    if constexpr (kScaled<C>)
      return vload(row + c * W) * vload(key_scales_ + c * W);
    else
      return vload(row + c * W) * vset(scale);
  }
  // Weights of a vector of keys as their values want them.
  Vec weighted(Vec p, [[maybe_unused]] int c) const {
    if constexpr (kScaled<C>)
      return p * vload(value_scales_ + c * W);
    else
      return p;
  }

  void configure(int rows) {
    if (rows == configured_) return;
    const TileConfig config(rows < kTileSide ? rows : kTileSide, rows > kTileSide ? rows - kTileSide : kTileSide);
    _tile_loadconfig(&config);
    configured_ = rows;
  }

  // A segment of K as [step][16 pairs of the head][16 keys][2]. What no query sees is left out: it is masked.
  void pack_keys(const Keys& seen, int segment, bf16* out) const {
    if (seen.none(segment)) return;
    const int bs = a.cache.block_size;
    if (bs < kSegment) return pack_small_keys(seen, segment, out);
    put_keys(Segment<C>(a, it, seen.base + segment * kSegment).keys, bs, out);
  }
  void put_keys(const C* k, int bs, bf16* out) const {
    if (!kScaled<C> && bs == kSegment) {
      for (int d = 0; d < s.width; d += 2, out += kTileDepth)
        _mm512_store_si512(out, interleave(_mm512_loadu_si512(k + d * kSegment)));
    } else {
      for (int d = 0; d < s.width; d += 2, out += kTileDepth)
        _mm512_store_si512(out, interleave(two_rows(k + d * bs, k + (d + 1) * bs)));
    }
    for (int d = s.width; d < steps * kTileDepth; d += 2, out += kTileDepth) _mm512_store_si512(out, uset(0));
  }
  // Of blocks that are smaller than a segment: put together first, unseen ones as zeros.
  [[gnu::noinline]] void pack_small_keys(const Keys& seen, int segment, bf16* out) const {
    alignas(64) C gathered[kMaxHeadDim * kSegment];
    __builtin_memset(gathered, 0, sizeof(C) * size_t(s.width) * kSegment);
    for_pieces<C>(a, it, seen.base + segment * kSegment, all, [&](int at, const C* k, const C*, int, int count) {
      count == 8 ? spread<8>(k, gathered + at) : spread<4>(k, gathered + at);
    });
    put_keys(gathered, kSegment, out);
  }
  template <int count>
  void spread(const C* k, C* out) const {
    for (int d = 0; d < s.width; ++d) __builtin_memcpy(out + d * kSegment, k + d * count, sizeof(C) * count);
  }

  // A segment of V, tiles [first, last) of the head: half of [tile][16 pairs of keys][16][2]. What no query sees is zero.
  void pack_values(const Keys& seen, int segment, int first, int last, bf16* out) const {
    out += segment % 2 * (kTileSize / 2);
    if (seen.none(segment)) {  // the table's entry may not exist
      for (int i = 0; i < last - first; ++i)
        for (int j = 0; j < kSegment; j += 2) _mm512_store_si512(out + i * kTileSize + j * kTileSide, uset(0));
      return;
    }
    if (a.cache.block_size < kSegment) return pack_small_values(seen, segment, first, last, out);
    const C* v = Segment<C>(a, it, seen.base + segment * kSegment).values + first * kTileSide;
    put_values(seen, segment, last - first, out, [&](int j) { return v + j * s.width; });
  }
  template <class Row>
  void put_values(const Keys& seen, int segment, int count, bf16* out, Row&& row) const {
    constexpr __mmask32 evens = 0x55555555u, odds = 0xaaaaaaaau;
    for (int j = 0; j < kSegment; j += 2) {
      const int key = segment * kSegment + j;
      const __mmask32 keep = (key >= seen.lo && key < seen.hi ? evens : 0) |
                             (key + 1 >= seen.lo && key + 1 < seen.hi ? odds : 0);
      const C *even = row(j), *odd = row(j + 1);
      for (int i = 0; i < count; ++i)
        _mm512_store_si512(out + i * kTileSize + j * kTileSide, interleave(two_rows(even + i * W, odd + i * W), keep));
    }
  }
  // Of blocks that are smaller than a segment: rows that no query sees are others'.
  [[gnu::noinline]] void pack_small_values(const Keys& seen, int segment, int first, int last, bf16* out) const {
    const C *rows[kSegment] = {}, *any = nullptr;
    for_pieces<C>(a, it, seen.base + segment * kSegment, all, [&](int at, const C*, const C* v, int, int count) {
      any = v + first * kTileSide;
      for (int j = 0; j < count; ++j) rows[at + j] = any + j * s.width;
    });
    put_values(seen, segment, last - first, out, [&](int j) { return rows[j] ? rows[j] : any; });
  }

  // Rows [row, row + count). K and V are packed already where blocks of rows share them, else bit by bit when they are
  // used, into little memory.
  template <int A, bool shared>
  void add_rows(const State& st, const Keys& seen, int row, int count) {
    auto beside = [&] { ahead_.fetch(a, kLines); };
    const int begin = seen.lo / kTileDepth, end = (seen.hi + kTileDepth - 1) / kTileDepth;  // steps of 32 keys
    const bf16* queries = q + row / kTileSide * steps * kTileSize;
    for (int i = 2 * begin; i < 2 * end; i += 2) {
      bf16* k = keys + (shared ? i : i % 4) * steps * kTileSize;
      if (!shared) {
        pack_keys(seen, i, k);
        pack_keys(seen, i + 1, k + steps * kTileSize);
        tile_fence();
      }
      multiply<A, 2>({queries, queries + steps * kTileSize, kTileSize, 64}, {k, k + steps * kTileSize, kTileSize, 64},
                     steps, {scores + i * kSegment, kTileSide * kKeys, kSegment, kKeys * 4}, true, beside);
    }
    tile_fence();
    for (int r = 0; r < count; ++r) {
      const Span span = row_span(a, it, (row + r) / s.group);
      const int lo = span.begin - seen.base, hi = span.end - seen.base, i = row + r;
      float* o = st.o + i * s.padded;
      bf16* out = weights + r / kTileSide * (kKeys / kTileDepth) * kTileSize + r % kTileSide * kTileDepth;
      if (begin == 0 && end == kKeys / kTileDepth && lo <= 0 && hi >= kKeys)
        soften<true>(scores + r * kKeys, out, o, st.m[i], st.l[i], 0, end, 0, kKeys);
      else
        soften<false>(scores + r * kKeys, out, o, st.m[i], st.l[i], begin, end, lo, hi);
    }
    tile_fence();
    const bf16* w = weights + begin * kTileSize;
    const int across = s.width / kTileSide, pitch = shared ? across : 2;
    for (int i = 0; i < across; i += 2) {
      bf16* v = values + (shared ? i : i % 4 * (kKeys / kTileDepth)) * kTileSize;
      if (!shared) {
        for (int j = 2 * begin; j < 2 * end; ++j)
          pack_values(seen, j, i, i + 2 < across ? i + 2 : across, v + j / 2 * pitch * kTileSize);
        tile_fence();
      }
      v += begin * pitch * kTileSize;
      const TilePair left = {w, w + kKeys / kTileDepth * kTileSize, kTileSize, 64};
      const TilePair right = {v, v + kTileSize, pitch * kTileSize, 64};
      const TileSums sums = {st.o + row * s.padded + i * kTileSide, int64_t(kTileSide) * s.padded, kTileSide,
                             s.padded * 4};
      if (i + 1 < across)
        multiply<A, 2>(left, right, end - begin, sums, false, beside);
      else
        multiply<A, 1>(left, right, end - begin, sums, false, beside);
    }
    tile_fence();
  }

  // Turns a row of scores into weights relative to the new maximum and rescales the row's state; keys in steps of 32.
  template <bool whole>
  void soften(float* row, bf16* out, float* o, float& m, float& l, int begin, int end, int lo, int hi) const {
    Vec top = vset(kNoScore), v[whole ? kKeys / W : 1];
#pragma GCC unroll 8
    for (int c = whole ? 0 : 2 * begin; c < (whole ? kKeys / W : 2 * end); ++c) {
      Vec x = scaled(row, c);
      if (a.softcap > 0.0f) x = tanhv(x) * vset(a.softcap * kLog2e);
      if (!whole) x = vselect(lanes(lo - c * W, hi - c * W), x, vset(-__builtin_inff()));
      if (whole)
        v[c] = x;
      else
        vstore(row + c * W, x);
      top = vmax(top, x);
    }
    const float tile_max = vmax_all(top), new_m = m > tile_max ? m : tile_max;
    Vec sum = vset(0.0f);
#pragma GCC unroll 4
    for (int c = whole ? 0 : 2 * begin; c < (whole ? kKeys / W : 2 * end); c += 2) {
      const Vec low = exp2_series((whole ? v[c] : vload(row + c * W)) - vset(new_m));
      const Vec high = exp2_series((whole ? v[c + 1] : vload(row + c * W + W)) - vset(new_m));
      _mm512_store_si512(out + c / 2 * kTileSize, narrow_both(weighted(low, c), weighted(high, c + 1)));
      sum = sum + low;
      sum = sum + high;
    }
    if (new_m != m) {
      const Vec old_weight = exp2_series(vset(m - new_m));
      for (int i = 0; i < s.padded; i += W) vstore(o + i, vload(o + i) * old_weight);
      l *= _mm512_cvtss_f32(old_weight);
      m = new_m;
    }
    l += vsum(sum);
  }
};

// Heads that are not whole tiles wide keep to vectors, and so do values within keys.
template <class C>
struct Attend<bf16, C> {
  using Out = bf16;
  using Mode = FlushDenormals;
  using Tiles = TileAttention<C>;
  using Vectors = AttendVectors<bf16, C>;

  static bool by_tiles(const Shape& s) { return s.width % kTileSide == 0 && !s.within_keys; }

  static int rows(const AttentionArgs& a) { return by_tiles(Shape(a, 1)) ? 128 : Vectors::rows(a); }

  static size_t scratch(const Shape& s) {
    return by_tiles(s) ? 2 * s.state() + Tiles::scratch(s) : Vectors::scratch(s);
  }

  static void run(const AttentionArgs& a, const AttentionItem& it, const AttentionItem* next, const Shape& s,
                  float* scratch) {
    if (!by_tiles(s)) return Vectors::run(a, it, next, s, scratch);
    Tiles tiles(a, it, next, s, scratch);
    for_chunks<bf16>(a, it, s, scratch + Tiles::scratch(s), [&](int chunk, const State& part) {
      for (int base = chunk * kChunk; base < (chunk + 1) * kChunk; base += Tiles::kKeys)
        if (base + Tiles::kKeys > tiles.all.begin && base < tiles.all.end) tiles.add(part, base);
    });
    _tile_release();
  }
};

}  // namespace
}  // namespace octavo
