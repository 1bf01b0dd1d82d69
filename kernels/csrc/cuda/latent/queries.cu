// Rows that latent attention keeps of a step, and its queries as they meet them, in one launch: behind the blocks of the products
// by head stand those of the rows.
#include "latent/rows.cuh"
#include "latent/by_head.cuh"

namespace octavo {
namespace {

static_assert(kLatentWarps * 32 == kHeadThreads);

template <class T, class C>
__global__ void __launch_bounds__(kHeadThreads)
    latent_queries_kernel(const __grid_constant__ LatentRowsArgs a, const __grid_constant__ ByHeadArgs queries,
                          const __grid_constant__ ByHeadCut cut) {
  extern __shared__ __align__(128) char shared[];
  if (int(blockIdx.x) >= cut.blocks) {
    LatentRow<T, C> row(a, blockIdx.x - cut.blocks);
    wait_for_previous_kernel();
    launch_next_kernel();
    return row.keep();
  }
  const ByHeadBlock<T> block(queries, cut, shared, blockIdx.x);
  block.bring_weights();
  wait_for_previous_kernel();
  launch_next_kernel();
  block.compute();
}

}  // namespace

cudaError_t latent_queries(const LatentRowsArgs& a, const ByHeadArgs& queries, cudaStream_t stream) {
  if (a.tokens == 0) return cudaSuccess;
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  ByHeadCut cut;
  if (!cut_by_head(cut, queries, device) || queries.dtype != a.dtype) return cudaErrorInvalidValue;
  const Launch how{dim3(unsigned(cut.blocks + latent_blocks(a))), kHeadThreads, cut.bytes};
  return with_half(a.dtype, [&](auto row) {
    using T = decltype(row);
    return with_latent_cells(row, a.cache.cells, [&](auto cell) {
      return launch_after(latent_queries_kernel<T, decltype(cell)>, how, stream, a, queries, cut);
    });
  });
}

}  // namespace octavo
