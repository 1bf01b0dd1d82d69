// How codes in int8, with 128 added to those of weights, meet: exact sums in int32. For any machine; a level may specialise
// `IntegerDot` before quantised.h.
#pragma once

#include "quantised_kernel.h"

namespace octavo {
namespace {

// Four depths of sixteen columns.
struct IntegerDotOfAnyWidth {
  using X = int8_t;
  using Operand = const uint8_t*;
  using Input = const int8_t*;
  struct Sum {
    int32_t columns[kPanel];
  };
  static constexpr bool integers = true, unpacks = false, streams = false;
  static constexpr int vectors = 1, depth = 4, steps = 1;
  static constexpr int64_t segment = int64_t(1) << 40;  // a group: its sum of x belongs to all of it

  struct Zero {};
  static Zero zero(const uint8_t*, int) { return {}; }
  template <int step>
  static Operand operand(const uint8_t* piece, int, Zero) {
    return piece;
  }
  static Sum none() { return {}; }
  static Input input(const X* x) { return x; }
  static Sum mac(Operand w, Input x, Sum sum) {
    for (int i = 0; i < kPanel; ++i)
      sum.columns[i] += w[4 * i] * x[0] + w[4 * i + 1] * x[1] + w[4 * i + 2] * x[2] + w[4 * i + 3] * x[3];
    return sum;
  }
  static void store_sums(const Sum* sums, int32_t* out) { __builtin_memcpy(out, sums, sizeof *sums); }
};

template <int lanes>
struct IntegerDot : IntegerDotOfAnyWidth {};

}  // namespace
}  // namespace octavo
