// Integers with VNNI: four products of bytes are added to an int32 at once. `sum_bytes` is the vectors'.
#pragma once

#include "integer_dot.h"

namespace octavo {
namespace {

template <>
struct IntegerDot<W> : IntegerDotOfAnyWidth {
  using Operand = UVec;
  using Input = UVec;
  using Sum = UVec;
  static constexpr int vectors = kPanel / W;

  template <int step>
  static Operand operand(const uint8_t* piece, int v, Zero) {
    Operand w;
    __builtin_memcpy(&w, piece + 4 * W * v, sizeof w);
    return w;
  }
  static Sum none() { return uset(0); }
  static Input input(const X* x) {
    uint32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return uset(four);
  }
  static Sum mac(Operand w, Input x, Sum sum) { return sum_bytes(sum, w, x); }
  static void store_sums(const Sum* sums, int32_t* out) { __builtin_memcpy(out, sums, vectors * sizeof *sums); }
};

}  // namespace
}  // namespace octavo
