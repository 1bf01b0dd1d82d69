// Launches the kernel that was chosen for a product. The choice is octavo_kernels/products/choice.py's alone.
#include "linear/linear.cuh"

namespace octavo {

cudaError_t linear(const LinearArgs& a, const LinearLaunch& launch, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major < 9) return cudaErrorInvalidValue;
  switch (launch.kernel) {
    case LinearKernel::row: return linear_row(a, device, stream);
    case LinearKernel::held: return linear_held(a, device, stream);
    case LinearKernel::ring: return linear_ring(a, launch.cluster, device, stream);
#if OCTAVO_HOPPER
    case LinearKernel::wide: return linear_wide(a, launch.tile, device, stream);
    case LinearKernel::uniform: return linear_uniform(a, launch.tile, device, stream);
    case LinearKernel::swapped: return linear_swapped(a, launch.tile, launch.shares, device, stream);
#endif
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace octavo
