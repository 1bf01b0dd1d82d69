// Integers on AVX2, as pairs of int16: products of bytes are added in int16, which they may exceed.
#pragma once

#include "integer_dot.h"

namespace octavo {
namespace {

template <>
struct IntegerDot<8> : IntegerDotOfAnyWidth {
  using X = int16_t;
  using Operand = __m256i;
  using Input = __m256i;
  using Sum = __m256i;  // two of each of four columns
  static constexpr int vectors = 4;

  template <int step>
  static Operand operand(const uint8_t* piece, int v, Zero) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(piece + 16 * v)));
  }
  static Sum none() { return _mm256_setzero_si256(); }
  static Input input(const X* x) {
    int64_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm256_set1_epi64x(four);
  }
  static Sum mac(Operand w, Input x, Sum sum) { return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x)); }
  static void store_sums(const Sum* sums, int32_t* out) {
    for (int v = 0; v < vectors; v += 2) {
      const __m256i eight = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums[v], sums[v + 1]), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * v), eight);
    }
  }
};

}  // namespace
}  // namespace octavo
