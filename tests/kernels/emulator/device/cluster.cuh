#pragma once

#include "device/wgmma.cuh"

namespace octavo {

inline void fence_barriers() {}
inline void copy_rows(uint32_t shared, const CUtensorMap& map, int depth, int row, uint32_t barrier, uint16_t blocks) {
  for (auto* block : emulator::current->block->cluster)
    if (blocks >> block->rank & 1) copy_tensor(block, shared, map, {depth, row, 0, 0, 0}, barrier);
}
inline void copy_box(uint32_t shared, const CUtensorMap& map, int first, int second, int third, uint32_t barrier) {
  copy_tensor(emulator::current->block, shared, map, {first, second, third, 0, 0}, barrier);
}
inline void arrive_at(uint32_t barrier, int rank) { arrive(emulator::current->block->cluster[rank], barrier, 0); }
inline void store_at(int rank, uint32_t address, float4 v) {
  std::memcpy(emulator::shared_of(emulator::current->block->cluster[rank], address, 16), &v, 16);
}

}  // namespace octavo
