// Products with weights of this kind of codes; see coded_tiles.cuh.
#include "coded/coded_tiles.cuh"
#include "coded/coded_tiles.h"

namespace octavo {

template <>
cudaError_t coded_tiles_of<Codes::fp4>(const CodedArgs& a, const CodedTile& tile, const CodedSizes& sizes, cudaStream_t stream) {
  switch (sizes.grouping.of_brick) {
    case 4: return launch_tiles<Codes::fp4, 4>(a, tile, sizes, stream);
    case 8: return launch_tiles<Codes::fp4, 8>(a, tile, sizes, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace octavo
