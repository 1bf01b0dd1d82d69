// Blocks of a cluster: how they are launched and how they meet.
#pragma once

#include "common.cuh"

namespace octavo {

#if OCTAVO_BULK_COPY

// Tells the cluster that this block's barriers are there (which a fence has published), and waits for the others'.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Meets the others, who then see what was done before.
__device__ inline void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// What an address in this block's shared memory is in that of another block of the cluster.
__device__ inline uint32_t address_in(int rank, uint32_t address) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Publishes barriers to the cluster's other blocks, before they meet.
__device__ inline void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// `barrier` is an address of `address_in`.
__device__ inline void barrier_arrive_in(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

#endif

// Launches blocks in clusters of `cluster`; they may begin before the stream's previous kernel has ended.
template <class... Parameters, class... Arguments>
cudaError_t launch_clusters(void (*kernel)(Parameters...), int cluster, int blocks, int threads, int bytes,
                            cudaStream_t stream, const Arguments&... arguments) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks), config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes;
  config.stream = stream, config.attrs = attributes, config.numAttrs = cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace octavo
