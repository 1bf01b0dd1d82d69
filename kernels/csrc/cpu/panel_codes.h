// The numbers that a panel's codes stand for, 16 columns wide (see QuantisedArgs). Included after one of simd_*.h.
#pragma once

#include "codes.h"

namespace octavo {
namespace {

template <int N>
struct Int {
  static constexpr int value = N;
};

// f(Int<0>), f(Int<1>), ..., f(Int<N - 1>).
template <int N, class F>
inline __attribute__((always_inline)) void unrolled(F&& f) {
  if constexpr (N > 0) {
    unrolled<N - 1>(f);
    f(Int<N - 1>{});
  }
}

constexpr bool nibbles(WeightCodes codes) { return codes == WeightCodes::int4 || codes == WeightCodes::fp4; }

// Depths of the 64 bytes that panels consist of, and what the numbers below have to be multiplied with.
constexpr int piece_depth(WeightCodes codes) { return nibbles(codes) ? 8 : 4; }
constexpr float code_unit(WeightCodes codes) {
  return codes == WeightCodes::fp8 ? Codes<f8>::unit : codes == WeightCodes::fp4 ? 0.5f : 1.0f;
}

// Depths 0 2 4 6 lie in the lower half of a word, 1 3 5 7 in the upper.
constexpr int nibble_shift(int depth) { return depth / 2 * 4 + depth % 2 * 16; }

// Twice the value of an e2m1 code.
constexpr int8_t kTwiceE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline UVec load_words(const uint8_t* p) {
  UVec words;
  __builtin_memcpy(&words, p, sizeof words);
  return words;
}

// Sums that belong to the zero points of W columns: subtracted from `code_value`.
inline Vec zero_value(WeightCodes codes, const uint8_t* zeros) {
  if (codes == WeightCodes::int8) return vload(reinterpret_cast<const i8*>(zeros));
  alignas(64) float values[W];
  for (int i = 0; i < W; ++i) values[i] = float(int(zeros[i]) - 8);
  return vload(values);
}

// Columns `first` to `first` + W at one depth of a piece.
template <WeightCodes kCodes, int depth>
inline Vec code_value(const uint8_t* piece, int first) {
  if constexpr (nibbles(kCodes)) {
    const UVec codes = ushr<nibble_shift(depth)>(load_words(piece + 4 * first));
    if constexpr (kCodes == WeightCodes::int4)
      return nibble_value(codes);
    else
      return e2m1_value(codes);
  } else if constexpr (kCodes == WeightCodes::int8) {
    return vload(reinterpret_cast<const i8*>(piece) + depth * kPanel + first);
  } else {
    return vload(reinterpret_cast<const f8*>(piece) + depth * kPanel + first);
  }
}

}  // namespace
}  // namespace octavo
