// Products with quantised weights in tile registers: x in tiles of sixteen rows, weights in tiles of a panel's sixteen
// columns. Codes of int8 are such tiles as they stand; others become bf16 (pair_dot.h), a segment of some panels at a time.
//
// A tile is 64 bytes of the depth deep, or less where groups are shorter. Sums go to memory after each segment; that order
// is the same for all numbers of rows.
#pragma once

#include "pair_dot.h"
#include "products.h"
#include "tile.h"

namespace octavo {
namespace {

// Elements of tiles if codes stay integers.
struct IntegerTiles : IntegerDotOfAnyWidth {};

template <class Dot>
struct TileShape {
  static constexpr int64_t item = sizeof(typename Dot::X);
  int64_t bytes;  // of the depth in a tile
  int64_t depth;

  explicit TileShape(const QuantisedArgs& a) : bytes(64) {
    while (a.depth * item % bytes || (a.groups > 1 && a.group * item % bytes)) bytes /= 2;
    depth = bytes / item;
  }
  int64_t size() const { return kTileSide * bytes; }

  // Rows of x lie in blocks of sixteen: tiles, then what belongs to each row.
  static size_t packed_row(const QuantisedArgs& a) {
    return size_t(round_up(a.depth * item, 64)) + (Dot::integers ? integer_row_tail(a) : 0);
  }
  static char* block(const QuantisedArgs& a, const void* packed, int64_t t) {
    return static_cast<char*>(const_cast<void*>(packed)) + t / kTileSide * kTileSide * int64_t(packed_row(a));
  }
  static IntegerRow integers(const QuantisedArgs& a, const void* packed, int64_t t) {
    const int64_t codes = kTileSide * round_up(a.depth * item, 64), tail = int64_t(integer_row_tail(a));
    return integer_row(a, block(a, packed, t) + codes + t % kTileSide * tail);
  }
};

// Sums of A x B tiles, [A][B][16][16], of which A < 2 or B < 4.
template <class Dot, int A, int B>
inline void multiply_tiles(const char* x, int64_t x_block, const Panels& w, const TileShape<Dot>& tile, int64_t steps,
                           float* sums) {
  const uint8_t* codes = w.codes;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (A == 2 || B == 4) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < steps; ++i, x += tile.size(), codes += w.step * tile.bytes / 4) {
#define OCTAVO_MULTIPLY(sum, rows, columns)         \
  if constexpr (Dot::integers)                      \
    _tile_dpbsud(sum, rows, columns);               \
  else                                              \
    _tile_dpbf16ps(sum, rows, columns)
    _tile_loadd(4, x, tile.bytes);
    _tile_loadd(6, codes, w.step);
    OCTAVO_MULTIPLY(0, 4, 6);
    _tile_loadd(7, codes + w.stride, w.step);
    OCTAVO_MULTIPLY(1, 4, 7);
    if constexpr (A == 2) {
      _tile_loadd(5, x + x_block, tile.bytes);
      OCTAVO_MULTIPLY(2, 5, 6);
      OCTAVO_MULTIPLY(3, 5, 7);
    }
    if constexpr (B == 4) {
      _tile_loadd(6, codes + 2 * w.stride, w.step);
      OCTAVO_MULTIPLY(2, 4, 6);
      _tile_loadd(7, codes + 3 * w.stride, w.step);
      OCTAVO_MULTIPLY(3, 4, 7);
    }
#undef OCTAVO_MULTIPLY
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kTileSums, 64);
  if constexpr (A == 2 || B == 4) {
    _tile_stored(2, sums + 2 * kTileSums, 64);
    _tile_stored(3, sums + 3 * kTileSums, 64);
  }
  tile_fence();
}

template <class T, class Dot>
struct TileProduct {
  using Shape = TileShape<Dot>;
  using Rows = BlockRows<Dot>;
  static constexpr size_t totals = size_t(kQuantisedRows * kPanelColumns) * sizeof(float);

  static LinearPlan plan(const QuantisedArgs& a) {
    const size_t unpacked = Dot::unpacks ? size_t(Dot::segment / Dot::depth * kPanels * Unpacked<Dot>::bytes) : 0;
    return {Shape::packed_row(a), 0, kQuantisedRows, kQuantisedColumns, totals + unpacked};
  }

  static void pack(const QuantisedArgs& a, void* packed, int64_t begin, int64_t end, float* memory) {
    const Shape tile(a);
    for (int64_t t = begin; t < end; ++t) {
      auto* rows = reinterpret_cast<typename Dot::X*>(Shape::block(a, packed, t));
      auto at = [&](int64_t k) { return rows + k / tile.depth * kTileSide * tile.depth + t % kTileSide * tile.depth; };
      if constexpr (Dot::integers) {
        const int8_t* codes = encode_integers<T>(a, t, Shape::integers(a, packed, t), memory);
        for (int64_t k = 0; k < a.depth; k += tile.depth) __builtin_memcpy(at(k), codes + k, size_t(tile.depth));
      } else {
        place_ordered(a, t, tile.depth, at);
      }
    }
  }

