// Queries of a device, and launches.
#pragma once

#include <cuda_runtime_api.h>

namespace octavo {

struct Device {
  int major, multiprocessors, shared_per_multiprocessor, shared_per_block;
};

inline cudaError_t describe(Device& d) {
  int device;
  cudaError_t error = cudaGetDevice(&device);
  auto get = [&](int& value, cudaDeviceAttr attribute) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, device);
  };
#if OCTAVO_HIP
  d.major = 0;  // HIP reports 9 for chips that have nothing of Hopper's
#else
  get(d.major, cudaDevAttrComputeCapabilityMajor);
#endif
  get(d.multiprocessors, cudaDevAttrMultiProcessorCount);
  get(d.shared_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  get(d.shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return error;
}

// True if the device runs the code for 90a.
inline bool runs_hopper_code([[maybe_unused]] const Device& d) {
#if OCTAVO_HOPPER
  return d.major == 9;
#else
  return false;
#endif
}

struct Launch {
  dim3 grid;
  int threads, shared_bytes = 0;  // of a block; the latter beside its static variables
  int cluster = 1;                // blocks, along x
  int share = 0;  // percent of a multiprocessor's memory that are to be shared memory, the rest L1; 0: as the driver sees fit
};

#if OCTAVO_HIP

// Launches a kernel when the previous one of the stream has ended. There are no clusters, nor a share to ask for.
template <class... Parameters, class... Arguments>
cudaError_t launch_after(void (*kernel)(Parameters...), const Launch& how, cudaStream_t stream, const Arguments&... arguments) {
  Device device;
  cudaError_t error = describe(device);
  if (error != cudaSuccess) return error;
  if (how.cluster > 1 || how.shared_bytes > device.shared_per_block) return cudaErrorInvalidValue;
  if (how.shared_bytes > 0)
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 how.shared_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<how.grid, how.threads, how.shared_bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

#else

// Launches a kernel that may begin before the previous one of the stream ends, where the device can do that. Such a
// kernel calls `wait_for_previous_kernel` before it touches memory, and `launch_next_kernel` to let its successor begin.
template <class... Parameters, class... Arguments>
cudaError_t launch_after(void (*kernel)(Parameters...), const Launch& how, cudaStream_t stream, const Arguments&... arguments) {
  Device device;
  cudaError_t error = describe(device);
  if (error == cudaSuccess && how.shared_bytes > 0)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[3] = {};
  int count = 0;
  const auto ask = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
    attributes[count].id = id;
    return attributes[count++].val;
  };
  if (device.major >= 9) ask(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
  if (how.cluster > 1) ask(cudaLaunchAttributeClusterDimension).clusterDim = {unsigned(how.cluster), 1, 1};
  if (how.share > 0) ask(cudaLaunchAttributePreferredSharedMemoryCarveout).sharedMemCarveout = how.share;
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid, config.blockDim = dim3(how.threads), config.dynamicSmemBytes = how.shared_bytes;
  config.stream = stream, config.attrs = attributes, config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// How many clusters of such a launch, whose shared memory is a block's share of a multiprocessor, run at once.
template <class... Parameters>
cudaError_t clusters_at_once(void (*kernel)(Parameters...), const Launch& how, int& clusters) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension, attribute.val.clusterDim = {unsigned(how.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid, config.blockDim = dim3(how.threads), config.dynamicSmemBytes = how.shared_bytes;
  config.attrs = &attribute, config.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
}

#endif

}  // namespace octavo
