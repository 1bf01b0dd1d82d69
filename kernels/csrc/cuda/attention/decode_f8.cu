#include "attention/decode_kernel.cuh"

namespace octavo {

cudaError_t decode_attention_f8(const AttentionArgs& a, cudaStream_t stream) {
  return a.dtype == Dtype::f32 ? cudaErrorInvalidValue : launch<f16, f8>(a, stream);
}

}  // namespace octavo
