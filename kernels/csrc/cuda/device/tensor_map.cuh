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

// How a box lies in shared memory: its rows are 128 bytes, and swizzled; or one after the other as they are.
enum class BoxRows { swizzled, dense };

// A tensor that is copied in boxes; what lies outside of it comes as zeros. `sizes` are in elements, `strides` in bytes.
template <int kDimensions>
bool describe_tensor(CUtensorMap& map, const void* data, const cuuint64_t (&sizes)[kDimensions],
                     const cuuint64_t (&strides)[kDimensions - 1], const cuuint32_t (&box)[kDimensions],
                     CUtensorMapDataType element = CU_TENSOR_MAP_DATA_TYPE_UINT16, BoxRows rows = BoxRows::swizzled) {
  const TensorMapEncoder encode = tensor_map_encoder();
  cuuint32_t steps[kDimensions];
  for (cuuint32_t& step : steps) step = 1;
  return encode && encode(&map, element, kDimensions, const_cast<void*>(data), sizes, strides, box, steps,
                          CU_TENSOR_MAP_INTERLEAVE_NONE,
                          rows == BoxRows::swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace octavo
