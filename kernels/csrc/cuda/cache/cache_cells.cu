#include "cache/cache_kernel.cuh"

namespace octavo {

cudaError_t write_cache_cells(const WriteArgs& a, cudaStream_t stream) {
  const int half = a.rotary_dim / 16;  // units that rotate with as many others
  // Every 16 bytes are one thread's, or that of two neighbours.
  const bool fits = !a.cos_sin || (a.rotary_dim % 16 == 0 && (half == 1 || half % 2 == 0));
  if (!fits) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto data) {
    using T = decltype(data);
    return with_common_head_dim(a.head_dim, [&](auto dim) {
      constexpr int D = decltype(dim)::value;
      return a.cache.cells == Cells::i8 ? launch_write<T, i8, D, 8>(a, stream) : launch_write<T, f8, D, 8>(a, stream);
    });
  });
}

}  // namespace octavo
