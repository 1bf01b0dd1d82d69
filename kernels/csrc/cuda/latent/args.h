// Latent attention around its scores: what is kept of a token, and products by head.
#pragma once

#include <cuda_runtime_api.h>

#include "operands.h"

namespace octavo {

// Products by head: each head's part of a row with that head's matrix. x, its rows and heads, and the weight lie at multiples of 16
// bytes.
struct ByHeadArgs {
  Dtype dtype;             // of 16 bits
  const void *x, *weight;  // weight: [heads][columns][depth], dense
  void* out;               // [rows][heads][columns]
  int64_t x_stride, x_head_stride, out_stride, out_head_stride;
  int64_t rows;
  int heads, columns, depth;
};
// cudaErrorInvalidValue for what it does not take; then nothing is launched.
cudaError_t by_head(const ByHeadArgs&, cudaStream_t);

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
// The same, and products by head of a step's first rows, which may be none.
cudaError_t latent_queries(const LatentRowsArgs&, const ByHeadArgs&, cudaStream_t);

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

}  // namespace octavo
