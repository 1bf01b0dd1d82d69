// Products by head, in a launch of their own.
#include "latent/by_head.cuh"

namespace octavo {
namespace {

template <class T>
__global__ void __launch_bounds__(kHeadThreads)
    by_head_kernel(const __grid_constant__ ByHeadArgs a, const __grid_constant__ ByHeadCut cut) {
  extern __shared__ __align__(128) char shared[];
  const ByHeadBlock<T> block(a, cut, shared, blockIdx.x);
  block.bring_weights();
  wait_for_previous_kernel();
  launch_next_kernel();
  block.compute();
}

}  // namespace

cudaError_t by_head(const ByHeadArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  ByHeadCut cut;
  if (!cut_by_head(cut, a, device)) return cudaErrorInvalidValue;
  if (cut.blocks == 0) return cudaSuccess;
  const Launch how{dim3(unsigned(cut.blocks)), kHeadThreads, cut.bytes};
  return with_half(a.dtype, [&](auto tag) { return launch_after(by_head_kernel<decltype(tag)>, how, stream, a, cut); });
}

}  // namespace octavo
