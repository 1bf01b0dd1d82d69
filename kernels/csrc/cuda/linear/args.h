// Arguments of products, norms and activations.
#pragma once

#include <cuda_runtime_api.h>

#include "operands.h"

namespace octavo {

struct LinearArgs {
  Dtype dtype;
  const void* weight;
  int64_t weight_stride;
  int columns, depth;
  bool gated;  // [gate; up], for activation(x gate^T) * (x up^T), [rows, columns / 2]
  const void* x;
  int64_t x_stride;
  int rows;
  const void *bias, *residual;  // null: none
  int64_t residual_stride;
  float factor = 1.0f;  // of the product with its bias, before the residual is added
  void* out;
  int64_t out_stride;
  Activation activation;
  const void* norm;  // null: none; otherwise the product is that of x's RMS norm, with these weights
  float eps, offset;
  unsigned* counter;  // null: none; one zero, which is zero again when the launch has ended, for one stream
};

// Which kernel computes a product, and how: octavo_kernels/products/choice.py decides, the numbers are those of its `Kernel`.
enum class LinearKernel : int { row = 0, held = 1, ring = 2, wide = 3, uniform = 4 };
struct LinearTile {
  int consumers, columns;  // warpgroups, each with 64 rows of x; rows of the weight
  bool tall;               // the two blocks of a cluster share the weight's rows, not those of x
};
struct LinearLaunch {
  LinearKernel kernel;
  LinearTile tile;  // of `wide` and `uniform`
  int cluster;      // of `ring`: blocks that share the depth
};

// cudaErrorNotSupported: nothing was launched, because this chip has no room for the kernel. What a kernel cannot compute
// is cudaErrorInvalidValue.
cudaError_t linear(const LinearArgs&, const LinearLaunch&, cudaStream_t);
cudaError_t rms_norm(const NormArgs&, cudaStream_t);
cudaError_t norm_heads(const NormArgs&, int heads, cudaStream_t);  // rows are all heads', which lie side by side; no residual
cudaError_t layer_norm(const NormArgs&, cudaStream_t);
cudaError_t activation(const ActivationArgs&, cudaStream_t);

// x[rows][heads][head_dim] times the sigmoid or the softplus of logits[rows][heads], or of logits[rows][heads][head_dim], in place.
// Rows lie at multiples of 16 bytes, but those of heads.
struct HeadGateArgs {
  Dtype dtype;
  bool softplus, by_head;
  void* x;
  int64_t x_stride;
  const void* logits;
  int64_t logits_stride;
  int64_t rows;
  int heads, head_dim;
};
cudaError_t head_gate(const HeadGateArgs&, cudaStream_t);

// hidden = scalar * (hidden + factor * post(norm(x[0]) + norm(x[1]))), and out = norm(hidden). Norms are RMS norms, without weights:
// none; x[1], scalar and out may be null. Rows lie at multiples of 16 bytes. Weights are older than the previous kernel.
struct NormWeights {
  const void* weight;
  float eps, offset;
};
struct AddNormsArgs {
  Dtype dtype;
  const void* x[2];
  int64_t x_stride[2];
  NormWeights x_norm[2], post, norm;
  float factor;
  const void* scalar;
  void *hidden, *out;
  int64_t hidden_stride, out_stride;
  int64_t rows;
  int width;
};
cudaError_t add_norms(const AddNormsArgs&, cudaStream_t);

}  // namespace octavo
