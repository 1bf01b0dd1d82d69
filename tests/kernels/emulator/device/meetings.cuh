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
template <int N>
void send_words(uint32_t address, uint32_t barrier, int rank, const float (&v)[N]) {
  if (address % (4 * N)) emulator::fail("a message to where it is not aligned");
  auto* block = emulator::current->block->cluster[rank];
  char* to = emulator::shared_of(block, address, 4 * N);
  std::vector<float> sent(v, v + N);
  copy_later(block, barrier, 4 * N, [=] { std::memcpy(to, sent.data(), 4 * N); });
}

}  // namespace octavo
