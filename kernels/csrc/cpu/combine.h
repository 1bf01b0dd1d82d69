// The weighted sum of what a row's experts made of it.
#pragma once

#include "norm.h"

namespace octavo {
namespace {

template <class T>
void combine_typed(const CombineArgs& a, int64_t begin, int64_t end) {
  const T* parts = static_cast<const T*>(a.parts);
  for (int64_t row = begin; row < end; ++row) {
    const int32_t* places = a.places + row * a.chosen;
    const float* weights = a.weights + row * a.chosen;
    const T* shared = a.shared ? static_cast<const T*>(a.shared) + row * a.shared_stride : nullptr;
    const T* residual = a.residual ? static_cast<const T*>(a.residual) + row * a.residual_stride : nullptr;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    for_vectors(a.width, [&](int64_t i, int n) {
      Vec sum = vset(0.0f);
      for (int j = 0; j < a.chosen; ++j)
        sum = sum + vset(weights[j]) * load_some(parts + places[j] * a.parts_stride + i, n);
      if (shared) {
        const Vec x = load_some(shared + i, n);
        sum = sum + (a.gates ? vset(a.gates[row]) * x : x);
      }
      if (residual) sum = vfma(vset(a.factor), sum, load_some(residual + i, n));
      store_some(out + i, sum, n);
    });
  }
}

void combine(const CombineArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { combine_typed<decltype(tag)>(a, begin, end); });
}

}  // namespace
}  // namespace octavo
