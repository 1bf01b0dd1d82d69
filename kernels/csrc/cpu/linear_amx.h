// bf16 products in tile registers. Weights are the left operand as they stand, 16 rows of 32 values; x is packed once a
// call into the right operand's layout: panels of 16 rows, [depth / 2][16 rows][2].
//
// An output element is one sum over the depth, 32 values at a time: it does not depend on the other rows.
#pragma once

#include "linear_kernel.h"

namespace octavo {
namespace {

constexpr int kTileSide = 16, kTileDepth = 32;
constexpr int64_t kPanelStep = kTileSide * kTileDepth;  // elements of a panel that one tile holds

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  TileConfig() {
    for (int i = 0; i < 8; ++i) row_bytes[i] = 64, rows[i] = kTileSide;
  }
};

// 16 x 16 transpose of 32-bit values.
inline void transpose16(UVec v[16]) {
  for (int i = 0; i < 16; i += 4) transpose4(v[i], v[i + 1], v[i + 2], v[i + 3]);
  for (int i = 0; i < 4; ++i) {
    UVec a = v[i], b = v[i + 4], c = v[i + 8], d = v[i + 12];
    UVec ab0 = _mm512_shuffle_i32x4(a, b, 0x44), ab1 = _mm512_shuffle_i32x4(a, b, 0xee);
    UVec cd0 = _mm512_shuffle_i32x4(c, d, 0x44), cd1 = _mm512_shuffle_i32x4(c, d, 0xee);
    v[i] = _mm512_shuffle_i32x4(ab0, cd0, 0x88), v[i + 4] = _mm512_shuffle_i32x4(ab0, cd0, 0xdd);
    v[i + 8] = _mm512_shuffle_i32x4(ab1, cd1, 0x88), v[i + 12] = _mm512_shuffle_i32x4(ab1, cd1, 0xdd);
  }
}

// The weights of a partial tile, padded with zeros.
struct Padded {
  alignas(64) bf16 values[kTileSide][kTileDepth];
  Padded(const bf16* w, int64_t stride, int64_t rows, int64_t depth) {
    const __mmask32 kept = depth >= kTileDepth ? 0xffffffffu : (1u << depth) - 1;
    for (int i = 0; i < kTileSide; ++i)
      _mm512_store_si512(values[i],
                         i < rows ? _mm512_maskz_loadu_epi16(kept, w + i * stride) : _mm512_setzero_si512());
  }
};

// Sums [16 columns][16 rows of x] into the output, with bias and residual.
inline void store_tile(const LinearArgs& a, const float* sums, int64_t t, int64_t n, int64_t n_end) {
  const int columns = n_end - n < kTileSide ? int(n_end - n) : kTileSide;
  const int rows = a.rows - t < kTileSide ? int(a.rows - t) : kTileSide;
  UVec v[kTileSide];
  for (int i = 0; i < kTileSide; ++i) v[i] = to_bits(vload(sums + i * kTileSide));
  transpose16(v);
  const Vec bias = a.bias ? vload_n(static_cast<const bf16*>(a.bias) + n, columns) : vset(0.0f);
  for (int r = 0; r < rows; ++r) {
    Vec y = from_bits(v[r]) + bias;
    if (a.residual)
      y = y + vload_n(static_cast<const bf16*>(a.residual) + (t + r) * a.residual_stride + n, columns);
    vstore_n(static_cast<bf16*>(a.out) + (t + r) * a.out_stride + n, y, columns);
  }
}

// Tile numbers are immediates: sums 0 to 3, weights 4 and 5, x 6 and 7.
template <>
struct Linear<bf16> {
  static PackedRow packed_row(const LinearArgs& a) {
    const int64_t stride = round_up(a.depth, kTileDepth);
    return {size_t(stride) * sizeof(bf16), stride};
  }

  static void pack(const LinearArgs& a, void* packed, int64_t begin, int64_t end) {
    const int64_t depth = round_up(a.depth, kTileDepth);
    for (int64_t t = begin; t < end; t += kTileSide) {
      bf16* panel = static_cast<bf16*>(packed) + t * depth;
      const bf16* x = static_cast<const bf16*>(a.x) + t * a.x_stride;
      for (int64_t k = 0; k < a.depth; k += kTileDepth) {
        // 16 rows of 16 pairs become 16 pairs of 16 rows.
        const Padded rows(x + k, a.x_stride, end - t, a.depth - k);
        UVec v[kTileSide];
        for (int i = 0; i < kTileSide; ++i) v[i] = _mm512_load_si512(rows.values[i]);
        transpose16(v);
        for (int i = 0; i < kTileSide; ++i) _mm512_storeu_si512(panel + k * kTileSide + i * kTileDepth, v[i]);
      }
    }
  }

  static void run(const LinearArgs& a, int64_t begin, int64_t end) {
    const TileConfig config;
    _tile_loadconfig(&config);
    for (int64_t t = 0; t < a.rows; t += kLinearPanel) {
      const int64_t t_end = t + kLinearPanel < a.rows ? t + kLinearPanel : a.rows;
      for (int64_t n = begin; n < end; n += 2 * kTileSide) {
        int64_t i = t;
        for (; i + kTileSide < t_end; i += 2 * kTileSide) block<2>(a, i, n, end);
        if (i < t_end) block<1>(a, i, n, end);
      }
    }
    _tile_release();
  }

 private:
  // 32 columns by one or two panels of x.
  template <int panels>
  static void block(const LinearArgs& a, int64_t t, int64_t n, int64_t n_end) {
    const int64_t depth = round_up(a.depth, kTileDepth), whole = a.depth / kTileDepth * kTileDepth;
    const bf16* w = static_cast<const bf16*>(a.weight) + n * a.weight_stride;
    const bf16* low = w + kTileSide * a.weight_stride;
    const bf16* x = static_cast<const bf16*>(a.x) + t * depth;
    const bf16* x1 = x + kTileSide * depth;
    const int64_t stride = a.weight_stride * int64_t(sizeof(bf16));
    const bool full = n + 2 * kTileSide <= n_end;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    auto multiply = [&](int64_t k) {
      _tile_loadd(6, x + k * kTileSide, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
      if (panels == 2) {
        _tile_loadd(7, x1 + k * kTileSide, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    };
    int64_t k = 0;
    if (full) {
      for (; k < whole; k += kTileDepth) {
        _tile_loadd(4, w + k, stride);
        _tile_loadd(5, low + k, stride);
        multiply(k);
      }
    }
    for (; k < a.depth; k += kTileDepth) {
      const Padded upper(w + k, a.weight_stride, n_end - n, a.depth - k);
      const Padded lower(low + k, a.weight_stride, n_end - n - kTileSide, a.depth - k);
      __asm__ volatile("" ::: "memory");  // tile loads do not tell the compiler that they read
      _tile_loadd(4, upper.values, 64);
      _tile_loadd(5, lower.values, 64);
      multiply(k);
    }
    alignas(64) float sums[kTileSide * kTileSide];
    _tile_stored(0, sums, 64);
    store_tile(a, sums, t, n, n_end);
    if (n + kTileSide < n_end) {
      _tile_stored(1, sums, 64);
      store_tile(a, sums, t, n + kTileSide, n_end);
    }
    if (panels == 1) return;
    _tile_stored(2, sums, 64);
    store_tile(a, sums, t + kTileSide, n, n_end);
    if (n + kTileSide < n_end) {
      _tile_stored(3, sums, 64);
      store_tile(a, sums, t + kTileSide, n + kTileSide, n_end);
    }
  }
};

}  // namespace
}  // namespace octavo
