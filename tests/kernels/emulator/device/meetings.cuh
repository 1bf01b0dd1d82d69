#pragma once

#include "device/common.cuh"

namespace octavo {

template <class... Parameters>
cudaError_t allow_large_clusters(void (*)(Parameters...)) {
  return cudaSuccess;
}
inline void tell_cluster() {
  auto& meeting = *emulator::current->block->cluster_meeting;
  emulator::current->meetings = meeting.generation + 1;
  if (++meeting.arrived < emulator::cluster_threads) return;
  meeting.arrived = 0, ++meeting.generation, emulator::steps_without_progress = 0;
}
inline void wait_for_cluster() {
  while (emulator::current->block->cluster_meeting->generation < emulator::current->meetings) emulator::yield();
}
inline void send_word(uint32_t address, uint32_t barrier, int rank, float v) {
  auto* block = emulator::current->block->cluster[rank];
  char* to = emulator::shared_of(block, address, 4);
  copy_later(block, barrier, 4, [=] { std::memcpy(to, &v, 4); });
}

}  // namespace octavo
