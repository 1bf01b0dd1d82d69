// The end of an expert's first product.
#pragma once

#include "experts/args.h"
#include "linear/activation.cuh"

namespace octavo {

// Experts alone have these on a GPU: x * sigmoid(1.702 x), and the square of max(x, 0), which no gate has.
constexpr int kQuickGelu = 4, kSquaredRelu = 5;

__host__ __device__ inline bool is_gate(int activation) {
  return (activation >= 0 && activation <= 2) || activation == kQuickGelu;
}
inline bool takes_activation(int activation) { return is_gate(activation) || activation == kSquaredRelu; }

// Rounded as if the product were stored. `clamped` as in ExpertsUpArgs; what is no number stays so.
template <class T>
__device__ inline T gated(float gate, float up, int activation, float clamped) {
  gate = to_float(from_float<T>(gate)), up = to_float(from_float<T>(up));
  if (clamped > 0.0f) {
    gate = gate > clamped ? clamped : gate;
    up = up > clamped ? clamped : up < -clamped ? -clamped : up;
    up = to_float(from_float<T>(up + 1.0f));
  }
  const float active = activation == kQuickGelu ? gate * fast_inverse(1.0f + fast_exp2(-1.702f * kLog2e * gate))
                                                : activated(Activation(activation), gate);
  return from_float<T>(active * up);
}

// The same without a gate.
template <class T>
__device__ inline T squared_relu(float up) {
  up = to_float(from_float<T>(up));
  up = up < 0.0f ? 0.0f : up;
  return from_float<T>(up * up);
}

}  // namespace octavo
