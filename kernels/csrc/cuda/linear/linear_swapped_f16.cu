// Products of 65 to 256 rows: one unit for each type, side by side in a build.
#include "linear/linear_swapped.cuh"

cudaError_t octavo::linear_swapped_f16(const LinearArgs& a, const LinearTile& tile, int shares, const Device& device,
                                       cudaStream_t stream) {
  return launch_swapped<f16>(a, tile, shares, device, stream);
}
