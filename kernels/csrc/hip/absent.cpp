// The kernels for tensor cores: `simt_attention` takes what they do not, here all. Groups, which are theirs alone, are an
// argument that no kernel covers.
#include "attention/args.h"

namespace octavo {

cudaError_t prefix_attention(const AttentionArgs&, cudaStream_t) { return cudaErrorInvalidValue; }
cudaError_t decode_attention(const AttentionArgs&, cudaStream_t) { return cudaErrorInvalidValue; }
cudaError_t extend_attention(const AttentionArgs&, cudaStream_t) { return cudaErrorInvalidValue; }

}  // namespace octavo
