// Descriptions of tensors for Hopper's copy engine.
#pragma once

#include <cuda.h>

#include "device/common.cuh"

namespace octavo {

using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: nothing here links to the driver. Null where the driver has none.
inline TensorMapEncoder tensor_map_encoder() {
  static const TensorMapEncoder encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess ? reinterpret_cast<TensorMapEncoder>(function) : nullptr;
  }();
  return encoder;
}

// A tensor of 16-bit elements, copied in boxes whose rows are 128 bytes and swizzled; what lies outside of it comes as zeros.
template <int kDimensions>
bool describe_tensor(CUtensorMap& map, const void* data, const cuuint64_t (&sizes)[kDimensions],
                     const cuuint64_t (&strides)[kDimensions - 1], const cuuint32_t (&box)[kDimensions]) {
  const TensorMapEncoder encode = tensor_map_encoder();
  cuuint32_t steps[kDimensions];
  for (cuuint32_t& step : steps) step = 1;
  return encode && encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, kDimensions, const_cast<void*>(data), sizes, strides, box,
                          steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace octavo
