// Choice among products in tiles, and which file has their kernels.
#include "coded/coded_tiles.h"

#include "linear/linear.cuh"

namespace octavo {

cudaError_t coded_tiles(const CodedArgs& a, const CodedTile& tile, [[maybe_unused]] cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const bool halves = !a.gated || a.columns % (2 * kStripRows) == 0;
  const bool has_cluster = tile.cluster >= 1 && tile.cluster <= kMostCluster;
  if (!runs_hopper_code(device) || a.rows < 1 || a.depth < 1 || a.columns < 1 || a.norm || !halves || !has_cluster ||
      !aligned(a.x, a.x_stride))
    return cudaErrorInvalidValue;
#if OCTAVO_HOPPER
  const CodedSizes sizes = sizes_of(a.matrix);
  switch (a.matrix.kind) {
    case Codes::int4: return coded_tiles_of<Codes::int4>(a, tile, sizes, stream);
    case Codes::int8: return coded_tiles_of<Codes::int8>(a, tile, sizes, stream);
    case Codes::fp4: return coded_tiles_of<Codes::fp4>(a, tile, sizes, stream);
    case Codes::fp8: return coded_tiles_of<Codes::fp8>(a, tile, sizes, stream);
  }
#endif
  return cudaErrorInvalidValue;
}

}  // namespace octavo
