// Access of a cluster's blocks to each other's shared memory.
#pragma once

#include "device/wgmma.cuh"

namespace octavo {

#if OCTAVO_WGMMA

// Barriers that were initialised are there for copies, and for the cluster after it has met.
__device__ inline void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_bulk();
}
// Copies a box of a matrix to the same place in several blocks of the cluster, whose barriers there hear of it.
__device__ inline void copy_rows(uint32_t shared, const CUtensorMap& map, int depth, int row, uint32_t barrier,
                                 uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(shared),
      "l"(&map), "r"(depth), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}
// Copies a box of a tensor of three dimensions to this block.
__device__ inline void copy_box(uint32_t shared, const CUtensorMap& map, int first, int second, int third, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          shared),
      "l"(&map), "r"(first), "r"(second), "r"(third), "r"(barrier)
      : "memory");
}
// Arrival at a barrier of what was read by products that have ended, which need no fence: one for the cluster takes as long as a
// stage.
__device__ inline void arrive_at(uint32_t barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Four floats to this address of another block's shared memory.
__device__ inline void store_at(int rank, uint32_t address, float4 v) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n"
      "}\n" ::"r"(address),
      "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}

#endif

}  // namespace octavo
