// A ring of buffers between warps that fill it and warps that empty it.
#pragma once

#include "device/common.cuh"

namespace octavo {

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
};

}  // namespace octavo
