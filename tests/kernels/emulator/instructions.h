// What kernels of products write as assembly: `emulated_linear.py` makes calls of it, with the text and the operands.
#pragma once

#include <string_view>

#include "device/cluster.cuh"

#undef __maxnreg__
#define __maxnreg__(...)
#undef __noinline__
#define __noinline__

namespace octavo {

inline void barrier_arrive(int id, int threads) {
  auto& m = emulator::current->block->named[id];
  if (++m.arrived == threads) m.arrived = 0, ++m.generation, emulator::steps_without_progress = 0;
}

}  // namespace octavo

inline unsigned atomicInc(unsigned* at, unsigned most) { return std::exchange(*at, *at >= most ? 0 : *at + 1); }

namespace emulator {

// Threads of a cluster meet once.
inline void instruction(std::string_view text) {
  if (text.find("barrier.cluster.arrive") == 0) {
    ++cluster_meeting.arrived, steps_without_progress = 0;
  } else if (text.find("barrier.cluster.wait") == 0) {
    while (cluster_meeting.arrived < cluster_threads) yield();
  } else if (text.find("fence.") != 0) {
    fail("an instruction that is not emulated");
  }
}
inline void instruction(std::string_view, const CUtensorMap*) {}  // a prefetch
template <class... Policy>
void instruction(std::string_view, uint32_t shared, const CUtensorMap* map, int first, int second, int third, uint32_t barrier,
                 Policy...) {
  octavo::copy_tensor(current->block, shared, *map, {first, second, third, 0, 0}, barrier);
}
inline void instruction(std::string_view, uint32_t shared, const CUtensorMap* map, int depth, int zero, int eights,
                        uint32_t barrier, uint16_t blocks) {
  for (Block* block : current->block->cluster)
    if (blocks >> block->rank & 1) octavo::copy_tensor(block, shared, *map, {depth, zero, zero, eights, 0}, barrier);
}
template <class V>
void send(uint32_t address, uint32_t barrier, int rank, V value) {
  Block* block = current->block->cluster[rank];
  char* to = shared_of(block, address, sizeof(value));
  octavo::copy_later(block, barrier, sizeof(value), [=] { std::memcpy(to, &value, sizeof(value)); });
}
inline void instruction(std::string_view, uint32_t address, uint32_t barrier, int rank, float x, float y, float z, float w) {
  send(address, barrier, rank, float4{x, y, z, w});
}
inline void instruction(std::string_view, uint32_t address, uint32_t barrier, int rank, int v) {
  send(address, barrier, rank, v);
}

}  // namespace emulator
