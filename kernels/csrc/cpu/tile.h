// Tile registers: their configuration, and 16 x 16 transposes into and out of their layouts.
#pragma once

#include "dispatch.h"

namespace octavo {
namespace {

constexpr int kTileSide = 16, kTileDepth = 32;

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

}  // namespace
}  // namespace octavo
