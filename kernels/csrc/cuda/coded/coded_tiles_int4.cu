// Products with weights of this kind of codes; see coded_tiles.cuh.
#include "coded/coded_tiles.cuh"
#include "coded/coded_tiles.h"

namespace octavo {

template <>
cudaError_t coded_tiles_of<Codes::int4>(const CodedArgs& a, const CodedTile& tile, const CodedSizes& sizes, cudaStream_t stream) {
  switch (sizes.grouping.of_brick) {
    case 1: return launch_tiles<Codes::int4, 1>(a, tile, sizes, stream);
    case 2: return launch_tiles<Codes::int4, 2>(a, tile, sizes, stream);
    case 4: return launch_tiles<Codes::int4, 4>(a, tile, sizes, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace octavo
