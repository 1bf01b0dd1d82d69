// Writes into the paged cache and copies of its blocks.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/args.h"  // kSlice: block sizes are multiples of it

namespace octavo {

cudaError_t write_cache(const WriteArgs&, cudaStream_t);
cudaError_t simt_write(const WriteArgs&, cudaStream_t);  // what that one does not take
cudaError_t copy_blocks(void* cache, int64_t block_bytes, const int64_t* pairs, int64_t count, cudaStream_t);
// One asynchronous copy a pair (source block, target block), of `block_bytes` each.
cudaError_t swap_blocks(const void* source, void* target, int64_t block_bytes, const int64_t* pairs, int64_t count,
                        cudaStream_t);

}  // namespace octavo
