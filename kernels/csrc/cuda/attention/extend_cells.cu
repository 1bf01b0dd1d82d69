#include "attention/extend_kernel.cuh"

namespace octavo {

cudaError_t extend_attention_cells(const AttentionArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major != 9) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    return a.cache.cells == Cells::i8 ? launch<T, i8>(a, stream) : launch<T, f8>(a, stream);
  });
}

}  // namespace octavo
