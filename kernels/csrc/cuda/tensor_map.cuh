// Descriptions of tensors for Hopper's copy engine.
#pragma once

#include <cuda.h>

#include "common.cuh"

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

}  // namespace octavo
