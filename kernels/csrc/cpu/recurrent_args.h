// Operands of recurrent layers: see octavo_kernels/recurrent/.
#pragma once

#include "../operands.h"

namespace octavo {

// Slots of each sequence of a step.
struct StateMoves {
  int sequences;
  const int32_t *query_start, *read, *write, *keep_start, *keep_after, *keep_slot;
};

// A causal convolution of each channel: weight [taps, channels].
struct Convolution {
  const void *weight, *bias;  // bias null: none
  int taps;
  int64_t channels;
};
inline constexpr int kMaxTaps = 8;

struct ConvolutionArgs {
  Dtype dtype;
  const void* x;  // [rows], from the first channel on
  int64_t x_stride, rows;
  void* columns;  // [slots][taps - 1][channels]
  int64_t slot_stride;
  StateMoves moves;
  Convolution taken;
  // One of them: SiLU of the sums in float32, or the sums times a row's factors.
  float* mixed;  // [rows, channels]
  const void* factors;
  int64_t factors_stride;
  void* out;
  int64_t out_stride;
  // Inputs are `x` times these, rounded, and go through `products` [rows, channels]; null: x itself.
  const void* by;
  void* products;
};

enum class Recurrence : int { delta = 0, ssm = 1 };

struct RecurrenceArgs {
  Recurrence rule;
  Dtype dtype;
  const void* x;  // [rows]
  int64_t x_stride, rows;
  int64_t gate, beta, dt;  // where these begin in a row of x
  float* matrices;         // [slots][heads, depth, width]
  int64_t slot_stride;
  StateMoves moves;
  int sources, heads;  // `sources`: key heads, or groups
  int64_t depth, width;
  const float *rates, *dt_bias, *skip;  // [heads]
  float beta_scale, dt_least, dt_most;
  const float* norm;  // [heads * width]; null: a gate alone
  int64_t norm_group;
  float eps;
  bool gate_first;
  void* out;
  int64_t out_stride;
  // Intermediate results: what the convolution made, in which queries, keys and values begin at these places; the
  // recurrence's outputs; a row's factors of each head, and the product of query and key of each source.
  float* mixed;
  int64_t mixed_stride, query, key, value;
  float* y;  // [rows, heads * width]
  float *decays, *betas, *products;

  int64_t inner() const { return heads * width; }
};

}  // namespace octavo
