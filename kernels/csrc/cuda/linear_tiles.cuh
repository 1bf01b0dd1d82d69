// What products of whole tiles of 64 rows have in common, on Hopper.
#pragma once

#include "tensor_map.cuh"
#include "wgmma.cuh"

namespace octavo {

constexpr int kDepth = 64;  // of a stage: a row of 128 bytes in shared memory, its 16-byte units swizzled by the copy
constexpr int kRowBytes = kDepth * 2;
constexpr int kRows = 64;  // of x, for a warpgroup
constexpr int kWarpgroup = 128;

// A tensor of 16-bit elements, rows of the depth within, copied in boxes of kDepth; what lies outside of it comes as zeros.
template <int kDimensions>
bool describe_rows(CUtensorMap& map, const void* data, const cuuint64_t (&sizes)[kDimensions],
                   const cuuint64_t (&strides)[kDimensions - 1], const cuuint32_t (&box)[kDimensions]) {
  const TensorMapEncoder encode = tensor_map_encoder();
  cuuint32_t steps[kDimensions];
  for (cuuint32_t& step : steps) step = 1;
  return encode && encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, kDimensions, const_cast<void*>(data), sizes, strides, box,
                          steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
// A row-major matrix, in boxes of `box` rows.
inline bool describe_matrix(CUtensorMap& map, const void* data, int64_t rows, int64_t depth, int64_t stride, int box) {
  return describe_rows<2>(map, data, {cuuint64_t(depth), cuuint64_t(rows)}, {cuuint64_t(stride) * 2},
                          {kDepth, cuuint32_t(box)});
}

}  // namespace octavo
