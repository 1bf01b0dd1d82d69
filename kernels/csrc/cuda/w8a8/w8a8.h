// Products of rows and weights that are both codes of eight bits, and rows as such codes.
#pragma once

#include "linear/args.h"

namespace octavo {

// Depth of one scale, where scales are not those of whole rows.
inline constexpr int kScaledDepth = 128;

// Rows of a batch as codes, and float32 scales [groups][rows]: one group, or, `in_blocks`, one for each kScaledDepth of the
// depth. Strides are in elements: of codes between rows, of scales between groups.
struct CodedRows {
  void* codes;
  int64_t stride;
  float* scales;
  int64_t scales_stride;
};

struct QuantiseArgs {
  Dtype dtype;
  Cells cells;  // i8 (two's complement) or f8
  bool in_blocks;
  const void* x;
  int64_t x_stride;
  const void* norm;  // null: none; otherwise the codes are those of x's RMS norm, with these weights, rounded to the dtype
  float eps, offset;
  CodedRows out;
  int rows, width;
};

struct W8A8Args {
  Dtype dtype;  // of the results, and of what is added to them
  Cells cells;
  bool in_blocks;
  CodedRows x, weight;  // the weight's rows are the results' columns
  int rows, columns, depth;
  bool gated;  // [gate; up], for activation(x gate^T) * (x up^T), [rows, columns / 2]
  Activation activation;
  const void *bias, *residual;  // null: none
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
};

// Product of one row, which is not yet codes.
struct W8A8RowArgs {
  Dtype dtype;
  Cells cells;
  bool in_blocks;
  const void* x;
  const void* norm;  // as in QuantiseArgs
  float eps, offset;
  CodedRows weight;
  int columns, depth;
  bool gated;
  Activation activation;
  const void *bias, *residual;
  void* out;
};

// Which kernel computes a product, and how: octavo_kernels/products/choice.py decides, the numbers are those of its `W8A8Kernel`.
enum class W8A8Kernel : int { plain = 0, wide = 1 };
struct W8A8Launch {
  W8A8Kernel kernel;
  int consumers, tokens, height;  // of a tile of `wide`: warpgroups; most rows of x; rows of the weight
};

cudaError_t quantise_rows(const QuantiseArgs&, cudaStream_t);
// cudaErrorNotSupported: nothing was launched, because this chip has no room for the kernel.
cudaError_t w8a8_row(const W8A8RowArgs&, cudaStream_t);
cudaError_t w8a8_linear(const W8A8Args&, const W8A8Launch&, cudaStream_t);

}  // namespace octavo
