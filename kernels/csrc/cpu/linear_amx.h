// bf16 products in tile registers. One operand is tiles of rows as they stand (16 rows of 32 values), the other tiles
// of pairs: 16 pairs of values for each of 16 rows.
//
// Few rows of x: the weights are used where they are, x is packed into pairs. Many rows: the weights of 32 columns are
// packed into pairs, x is only copied tile after tile (tile loads from rows far apart are slow, and here repeated).
//
// An output element is one sum over the depth, 32 values at a time, the same in both forms: it depends neither on the
// other rows nor on their number. Where the depth is cut, so that x stays in the cache, the sums wait in float32.
#pragma once

#include "linear_kernel.h"
#include "tile.h"

namespace octavo {
namespace {

constexpr int64_t kPair = 2 * kTileSide;      // rows and columns of a block of four tiles of sums
constexpr int64_t kPairSums = kPair * kPair;  // floats
constexpr int64_t kFewRows = 64;
constexpr int64_t kBlockRows = 512, kBlockColumns = 256;
constexpr int64_t kWholeDepth = 1024, kPartDepth = 512, kSliceDepth = 320;

inline Vec widen_low(UVec pairs) { return from_bits(ushl<16>(pairs)); }
inline Vec widen_high(UVec pairs) { return from_bits(uand(pairs, uset(0xffff0000u))); }
inline Vec lower_halves(UVec halves) { return widen(_mm512_castsi512_si256(halves), bf16{}); }
inline Vec upper_halves(UVec halves) { return widen(_mm512_extracti64x4_epi64(halves, 1), bf16{}); }

// Sums of 32 columns (two tiles, 512 floats apart) by 16 rows of x into the output, with bias and residual.
inline void store_columns(const LinearArgs& a, const float* sums, int64_t t, int64_t n, int64_t n_end) {
  const __mmask32 columns = first_halves(n_end - n);
  const int rows = a.rows - t < kTileSide ? int(a.rows - t) : kTileSide;
  const Vec factor = vset(a.factor);
  UVec v[kTileSide];
  if (a.residual) {
    load_rows(static_cast<const bf16*>(a.residual) + t * a.residual_stride + n, a.residual_stride, rows, n_end - n, v);
    transpose16(v);
  }
  alignas(64) float bias[kPair] = {};
  if (a.bias) {
    const UVec values = _mm512_maskz_loadu_epi16(columns, static_cast<const bf16*>(a.bias) + n);
    vstore(bias, lower_halves(values));
    vstore(bias + W, upper_halves(values));
  }
#pragma GCC unroll 16
  for (int i = 0; i < kTileSide; ++i) {
    const float* pair = sums + i / 8 * 2 * kTileSums + i % 8 * kPair;
    Vec even = vload(pair), odd = vload(pair + W);
    if (a.bias) even = even + vset(bias[2 * i]), odd = odd + vset(bias[2 * i + 1]);
    if (a.residual) even = vfma(factor, even, widen_low(v[i])), odd = vfma(factor, odd, widen_high(v[i]));
    v[i] = interleave(narrow_both(even, odd));
  }
  transpose16(v);
  bf16* out = static_cast<bf16*>(a.out) + t * a.out_stride + n;
  for (int r = 0; r < rows; ++r) _mm512_mask_storeu_epi16(out + r * a.out_stride, columns, v[r]);
}

// Weights of 32 columns on their way into tiles, zeros beyond the matrix.
template <bool pairs>
struct Incoming {
  static constexpr int64_t kTile = kTileSide * kTileDepth, kAhead = 4;  // steps of the depth
  LinearArgs a;
  bf16* copy;
  int64_t n, n_end, k, next = 0, tiles;

  Incoming(const LinearArgs& args, bf16* to, int64_t column, int64_t column_end, int64_t begin, int64_t end)
      : a(args), copy(to), n(column), n_end(column_end), k(begin), tiles((end - begin) / kTileDepth * 2) {}

