// Integers without a dot product of bytes, as pairs of int16: products of bytes are added in int16, which they may exceed.
#pragma once

#include "integer_dot.h"

namespace octavo {
namespace {

template <>
struct IntegerDot<W> : IntegerDotOfAnyWidth {
  using X = int16_t;
  using Operand = UVec;
  using Input = UVec;
  using Sum = UVec;  // two of each of W / 2 columns
  static constexpr int vectors = 2 * kPanel / W;

  template <int step>
  static Operand operand(const uint8_t* piece, int v, Zero) {
    return widen_bytes(piece + 2 * W * v);
  }
  static Sum none() { return uset(0); }
  static Input input(const X* x) {
    int64_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return uset64(four);
  }
  static Sum mac(Operand w, Input x, Sum sum) { return uadd(sum, sum_pairs(w, x)); }
  static void store_sums(const Sum* sums, int32_t* out) {
    __m256i halves[4];
    __builtin_memcpy(halves, sums, sizeof halves);
    for (int i = 0; i < 4; i += 2) {
      const __m256i eight = _mm256_permute4x64_epi64(_mm256_hadd_epi32(halves[i], halves[i + 1]), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * i), eight);
    }
  }
};

}  // namespace
}  // namespace octavo
