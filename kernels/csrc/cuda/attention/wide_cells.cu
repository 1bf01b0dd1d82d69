// Attention of wide heads over caches in eight bits.
#include "attention/wide_kernel.cuh"

namespace octavo {

cudaError_t wide_attention_cells(const WideArgs& a, cudaStream_t stream) {
  return a.cache.cells == Cells::i8 ? launch_cells<IntegerCells>(a, stream) : launch_cells<FloatCells>(a, stream);
}

}  // namespace octavo
