// A ring of buffers between warps that fill it and warps that empty it.
#pragma once

#include "device/wgmma.cuh"

namespace octavo {

constexpr int kWarpgroup = 128;  // threads that multiply together, on Hopper

// As one side sees it. `parity` is that of the phase to wait for.
struct BufferRing {
  uint32_t full, empty;  // barriers
  int length, stage = 0;
  uint32_t parity = 0;

  __device__ BufferRing(uint32_t barriers, int stages) : full(barriers), empty(barriers + 8 * stages), length(stages) {}
  __device__ uint32_t full_now() const { return full + 8 * stage; }
  __device__ uint32_t empty_now() const { return empty + 8 * stage; }
  __device__ void advance() {
    if (++stage == length) stage = 0, parity ^= 1;
  }
  // So many at once.
  __device__ void skip(int count) {
    stage += count, parity ^= stage / length & 1, stage %= length;
  }

#if OCTAVO_WGMMA
  // One thread's: so many arrivals say that a buffer is full, and that it is empty again.
  __device__ void init(int fills, int leaves) const {
    for (int i = 0; i < length; ++i) barrier_init(full + 8 * i, fills), barrier_init(empty + 8 * i, leaves);
  }
  __device__ void await_empty() const { barrier_wait(empty_now(), parity ^ 1); }
  __device__ void await_full() const { barrier_wait(full_now(), parity); }
  // Until every buffer is empty.
  __device__ void drain() {
    for (int i = 0; i < length; ++i) await_empty(), advance();
  }
#endif
};

}  // namespace octavo
