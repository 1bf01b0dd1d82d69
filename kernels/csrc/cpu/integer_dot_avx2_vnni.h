// Integers with AVX-VNNI: four products of bytes are added to an int32 at once.
#pragma once

#include "integer_dot.h"

namespace octavo {
namespace {

template <>
struct IntegerDot<8> : IntegerDotOfAnyWidth {
  using Operand = __m256i;
  using Input = __m256i;
  using Sum = __m256i;
  static constexpr int vectors = 2;

  template <int step>
  static Operand operand(const uint8_t* piece, int v, Zero) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(piece + 32 * v));
  }
  static Sum none() { return _mm256_setzero_si256(); }
  static Input input(const X* x) {
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
  }
  static Sum mac(Operand w, Input x, Sum sum) { return _mm256_dpbusd_avx_epi32(sum, w, x); }
  static void store_sums(const Sum* sums, int32_t* out) { __builtin_memcpy(out, sums, 2 * sizeof *sums); }
};

}  // namespace
}  // namespace octavo
