#include "attention/decode_kernel.cuh"

namespace octavo {

cudaError_t decode_attention(const AttentionArgs& a, cudaStream_t stream) {
  if (a.cache.cells == Cells::i8) return decode_attention_i8(a, stream);
  if (a.cache.cells == Cells::f8) return decode_attention_f8(a, stream);
  return with_half(a.dtype, [&](auto tag) { return launch<decltype(tag), decltype(tag)>(a, stream); });
}

}  // namespace octavo