  static void run(const QuantisedArgs& a, const LinearBlock& b, void* scratch) {
    const Shape tile(a);
    const int64_t rows = b.row_end - b.row;
    const int tall = rows < kTileSide ? int(rows) : kTileSide;
    TileConfig config(tall, tall);
    config.row_bytes[4] = config.row_bytes[5] = uint16_t(tile.bytes);
    config.rows[6] = config.rows[7] = uint8_t(tile.bytes / 4);
    _tile_loadconfig(&config);
    float* sums = static_cast<float*>(scratch);
    uint8_t* memory = reinterpret_cast<uint8_t*>(sums) + totals;
    for (int64_t n = b.column; n < b.column_end; n += kPanelColumns) {
      const Rows block(a, b.row, sums, n / kPanel);
      __builtin_memset(sums, 0, size_t(rows * kPanelColumns) * sizeof(float));
      block.for_segments([&](const Part& s) {
        if (rows <= kTileSide)
          add<1, 4>(block, b.row, rows, 0, s, tile, memory);
        else
          for (int64_t c = 0; c < kPanels; c += 2) add<2, 2>(block, b.row, rows, c, s, tile, memory);
      });
      store_totals<T>(a, sums, b.row, b.row_end, n);
    }
    _tile_release();
  }

 private:
  template <int A, int B>
  static void add(const Rows& block, int64_t t, int64_t rows, int64_t c, const Part& s, const Shape& tile,
                  uint8_t* memory) {
    Panels w = block.panels(c, s);
    if constexpr (Dot::unpacks) {
      const int64_t stride = (s.end - s.begin) / Dot::depth * Unpacked<Dot>::bytes;
      for (int i = 0; i < B; ++i) unpack<Dot>(w, i, s.end - s.begin, memory + i * stride);
      w.codes = memory, w.stride = stride, w.step = Unpacked<Dot>::bytes;
      tile_fence();
    }
    const int64_t steps = (s.end - s.begin) / tile.depth, x_block = kTileSide * int64_t(Shape::packed_row(block.a));
    alignas(64) float sums[4 * kTileSums];
    for (int64_t r = 0; r < rows; r += A * kTileSide) {
      const char* x = Shape::block(block.a, block.a.x, t + r) + s.begin / tile.depth * tile.size();
      const int64_t left = rows - r < A * kTileSide ? rows - r : A * kTileSide;
      if (left > (A - 1) * kTileSide)
        multiply_tiles<Dot, A, B>(x, x_block, w, tile, steps, sums);
      else
        multiply_tiles<Dot, 1, B>(x, x_block, w, tile, steps, sums);
      for (int64_t i = 0; i < left; i += kTileSide)
        for (int j = 0; j < B; ++j)
          finish(block, t, r + i, left - i < kTileSide ? left - i : kTileSide, c + j, s,
                 sums + (i / kTileSide * B + j) * kTileSums);
    }
  }

  // A tile of sums: up to sixteen rows of panel c.
  static void finish(const Rows& block, int64_t t, int64_t r, int64_t rows, int64_t c, const Part& s, const float* sums) {
    float* out = block.totals + r * kPanelColumns + c * kPanel;
    const float* scales = block.scales(c, s.group);
    if constexpr (Dot::integers) {
      const uint8_t* zeros = block.zeros(c, s.group);
      for (int64_t i = 0; i < rows; ++i, sums += kTileSide, out += kPanelColumns) {
        alignas(64) int32_t whole[kPanel];
        __builtin_memcpy(whole, sums, sizeof whole);
        const IntegerRow row = Shape::integers(block.a, block.a.x, t + r + i);
        add_integers(whole, zeros, scales, row.sums[s.group], row.scales[s.group / block.a.x_groups], out);
      }
    } else {
      const Vec scale = vload(scales) * vset(code_unit(Dot::codes));
      for (int64_t i = 0; i < rows; ++i, sums += kTileSide, out += kPanelColumns)
        vstore(out, vfma(vload(sums), scale, vload(out)));
    }
  }
};

template <WeightCodes kCodes, bool kZeros>
struct GivenProduct<bf16, kCodes, kZeros> {
  using type = TileProduct<bf16, PairDot<kCodes, kZeros>>;
};
template <class T>
struct IntegerProduct<T, W> {
  using type = TileProduct<T, IntegerTiles>;
};

}  // namespace
}  // namespace octavo
