// Writes into the paged cache and copies of whole blocks.
#include <algorithm>

#include "cache/args.h"
#include "cache/cache_kernel.cuh"

namespace octavo {
namespace {

constexpr int kCopyThreads = 128, kCopyUnroll = 4;  // small pieces, so that one block of the cache keeps the chip busy
constexpr int64_t kCopyBytes = int64_t(kCopyThreads) * kCopyUnroll * 16;

__global__ void __launch_bounds__(kCopyThreads)
    copy_kernel(char* cache, int64_t block_bytes, const int64_t* pairs) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int4* source = reinterpret_cast<const int4*>(cache + pairs[2 * blockIdx.y] * block_bytes);
  int4* target = reinterpret_cast<int4*>(cache + pairs[2 * blockIdx.y + 1] * block_bytes);
  const int64_t first = blockIdx.x * kCopyBytes / 16 + threadIdx.x, end = block_bytes / 16;
  int4 value[kCopyUnroll];
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i)
    if (first + i * kCopyThreads < end) value[i] = __ldcs(source + first + i * kCopyThreads);
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i)
    if (first + i * kCopyThreads < end) __stcs(target + first + i * kCopyThreads, value[i]);
}

}  // namespace

cudaError_t write_cache(const WriteArgs& a, cudaStream_t stream) {
  if (a.tokens == 0) return cudaSuccess;
  if (a.cache.cells != Cells::plain) return write_cache_cells(a, stream);
  return with_half(a.dtype, [&](auto data) {
    using T = decltype(data);
    return with_head_dim(a.head_dim, [&](auto dim) {
      constexpr int D = decltype(dim)::value;
      if (!a.cos_sin || a.rotary_dim % 16 == 0) return launch_write<T, T, D, 8>(a, stream);
      if (a.rotary_dim % 8 == 0) return launch_write<T, T, D, 4>(a, stream);
      return cudaErrorInvalidValue;
    });
  });
}

cudaError_t copy_blocks(void* cache, int64_t block_bytes, const int64_t* pairs, int64_t count, cudaStream_t stream) {
  const int64_t slices = (block_bytes + kCopyBytes - 1) / kCopyBytes, most = 32768;
  for (int64_t done = 0; done < count; done += most) {
    const dim3 grid{unsigned(slices), unsigned(std::min(most, count - done)), 1};
    const cudaError_t error =
        launch_after(copy_kernel, {grid, kCopyThreads}, stream, static_cast<char*>(cache), block_bytes, pairs + 2 * done);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t swap_blocks(const void* source, void* target, int64_t block_bytes, const int64_t* pairs, int64_t count,
                        cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  for (int64_t i = 0; i < count && error == cudaSuccess; ++i)
    error = cudaMemcpyAsync(static_cast<char*>(target) + pairs[2 * i + 1] * block_bytes,
                            static_cast<const char*>(source) + pairs[2 * i] * block_bytes, size_t(block_bytes),
                            cudaMemcpyDefault, stream);
  return error;
}

}  // namespace octavo
