// Memory that several GPUs write and read. What a thread stores arrives late, in any order, and word by word: all of it before
// what is released, and when its kernel has ended.
#pragma once

#include <atomic>
#include <thread>
#include <unordered_map>

#include "device/common.cuh"

namespace emulator {

inline EMULATED std::unordered_map<uint32_t*, uint32_t> stored;  // which has not arrived
inline std::atomic<uint64_t> clock{1};                         // nanoseconds; only a test moves it on

inline void arrive(std::unordered_map<uint32_t*, uint32_t>::iterator one) {
  if (one == stored.end()) return;
  __atomic_store_n(one->first, one->second, __ATOMIC_RELEASE);
  stored.erase(one);
}
inline void arrive_one() {
  auto bucket = random_source() % stored.bucket_count();
  while (stored.bucket_size(bucket) == 0) bucket = (bucket + 1) % stored.bucket_count();
  arrive(stored.find(stored.begin(bucket)->first));
}
inline void arrive_all() {
  while (!stored.empty()) arrive_one();
}
// A thread that looks at memory of others may take its time.
inline void look_around() {
  steps_without_progress = 0;
  if (!stored.empty() && random_source() % 2) arrive_one();
  if (random_source() % 4) return;
  std::this_thread::yield();
  yield();
}

}  // namespace emulator

namespace octavo {

inline uint32_t load_system(const uint32_t* from) {
  emulator::look_around();
  emulator::arrive(emulator::stored.find(const_cast<uint32_t*>(from)));  // a thread sees what it stored itself
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
inline uint64_t load_system(const uint64_t* from) {
  emulator::look_around();
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
inline uint4 load_system(const uint4* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16) emulator::fail("a load of 16 bytes that are not aligned");
  uint32_t word[4];
  const unsigned first = emulator::random_source();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned at = (first + i) % 4;
    word[at] = load_system(reinterpret_cast<const uint32_t*>(from) + at);
  }
  return {word[0], word[1], word[2], word[3]};
}
inline void store_system(uint32_t* to, uint32_t v) { emulator::stored[to] = v; }
inline void store_system(uint4* to, const uint4& v) {
  if (reinterpret_cast<uintptr_t>(to) % 16) emulator::fail("a store of 16 bytes that are not aligned");
  const uint32_t word[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 4; ++i) store_system(reinterpret_cast<uint32_t*>(to) + i, word[i]);
}
inline void store_released(uint64_t* to, uint64_t v) {
  emulator::arrive_all();
  __atomic_store_n(to, v, __ATOMIC_RELEASE);
}
inline uint64_t load_acquired(const uint64_t* from) { return load_system(from); }
inline uint64_t nanoseconds() { return emulator::clock; }

}  // namespace octavo
