// Rows of latent attention that a step keeps, in one launch with the rotated part of its queries. And such rows as they are read
// back, for keys and values that are made of them.
#include "latent/rows.cuh"

namespace octavo {
namespace {

template <class T, class C>
__global__ void __launch_bounds__(kLatentWarps * 32) latent_kernel(const __grid_constant__ LatentRowsArgs a) {
  LatentRow<T, C> row(a, blockIdx.x);
  wait_for_previous_kernel();
  launch_next_kernel();
  row.keep();
}

// Rows of whole blocks in the order of their columns, one warp a row. A code times its scale is rounded once.
template <class T, class C>
__global__ void __launch_bounds__(kLatentWarps * 32) read_kernel(const __grid_constant__ LatentReadArgs a) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t row = int64_t(blockIdx.x) * kLatentWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32, block_size = a.cache.block_size, within = int(row % block_size);
  if (row >= a.count * block_size) return;
  C* const cells = static_cast<C*>(a.cache.data) + a.blocks[row / block_size] * a.cache.block_stride;
  T* const out = static_cast<T*>(a.out) + row * a.out_stride;
  if constexpr (is_scaled<C>) {
    const float scale = scales_of(cells, a.rank, block_size)[within];
    const C* const codes = cells + int64_t(within) * a.rank;
#pragma unroll 2  // registers are short
    for (int i = lane; i < a.rank; i += 32)
      out[i] = from_float<T>(to_float(codes[cell_place<C>(a.rank, within, i, false)]) * scale);
    const T* const exact = exact_of<T>(cells, a.rank, block_size) + within * a.rotated;
    for (int i = lane; i < a.rotated; i += 32) out[a.rank + i] = exact[i];
  } else {
    constexpr int unit = 16 / int(sizeof(T));
    const int width = a.rank + a.rotated;
    const T* const kept = cells + int64_t(within) * width;
    for (int i = lane * unit; i < width; i += 32 * unit)
      *reinterpret_cast<uint4*>(out + i) = *reinterpret_cast<const uint4*>(kept + cell_place<T>(width, within, i, false));
  }
}

}  // namespace

cudaError_t latent_rows(const LatentRowsArgs& a, cudaStream_t stream) {
  if (a.tokens == 0) return cudaSuccess;
  const Launch how{dim3(unsigned(latent_blocks(a))), kLatentWarps * 32};
  return with_dtype(a.dtype, [&](auto row) {
    using T = decltype(row);
    return with_latent_cells(row, a.cache.cells, [&](auto cell) {
      return launch_after(latent_kernel<T, decltype(cell)>, how, stream, a);
    });
  });
}

cudaError_t latent_read(const LatentReadArgs& a, cudaStream_t stream) {
  if (a.count == 0) return cudaSuccess;
  const int64_t rows = a.count * a.cache.block_size;
  const Launch how{dim3(unsigned((rows + kLatentWarps - 1) / kLatentWarps)), kLatentWarps * 32};
  return with_dtype(a.dtype, [&](auto row) {
    using T = decltype(row);
    return with_latent_cells(row, a.cache.cells, [&](auto cell) {
      return launch_after(read_kernel<T, decltype(cell)>, how, stream, a);
    });
  });
}

}  // namespace octavo
