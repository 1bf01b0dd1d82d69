// Products with weights of this kind of codes; see coded_wide.cuh.
#include "coded/coded_wide.cuh"
#include "coded/coded_wide.h"

namespace octavo {

template <>
cudaError_t coded_wide_of<Codes::fp4>(const CodedArgs& a, const CodedWideTile& tile, const CodedSizes& sizes,
                                       const Device& device, cudaStream_t stream) {
  switch (sizes.grouping.of_brick) {
    case 4: return launch_wide<Codes::fp4, 4>(a, tile, sizes, device, stream);
    case 8: return launch_wide<Codes::fp4, 8>(a, tile, sizes, device, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace octavo