  void pack(int64_t count) {
    for (; count > 0 && next < tiles; --count, ++next) {
      const int64_t row = n + next % 2 * kTileSide, column = k + next / 2 * kTileDepth;
      const bf16* w = static_cast<const bf16*>(a.weight) + row * a.weight_stride + column;
      UVec v[kTileSide];
      load_rows(w, a.weight_stride, n_end - row, a.depth - column, v);
      for (int i = 0; i < kTileSide; ++i) __builtin_prefetch(w + i * a.weight_stride + kAhead * kTileDepth);
      if (pairs) transpose16(v);
      for (int i = 0; i < kTileSide; ++i) _mm512_store_si512(copy + next * kTile + i * kTileDepth, v[i]);
    }
    tile_fence();
  }
  TilePair from(int64_t depth) const {
    const bf16* first = copy + (depth - k) * kPair;
    return {first, first + kTile, 2 * kTile, 64};
  }
};

// Sums of 32 columns on their way into the output, row by row.
struct Outgoing {
  static constexpr int64_t kAhead = 8;
  const LinearArgs& a;
  const float* sums = nullptr;
  bf16* out = nullptr;
  int64_t t = 0, n = 0, row = 0, rows = 0;
  __mmask32 columns = 0;

  void begin(const float* from, int64_t t_begin, int64_t t_end, int64_t n_begin, int64_t n_end) {
    sums = from, t = t_begin, n = n_begin, row = 0, rows = t_end - t_begin;
    columns = first_halves(n_end - n);
    out = static_cast<bf16*>(a.out) + t * a.out_stride + n;
  }
  void store(int64_t count) {
    for (; count > 0 && row < rows; --count, ++row, out += a.out_stride) {
      const float* p = sums + row / kTileSide * 2 * kTileSums + row % kTileSide * W;
      Vec low = vload(p), high = vload(p + kTileSums);
      __builtin_prefetch(out + kAhead * a.out_stride, 1);
      if (a.bias) add(low, high, 1.0f, static_cast<const bf16*>(a.bias) + n);
      if (a.residual) add(low, high, a.factor, static_cast<const bf16*>(a.residual) + (t + row) * a.residual_stride + n);
      _mm512_mask_storeu_epi16(out, columns, narrow_both(low, high));
    }
  }

 private:
  void add(Vec& low, Vec& high, float factor, const bf16* p) const {
    const UVec values = _mm512_maskz_loadu_epi16(columns, p);
    low = vfma(vset(factor), low, lower_halves(values)), high = vfma(vset(factor), high, upper_halves(values));
  }
};

template <>
struct Linear<bf16> {
  static LinearPlan plan(const LinearArgs& a) {
    const Cuts cuts(a);
    const int64_t panels = cuts.part < cuts.depth ? kBlockColumns / kPair : 2;
    LinearPlan plan = {size_t(cuts.depth) * sizeof(bf16), cuts.depth, kBlockRows, kBlockColumns, 0};
    plan.scratch = size_t(2 * cuts.part * kPair) * sizeof(bf16) + size_t(panels * kBlockRows * kPair) * sizeof(float);
    if (a.rows <= kFewRows) plan.columns = round_up(Linear<f16>::plan(a).columns, kPair);
    return plan;
  }

  // Panels of 16 rows, tile after tile.
  static void pack(const LinearArgs& a, void* packed, int64_t begin, int64_t end) {
    const int64_t depth = round_up(a.depth, kTileDepth);
    for (int64_t t = begin; t < end; t += kTileSide) {
      bf16* panel = static_cast<bf16*>(packed) + t * depth;
      const bf16* x = static_cast<const bf16*>(a.x) + t * a.x_stride;
      for (int64_t k = 0; k < a.depth; k += kTileDepth) {
        UVec v[kTileSide];
        load_rows(x + k, a.x_stride, end - t, a.depth - k, v);
        if (a.rows <= kFewRows) transpose16(v);
        for (int i = 0; i < kTileSide; ++i) _mm512_storeu_si512(panel + k * kTileSide + i * kTileDepth, v[i]);
      }
    }
  }

  static void run(const LinearArgs& a, const LinearBlock& b, void* scratch) {
    const TileConfig config;
    _tile_loadconfig(&config);
    if (a.rows <= kFewRows)
      run_few(a, b, static_cast<bf16*>(scratch));
    else
      run_many(a, b, static_cast<bf16*>(scratch));
    _tile_release();
  }

 private:
  // [2][2][16][16]
  static TileSums block_sums(float* sums) { return {sums, 2 * kTileSums, kTileSums, 64}; }

  static TilePair x_panels(const LinearArgs& a, int64_t t, int64_t k) {
    const int64_t depth = round_up(a.depth, kTileDepth);
    const bf16* x = static_cast<const bf16*>(a.x) + t * depth + k * kTileSide;
    return {x, x + kTileSide * depth, kTileSide * kTileDepth, 64};
  }

