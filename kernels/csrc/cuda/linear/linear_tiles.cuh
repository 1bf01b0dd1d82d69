// The common part of products of whole tiles of 64 rows, on Hopper.
#pragma once

#include "device/buffer_ring.cuh"
#include "device/tensor_map.cuh"
#include "device/wgmma.cuh"
#include "linear/args.h"

namespace octavo {

constexpr int kDepth = 64;  // of a stage: a row of 128 bytes in shared memory, its 16-byte units swizzled by the copy
constexpr int kRowBytes = kDepth * 2;
constexpr int kRows = 64;  // of x, for a warpgroup

// A row-major matrix of 16-bit elements, in boxes of `box` rows.
inline bool describe_matrix(CUtensorMap& map, const void* data, int64_t rows, int64_t depth, int64_t stride, int box) {
  return describe_tensor<2>(map, data, {cuuint64_t(depth), cuuint64_t(rows)}, {cuuint64_t(stride) * 2},
                            {kDepth, cuuint32_t(box)});
}
// The matrix [gate; up] of so many rows as [eights][gate, up][8][depth], in boxes of `box` rows.
inline bool describe_halves(CUtensorMap& map, const void* data, int64_t rows, int64_t depth, int64_t stride, int box) {
  const cuuint64_t row = cuuint64_t(stride) * 2;
  return describe_tensor<4>(map, data, {cuuint64_t(depth), 8, 2, cuuint64_t(rows / 16)}, {row, row * (rows / 2), row * 8},
                            {kDepth, 8, 2, cuuint32_t(box / 16)});
}

}  // namespace octavo
