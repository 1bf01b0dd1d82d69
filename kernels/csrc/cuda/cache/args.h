// Writes into the paged cache and copies of its blocks.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/args.h"  // kSlice: block sizes are multiples of it

namespace octavo {

// Of each token: the norm of the latent and the rotated key behind it, into the cache; the rotated part of its queries.
struct LatentRowsArgs {
  Dtype dtype;
  const void *q, *kept, *norm;  // q: the columns that are rotated; kept: the latent, then the key
  int64_t q_stride, q_head_stride, kept_stride;
  float eps, norm_offset;
  void* q_out;  // [tokens][heads][rank + rotated]; the first columns of a head are another kernel's
  int64_t q_out_stride;
  int64_t tokens;
  int heads, rank, rotated;
  Cache cache;
  const int64_t *slots, *positions;
  const float* cos_sin;
  int64_t cos_sin_stride;
};
cudaError_t latent_rows(const LatentRowsArgs&, cudaStream_t);

// The rows of `count` blocks, as they were kept, one after the other. Rows of `out` begin at multiples of 16 bytes.
struct LatentReadArgs {
  Dtype dtype;
  void* out;  // [count * block_size][rank + rotated]
  int64_t out_stride;
  int rank, rotated;
  Cache cache;
  const int32_t* blocks;
  int64_t count;
};
cudaError_t latent_read(const LatentReadArgs&, cudaStream_t);

cudaError_t write_cache(const WriteArgs&, cudaStream_t);
cudaError_t simt_write(const WriteArgs&, cudaStream_t);  // what that one does not take
cudaError_t copy_blocks(void* cache, int64_t block_bytes, const int64_t* pairs, int64_t count, cudaStream_t);
// One asynchronous copy a pair (source block, target block), of `block_bytes` each.
cudaError_t swap_blocks(const void* source, void* target, int64_t block_bytes, const int64_t* pairs, int64_t count,
                        cudaStream_t);

}  // namespace octavo
