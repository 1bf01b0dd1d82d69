#include "attention/extend_kernel.cuh"

namespace octavo {

cudaError_t extend_attention(const AttentionArgs& a, cudaStream_t stream) {
#if OCTAVO_HOPPER
  if (a.cache.cells != Cells::plain) return extend_attention_cells(a, stream);
  if (cudaError_t error = extend_attention_wgmma(a, stream); error != cudaErrorInvalidValue) return error;
#endif
  if (a.cache.cells != Cells::plain) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) { return launch<decltype(tag), decltype(tag)>(a, stream); });
}

}  // namespace octavo
