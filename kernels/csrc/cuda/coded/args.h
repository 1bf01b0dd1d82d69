// Arguments of products of 16-bit rows with weights of codes.
#pragma once

#include "linear/args.h"

namespace octavo {

// Numbers are those of `Codes` in octavo_kernels/products/weights.py. Integers are stored from 0 on: of eight bits plus 128.
enum class Codes : int { int4 = 0, int8 = 1, fp4 = 2, fp8 = 3 };

// A matrix [columns, depth] as octavo_kernels/products/coded.py lays it out.
struct CodedMatrix {
  Codes kind;
  int group;           // of so many codes of a row, side by side, each has the same scale: see `groups_of_brick`
  const void* codes;   // [strips][bricks] of 1 KB: see codes.cuh
  const float* scales;  // [strips][groups][16]
  const uint8_t* zeros;  // null: those of a symmetric weight; [strips][groups][16]
  int columns, depth;
};

// `weight`, `weight_stride` and `counter` of the operands are not for these.
struct CodedArgs : LinearArgs {
  CodedMatrix matrix;
};

// Which kernel computes a product, and how: octavo_kernels/products/choice.py decides.
struct CodedTile {
  int tokens;   // rows of x
  int cluster;  // blocks that share the depth
};

struct CodedWideTile {
  int consumers, tokens;  // warpgroups, each with 64 of the weight's rows; most rows of x
  int shares;             // pairs of blocks that share the depth of all tiles evenly; 0: whole tiles
};

struct DequantiseArgs {
  Dtype dtype;
  CodedMatrix matrix;
  void* out;  // [columns, depth]
  int64_t out_stride;
};

// cudaErrorInvalidValue: no kernel for that, and nothing was launched; cudaErrorNotSupported: this chip has no room for it.
cudaError_t coded_few(const CodedArgs&, cudaStream_t);
cudaError_t coded_tiles(const CodedArgs&, const CodedTile&, cudaStream_t);
cudaError_t coded_wide(const CodedArgs&, const CodedWideTile&, cudaStream_t);
cudaError_t dequantise(const DequantiseArgs&, cudaStream_t);

}  // namespace octavo
