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

// Stores one, two or four words in another block's shared memory, at the same address as in this one's, and tells that block's barrier:
// one message.
template <int N>
__device__ inline void send_words(uint32_t address, uint32_t barrier, int rank, const float (&v)[N]) {
  static_assert(N == 1 || N == 2 || N == 4);
  uint32_t to, done;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(address), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(done) : "r"(barrier), "r"(rank));
  if constexpr (N == 1)
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %2, [%1];" ::"r"(to), "r"(done), "f"(v[0])
                 : "memory");
  else if constexpr (N == 2)
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%2, %3}, [%1];" ::"r"(to), "r"(done),
                 "f"(v[0]), "f"(v[1])
                 : "memory");
  else
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(to),
                 "r"(done), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}

#endif

}  // namespace octavo
