// Activations, alone or times the second half of the row.
#pragma once

#include "norm.h"

namespace octavo {
namespace {

constexpr Activation kGeluQuick = Activation(4);  // of this module alone

template <Activation kind>
inline Vec activate(Vec x) {
  if constexpr (kind == Activation::silu) {
    return x / (vset(1.0f) + expv(vset(0.0f) - x));
  } else if constexpr (kind == Activation::gelu) {
    return x * vset(0.5f) * (vset(1.0f) + erfv(x * vset(0.70710678118654752f)));
  } else if constexpr (kind == Activation::gelu_tanh) {
    Vec inner = vset(0.79788456080286536f) * vfma(vset(0.044715f) * x * x, x, x);
    return x * vset(0.5f) * (vset(1.0f) + tanhv(inner));
  } else if constexpr (kind == kGeluQuick) {
    return x / (vset(1.0f) + expv(x * vset(-1.702f)));
  } else {
    return vmax(vset(0.0f), x);
  }
}

template <class T, Activation kind>
void activation_typed(const ActivationArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    for_vectors(a.width, [&](int64_t i, int n) {
      Vec y = activate<kind>(load_some(x + i, n));
      if (a.gated) y = y * load_some(x + a.width + i, n);
      store_some(out + i, y, n);
    });
  }
}

void activation(const ActivationArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.kind == kGeluQuick) return activation_typed<T, kGeluQuick>(a, begin, end);
    switch (a.kind) {
      case Activation::silu: return activation_typed<T, Activation::silu>(a, begin, end);
      case Activation::gelu: return activation_typed<T, Activation::gelu>(a, begin, end);
      case Activation::gelu_tanh: return activation_typed<T, Activation::gelu_tanh>(a, begin, end);
      case Activation::relu: return activation_typed<T, Activation::relu>(a, begin, end);
    }
  });
}

}  // namespace
}  // namespace octavo
