// Weights of codes as numbers in the type of x: what a code stands for times its scale, in float32, rounded once, as in
// dequantise.cu.
#pragma once

#include "coded/codes.cuh"

namespace octavo {

// Codes of a row in a group. Integers become floats without conversions: the bits of a code in the last ones of 2^23 are that
// plus the code, with a nibble that lies in place i sixteen to the i times as much. What is fused below is exact.
template <class T, Codes kind>
struct RoundedRow {
  static constexpr bool kNibbles = kind == Codes::int4, kBytes = kind == Codes::int8;
  static constexpr int kPlaces = kNibbles ? 4 : 1;
  static constexpr uint32_t kInteger = 0x4b000000;  // | n: 2^23 + n

  float scale;
  float offset[kPlaces];

  __host__ __device__ static uint32_t zero() { return kind == Codes::int4 ? 8 : 128; }

  __host__ __device__ RoundedRow(float own_scale, uint32_t zero_point) : scale(own_scale) {
    const float point = float_of(kInteger | zero_point) - 8388608.0f;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int i = 0; i < kPlaces; ++i) offset[i] = -float(8388608 >> 4 * i) - point;
  }
  // Value of a word's nibble in place i of the lower half.
  __host__ __device__ float nibble(uint32_t word, int i) const {
    const float raw = float_of(masked_or(word, 0xfu << 4 * i, kInteger));
    return __fmaf_rn(raw, 1.0f / float(1 << 4 * i), offset[i]) * scale;
  }
  __host__ __device__ float byte(uint32_t word, int i) const {
    return (float_of(pick(word, kInteger, 0x7440 + i)) + offset[0]) * scale;
  }
};

template <class T, Codes kind>
struct Rounded {
  using Row = RoundedRow<T, kind>;

  // The four registers of a step, as `Unpack::step` has them.
  __device__ static void step(const uint32_t* words, const Row& low, const Row& high, uint32_t* registers) {
    if constexpr (is_float(kind)) Unpack<T, kind>::step(words, 0, 0, registers);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Row& row = i % 2 ? high : low;
      float a, b;
      if constexpr (kind == Codes::int4) {
        a = row.nibble(words[0], i), b = row.nibble(words[0] >> 16, i);
      } else if constexpr (kind == Codes::int8) {
        a = row.byte(words[i / 2], i % 2 * 2), b = row.byte(words[i / 2], i % 2 * 2 + 1);
      } else {
        const float2 code = unpack<T>(registers[i]);
        a = code.x * row.scale, b = code.y * row.scale;
      }
      registers[i] = pack<T>(a, b);
    }
  }

  // Words of which registers 0 and 2 are those of `first`, 1 and 3 those of `second` for the same rows of their strips: the
  // lower ones or, `upper`, those behind.
  __device__ static uint32_t merge(uint32_t first, uint32_t second, bool upper) {
    if constexpr (is_nibble(kind)) {
      const int by = upper ? 4 : 0;
      return (first >> by & 0x0f0f0f0f) | (second << (4 - by) & 0xf0f0f0f0);
    } else {
      return pick(first, second, upper ? 0x7632 : 0x5410);
    }
  }
};

}  // namespace octavo
