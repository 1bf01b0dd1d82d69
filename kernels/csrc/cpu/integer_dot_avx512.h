// Integers on AVX-512 without a dot product of bytes, as pairs of int16 (see integer_dot_avx2.h).
#pragma once

#include "integer_dot.h"

namespace octavo {
namespace {

template <>
struct IntegerDot<16> : IntegerDotOfAnyWidth {
  using X = int16_t;
  using Operand = __m512i;
  using Input = __m512i;
  using Sum = __m512i;  // two of each of eight columns
  static constexpr int vectors = 2;

  template <int step>
  static Operand operand(const uint8_t* piece, int v, Zero) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(piece + 32 * v)));
  }
  static Sum none() { return _mm512_setzero_si512(); }
  static Input input(const X* x) {
    int64_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm512_set1_epi64(four);
  }
  static Sum mac(Operand w, Input x, Sum sum) { return _mm512_add_epi32(sum, _mm512_madd_epi16(w, x)); }
  static void store_sums(const Sum* sums, int32_t* out) {
    for (int v = 0; v < vectors; ++v) {
      const __m256i low = _mm512_castsi512_si256(sums[v]), high = _mm512_extracti64x4_epi64(sums[v], 1);
      const __m256i eight = _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * v), eight);
    }
  }
};

}  // namespace
}  // namespace octavo
