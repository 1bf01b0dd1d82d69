// Meetings of a cluster in two halves, and words that another block's barrier hears of.
#pragma once

#include "device/common.cuh"

namespace octavo {

// Clusters of more than eight blocks, which not every chip with clusters has.
template <class... Parameters>
inline cudaError_t allow_large_clusters(void (*kernel)(Parameters...)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

#if OCTAVO_CLUSTERS

// Tells the cluster that what this block has read and written is past, and waits until all of them have told so. Every thread of
// all blocks says it; a thread that has ended counts as one that did.
__device__ inline void tell_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Stores v in another block's shared memory, at the same address as in this one's, and tells that block's barrier.
__device__ inline void send_word(uint32_t address, uint32_t barrier, int rank, float v) {
  asm volatile(
      "{\n"
      ".reg .b32 to, done;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 done, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [done];\n"
      "}\n" ::"r"(address),
      "r"(barrier), "r"(rank), "r"(__float_as_uint(v))
      : "memory");
}

#endif

}  // namespace octavo