  static void run_few(const LinearArgs& a, const LinearBlock& b, bf16* copy) {
    const int64_t steps = (a.depth + kTileDepth - 1) / kTileDepth;
    alignas(64) float sums[kPairSums];
    for (int64_t n = b.column; n < b.column_end; n += kPair) {
      const bf16* w = static_cast<const bf16*>(a.weight) + n * a.weight_stride;
      TilePair weights = {w, w + kTileSide * a.weight_stride, kTileDepth, a.weight_stride * int64_t(sizeof(bf16))};
      if (n + kPair > b.column_end || a.depth % kTileDepth) {
        Incoming<false> padded(a, copy, n, b.column_end, 0, steps * kTileDepth);
        padded.pack(padded.tiles);
        weights = padded.from(0);
      }
      for (int64_t t = b.row; t < b.row_end; t += kPair) {
        const bool two = t + kTileSide < b.row_end;
        if (two)
          multiply<2, 2>(weights, x_panels(a, t, 0), steps, block_sums(sums), true, nothing);
        else
          multiply<2, 1>(weights, x_panels(a, t, 0), steps, block_sums(sums), true, nothing);
        store_columns(a, sums, t, n, b.column_end);
        if (two) store_columns(a, sums + kTileSums, t + kTileSide, n, b.column_end);
      }
    }
  }

  // x of one part of the depth stays in the second-level cache; of that, weights of 32 columns and one slice in the
  // first, while x streams past. While tiles multiply, the sums of the columns before go out and the weights of the
  // columns after come in.
  static void run_many(const LinearArgs& a, const LinearBlock& b, bf16* copy) {
    const Cuts cuts(a);
    const int64_t pairs = (b.row_end - b.row + kPair - 1) / kPair;
    const int64_t panels = (b.column_end - b.column + kPair - 1) / kPair;
    const int64_t parts = (cuts.depth + cuts.part - 1) / cuts.part;
    float* memory = reinterpret_cast<float*>(copy + 2 * cuts.part * kPair);
    auto incoming = [&](int64_t pass) {
      const int64_t k = pass / panels * cuts.part, n = b.column + pass % panels * kPair;
      const int64_t k_end = pass >= panels * parts ? k : k + cuts.part < cuts.depth ? k + cuts.part : cuts.depth;
      return Incoming<true>(a, copy + pass % 2 * cuts.part * kPair, n, b.column_end, k, k_end);
    };
    Outgoing out{a};
    Incoming<true> now = incoming(0);
    now.pack(now.tiles);
    for (int64_t pass = 0; pass < panels * parts; ++pass) {
      Incoming<true> after = incoming(pass + 1);
      const int64_t all_steps = now.tiles / 2, slice = cuts.slice / kTileDepth;
      const int64_t in_share = 1 + after.tiles / ((all_steps + slice - 1) / slice * pairs);
      const int64_t out_share = 1 + out.rows / ((all_steps + slice - 1) / slice * pairs);
      float* panel = memory + (parts > 1 ? pass % panels : pass % 2) * pairs * kPairSums;
      for (int64_t step = 0; step < all_steps; step += slice) {
        const int64_t k = now.k + step * kTileDepth, steps = step + slice < all_steps ? slice : all_steps - step;
        const TilePair weights = now.from(k);
        float* sums = panel;
        for (int64_t t = b.row; t < b.row_end; t += kPair, sums += kPairSums) {
          after.pack(in_share);
          out.store(out_share);
          if (t + kTileSide < b.row_end)
            multiply<2, 2>(x_panels(a, t, k), weights, steps, block_sums(sums), k == 0, nothing);
          else
            multiply<1, 2>(x_panels(a, t, k), weights, steps, block_sums(sums), k == 0, nothing);
        }
      }
      out.store(out.rows);
      if (pass / panels == parts - 1) out.begin(panel, b.row, b.row_end, now.n, b.column_end);
      after.pack(after.tiles);
      now = after;
    }
    out.store(out.rows);
  }

  // The depth in nearly equal parts, and those in nearly equal slices.
  struct Cuts {
    int64_t depth, part, slice;
    explicit Cuts(const LinearArgs& a) : depth(round_up(a.depth, kTileDepth)), part(depth), slice(depth) {
      if (a.rows <= kFewRows) return;
      if (depth > kWholeDepth) part = evenly(depth, kPartDepth);
      slice = evenly(part, kSliceDepth);
    }
    static int64_t evenly(int64_t n, int64_t most) {
      const int64_t parts = (n + most - 1) / most;
      return parts > 1 ? round_up((n + parts - 1) / parts, kTileDepth) : n;
    }
  };
};

}  // namespace
}  // namespace octavo
