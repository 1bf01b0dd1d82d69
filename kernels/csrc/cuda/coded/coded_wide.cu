// Choice among products in wide tiles, and which file has their kernels.
#include "coded/coded_wide.h"

#include "linear/linear.cuh"

namespace octavo {

cudaError_t coded_wide(const CodedArgs& a, const CodedWideTile& tile, [[maybe_unused]] cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const bool whole = a.columns % (a.gated ? 2 * kStripRows : 8) == 0;
  const bool placed = aligned(a.x, a.x_stride) && aligned(a.out, a.out_stride) && aligned(a.residual, a.residual_stride);
  if (!runs_hopper_code(device) || a.rows < 1 || a.depth < 1 || a.columns < 1 || a.norm || (a.gated && a.residual) ||
      !whole || !placed)
    return cudaErrorInvalidValue;
#if OCTAVO_HOPPER
  const CodedSizes sizes = sizes_of(a.matrix);
  switch (a.matrix.kind) {
    case Codes::int4: return coded_wide_of<Codes::int4>(a, tile, sizes, device, stream);
    case Codes::int8: return coded_wide_of<Codes::int8>(a, tile, sizes, device, stream);
    case Codes::fp4: return coded_wide_of<Codes::fp4>(a, tile, sizes, device, stream);
    case Codes::fp8: return coded_wide_of<Codes::fp8>(a, tile, sizes, device, stream);
  }
#endif
  return cudaErrorInvalidValue;
}

}  // namespace octavo
