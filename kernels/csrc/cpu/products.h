// Which kernel computes a product with a quantised weight.
#pragma once

#include "integer_dot.h"

namespace octavo {
namespace {

// A level may specialise both, `lanes` being those of its vectors.
template <class T, WeightCodes kCodes, bool kZeros>
struct GivenProduct {
  using type = Quantised<T, FloatDot<kCodes, kZeros>>;
};
template <class T, int lanes>
struct IntegerProduct {
  using type = Quantised<T, IntegerDot<lanes>>;
};

}  // namespace
}  // namespace octavo
