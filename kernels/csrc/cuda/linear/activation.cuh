// The activations of a decoder's MLP.
#pragma once

#include "device/common.cuh"
#include "linear/args.h"

namespace octavo {

// x / (1 + exp(-x)), within a few units in the last place: a division proper takes longer than all the rest.
__device__ inline float silu(float x) {
  return x * fast_inverse(1.0f + fast_exp2(-kLog2e * x));
}

template <Activation kind>
__device__ inline float activate(float x) {
  if constexpr (kind == Activation::silu) return silu(x);
  if constexpr (kind == Activation::gelu) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  if constexpr (kind == Activation::gelu_tanh)
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  return fmaxf(x, 0.0f);
}

// The same where the kind, which is one of a gate, is known later.
__device__ inline float activated(Activation kind, float x) {
  switch (kind) {
    case Activation::silu: return activate<Activation::silu>(x);
    case Activation::gelu: return activate<Activation::gelu>(x);
    default: return activate<Activation::gelu_tanh>(x);
  }
}

}  // namespace octavo
