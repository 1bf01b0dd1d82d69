#pragma once

#include "device/common.cuh"
#include "linear/args.h"

namespace octavo {

inline float activated(Activation kind, float x) {
  switch (kind) {
    case Activation::silu: return x / (1.0f + std::exp(-x));
    case Activation::gelu: return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
    default: return 0.5f * x * (1.0f + std::tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  }
}

template <Activation kind>
float activate(float x) {
  return activated(kind, x);
}

}  // namespace octavo
