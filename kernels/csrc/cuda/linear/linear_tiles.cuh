// What products of whole tiles of 64 rows have in common, on Hopper.
#pragma once

#include "device/tensor_map.cuh"
#include "device/wgmma.cuh"
#include "linear/args.h"

namespace octavo {

constexpr int kDepth = 64;  // of a stage: a row of 128 bytes in shared memory, its 16-byte units swizzled by the copy
constexpr int kRowBytes = kDepth * 2;
constexpr int kRows = 64;  // of x, for a warpgroup
constexpr int kWarpgroup = 128;

#if OCTAVO_WGMMA

// Copies a box of such a matrix.
__device__ inline void copy_rows(uint32_t shared, const CUtensorMap& map, int depth, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared),
      "l"(&map), "r"(depth), "r"(row), "r"(barrier)
      : "memory");
}

#endif

// A row-major matrix of 16-bit elements, in boxes of `box` rows.
inline bool describe_matrix(CUtensorMap& map, const void* data, int64_t rows, int64_t depth, int64_t stride, int box) {
  return describe_tensor<2>(map, data, {cuuint64_t(depth), cuuint64_t(rows)}, {cuuint64_t(stride) * 2},
                            {kDepth, cuuint32_t(box)});
}

}  // namespace octavo
