// Products with weights of this kind of codes; see coded_wide.cuh.
#include "coded/coded_wide.cuh"
#include "coded/coded_wide.h"

namespace octavo {

template <>
cudaError_t coded_wide_of<Codes::int8>(const CodedArgs& a, const CodedWideTile& tile, const CodedSizes& sizes,
                                       const Device& device, cudaStream_t stream) {
  switch (sizes.grouping.of_brick) {
    case 1: return launch_wide<Codes::int8, 1>(a, tile, sizes, device, stream);
    case 2: return launch_wide<Codes::int8, 2>(a, tile, sizes, device, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace octavo
