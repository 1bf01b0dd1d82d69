// Launches the kernel that was chosen for a product of codes of eight bits, by octavo_kernels/products/choice.py alone.
#include "w8a8/w8a8.cuh"

namespace octavo {

cudaError_t w8a8_linear(const W8A8Args& a, const W8A8Launch& launch, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  switch (launch.kernel) {
    case W8A8Kernel::plain: return w8a8_plain(a, stream);
#if OCTAVO_HOPPER
    case W8A8Kernel::wide: {
      Device device;
      if (cudaError_t error = describe(device); error != cudaSuccess) return error;
      return w8a8_wide(a, launch, device, stream);
    }
#endif
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace octavo
