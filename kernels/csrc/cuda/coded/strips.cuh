// Boxes of strips for Hopper's copy engine: one copy brings what many strips have at a depth. A copy takes some sixty clocks to
// begin however small it is, so that one for each brick would take longer than its bytes.
#pragma once

#include "coded/codes.cuh"
#include "device/cluster.cuh"
#include "linear/linear_tiles.cuh"

namespace octavo {

// Tensor maps of x, and of the weight's strips.
struct CodedMaps {
  CUtensorMap x, codes, scales, zeros;
};

// Map of strips, [halves][strips][row], so many elements and strips of each half at a time.
inline bool describe_strips(CUtensorMap& map, const void* data, int64_t row, int64_t strips, int halves, int box, int box_strips,
                            CUtensorMapDataType element, int size) {
  const cuuint64_t stride = row * size;
  return describe_tensor<3>(map, data, {cuuint64_t(row), cuuint64_t(strips), cuuint64_t(halves)}, {stride, stride * strips},
                            {cuuint32_t(box), cuuint32_t(box_strips), cuuint32_t(halves)}, element, BoxRows::dense);
}

// In boxes of so many strips (gated, half of them of each side), each with so many bytes of codes and so many scales.
inline bool describe_weight(CodedMaps& maps, const CodedMatrix& m, const CodedSizes& sizes, bool gated, int box_strips,
                            int code_bytes, int scales) {
  const int halves = gated ? 2 : 1, strips = sizes.strips / halves, high = box_strips / halves;
  const int row = sizes.groups * kStripRows;
  return describe_strips(maps.codes, m.codes, int64_t(sizes.bricks) * (kBrickBytes / 4), strips, halves, code_bytes / 4, high,
                         CU_TENSOR_MAP_DATA_TYPE_UINT32, 4) &&
         describe_strips(maps.scales, m.scales, row, strips, halves, scales, high, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4) &&
         (!m.zeros || describe_strips(maps.zeros, m.zeros, row, strips, halves, scales, high, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1));
}

#if OCTAVO_WGMMA
// From this element and this strip of each half on.
__device__ inline void copy_strips(uint32_t shared, const CUtensorMap& map, int at, int strip, uint32_t barrier) {
  copy_box(shared, map, at, strip, 0, barrier);
}
#endif

}  // namespace octavo
