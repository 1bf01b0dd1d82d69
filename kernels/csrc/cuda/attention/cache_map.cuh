// The cache as a tensor for Hopper's copy engine.
#pragma once

#include "attention/args.h"
#include "device/tensor_map.cuh"

namespace octavo {

// Columns of one swizzled row, of 128 or of 64 bytes.
constexpr int map_columns(int head_dim) { return head_dim % 64 == 0 ? 64 : 32; }

// K or V (`offset` elements into a block) of one layer as [blocks][heads][tokens][D / C][C], read in boxes of `box`
// tokens by C = map_columns(D).
inline cudaError_t describe_cache(CUtensorMap& map, const AttentionArgs& a, int64_t offset, int box) {
  const TensorMapEncoder encode = tensor_map_encoder();
  if (!encode) return cudaErrorSymbolNotFound;
  const int columns = map_columns(a.head_dim);
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(a.head_dim / columns), cuuint64_t(a.cache.block_size),
                              cuuint64_t(a.kv_heads), cuuint64_t(1) << 31};
  const cuuint64_t strides[] = {cuuint64_t(columns) * 2, cuuint64_t(a.head_dim) * 2, cuuint64_t(a.cache.head_stride) * 2,
                                cuuint64_t(a.cache.block_stride) * 2};
  const cuuint32_t boxes[] = {cuuint32_t(columns), 1, cuuint32_t(box), 1, 1}, steps[] = {1, 1, 1, 1, 1};
  void* data = static_cast<char*>(a.cache.data) + offset * 2;
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 5, data, sizes, strides, boxes, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidConfiguration;
}

}  // namespace octavo
