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
cudaError_t layer_norm(const NormArgs&, cudaStream_t);
cudaError_t activation(const ActivationArgs&, cudaStream_t);

}  // namespace octavo
