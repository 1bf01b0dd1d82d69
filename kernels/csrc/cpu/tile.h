// Tile registers: their configuration, and 16 x 16 transposes into and out of their layouts.
#pragma once

#include "dispatch.h"

namespace octavo {
namespace {

constexpr int kTileSide = 16, kTileDepth = 32;
constexpr int64_t kTileSums = kTileSide * kTileSide;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  // `upper` and `lower`: rows of the first and second tile of the left operand, and of their sums.
  explicit TileConfig(int upper = kTileSide, int lower = kTileSide) {
    for (int i = 0; i < 8; ++i) row_bytes[i] = 64, rows[i] = kTileSide;
    rows[0] = rows[1] = rows[4] = uint8_t(upper), rows[2] = rows[3] = rows[5] = uint8_t(lower);
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

// Sixteen pairs from the sixteen values in each half; values that the mask leaves out are zero.
inline UVec interleave(UVec halves, __mmask32 keep = 0xffffffffu) {
  const UVec order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                                      23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_maskz_permutexvar_epi16(keep, order, halves);
}

// Two vectors of floats as bf16, rounded to nearest, one after the other.
inline UVec narrow_both(Vec low, Vec high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }

// The first n of 32 halves; all for more.
inline __mmask32 first_halves(int64_t n) { return n >= kTileDepth ? 0xffffffffu : n > 0 ? (1u << n) - 1 : 0; }

// 16 rows of 32 bf16, zeros where there are fewer.
inline void load_rows(const bf16* p, int64_t stride, int64_t rows, int64_t depth, UVec v[16]) {
  if (rows >= kTileSide && depth >= kTileDepth) {
#pragma GCC unroll 16
    for (int i = 0; i < kTileSide; ++i) v[i] = _mm512_loadu_si512(p + i * stride);
    return;
  }
  const __mmask32 kept = first_halves(depth);
  for (int i = 0; i < kTileSide; ++i) v[i] = i < rows ? _mm512_maskz_loadu_epi16(kept, p + i * stride) : uset(0);
}

// One or two tiles a step of 32 values.
struct TilePair {
  const bf16 *first, *second;
  int64_t step;    // elements
  int64_t stride;  // bytes
};

// Where up to 2 x 2 tiles of sums lie: elements from one to the next, bytes from row to row.
struct TileSums {
  float* first;
  int64_t down, right, stride;
};

inline void nothing() {}

// sums (+)= a (A tiles of rows) . b (B tiles of pairs); `beside()` is done while tiles multiply. Tile numbers are
// immediates: sums 0 to 3, a 4 and 5, b 6 and 7; 0, 1 and 4 have the first rows of a, 2, 3 and 5 the second.
template <int A, int B, class F>
inline void multiply(const TilePair& a, const TilePair& b, int64_t steps, const TileSums& sums, bool fresh, F beside) {
  float *s0 = sums.first, *s1 = s0 + sums.right, *s2 = s0 + sums.down, *s3 = s2 + sums.right;
  if (fresh) {
    _tile_zero(0);
    if (B == 2) _tile_zero(1);
    if (A == 2) _tile_zero(2);
    if (A == 2 && B == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, s0, sums.stride);
    if (B == 2) _tile_loadd(1, s1, sums.stride);
    if (A == 2) _tile_loadd(2, s2, sums.stride);
    if (A == 2 && B == 2) _tile_loadd(3, s3, sums.stride);
  }
  TilePair p = a, q = b;
  for (int64_t i = 0; i < steps; ++i) {
    _tile_loadd(6, q.first, q.stride);
    _tile_loadd(4, p.first, p.stride);
    _tile_dpbf16ps(0, 4, 6);
    if (A == 2) {
      _tile_loadd(5, p.second, p.stride);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (B == 2) {
      _tile_loadd(7, q.second, q.stride);
      _tile_dpbf16ps(1, 4, 7);
      if (A == 2) _tile_dpbf16ps(3, 5, 7);
    }
    p.first += p.step, p.second += p.step, q.first += q.step, q.second += q.step;
    beside();
  }
  _tile_stored(0, s0, sums.stride);
  if (B == 2) _tile_stored(1, s1, sums.stride);
  if (A == 2) _tile_stored(2, s2, sums.stride);
  if (A == 2 && B == 2) _tile_stored(3, s3, sums.stride);
}

// Tile loads and stores do not tell the compiler what they read and write.
inline void tile_fence() { __asm__ volatile("" ::: "memory"); }

}  // namespace
}  // namespace octavo
