#pragma once

#include "device/common.cuh"

namespace octavo {

template <class V>
V words_at(uint32_t address) {
  V words;
  if (address % sizeof(V)) emulator::fail("words that are not aligned");
  std::memcpy(&words, emulator::shared_of(emulator::current->block, address, sizeof(V)), sizeof(V));
  return words;
}
template <class V>
void set_words(uint32_t address, V words) {
  if (address % sizeof(V)) emulator::fail("words that are not aligned");
  std::memcpy(emulator::shared_of(emulator::current->block, address, sizeof(V)), &words, sizeof(V));
}
inline int load_one(uint32_t address) { return words_at<int>(address); }
inline int2 load_pair(uint32_t address) { return words_at<int2>(address); }
inline int4 load_four(uint32_t address) { return words_at<int4>(address); }
inline void store_pair(uint32_t address, int x, int y) { set_words(address, int2{x, y}); }
inline void store_four(uint32_t address, int x, int y, int z, int w) { set_words(address, int4{x, y, z, w}); }
inline int read_thread() { return threadIdx.x; }

}  // namespace octavo
