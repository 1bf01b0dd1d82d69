// Integers with AVX512-VNNI: four products of bytes are added to an int32 at once.
#pragma once

#include "integer_dot.h"

namespace octavo {
namespace {

template <>
struct IntegerDot<16> : IntegerDotOfAnyWidth {
  using Operand = __m512i;
  using Input = __m512i;
  using Sum = __m512i;

  template <int step>
  static Operand operand(const uint8_t* piece, int, Zero) {
    return _mm512_loadu_si512(piece);
  }
  static Sum none() { return _mm512_setzero_si512(); }
  static Input input(const X* x) {
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Sum mac(Operand w, Input x, Sum sum) { return _mm512_dpbusd_epi32(sum, w, x); }
  static void store_sums(const Sum* sums, int32_t* out) { _mm512_storeu_si512(out, *sums); }
};

}  // namespace
}  // namespace octavo
