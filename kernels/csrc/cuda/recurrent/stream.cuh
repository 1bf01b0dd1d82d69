// What blocks have in common that advance many matrices, one after the other: one thread copies the next ones into shared memory.
#pragma once

#include "recurrent/recurrence.cuh"

namespace octavo {

// Which of a number of buffers is next, and the parity of the time for which it is used. Of several crews each has every kCrews-th.
template <int kBuffers, int kCrews = 1>
struct Turn {
  static_assert(kBuffers % kCrews == 0);
  int at = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if ((at += kCrews) >= kBuffers) at -= kBuffers, parity ^= 1;
  }
};
template <int kBuffers, int kElements>
struct Matrices {
  alignas(16) float at[kBuffers][kElements];
  uint64_t full[kBuffers], empty[kBuffers];

#if OCTAVO_CLUSTERS
  // One thread's: so many warps take a matrix.
  __device__ void set_up(int takers) {
    for (int i = 0; i < kBuffers; ++i) barrier_init(shared_address(&full[i]), 1), barrier_init(shared_address(&empty[i]), takers);
  }
  // One thread's. No matrix: zeros, for which nothing is copied.
  __device__ void copy(Turn<kBuffers>& turn, const float* from) {
    constexpr uint32_t kBytes = sizeof(at[0]);
    const uint32_t done = shared_address(&full[turn.at]);
    barrier_wait(shared_address(&empty[turn.at]), turn.parity ^ 1);
    if (from) barrier_expect(done, kBytes), copy_bulk(shared_address(at[turn.at]), from, kBytes, done);
    else barrier_arrive_once(done);
    turn.advance();
  }
  // A warp's columns from `column` on of the next matrix.
  template <int kWide, int kCrews>
  __device__ void take(Turn<kBuffers, kCrews>& turn, State<kWide>& state, bool zeros, int column, int columns, int place) {
    barrier_wait(shared_address(&full[turn.at]), turn.parity);
    if (zeros) state.clear();
    else state.take(at[turn.at] + column, columns, place);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive_once(shared_address(&empty[turn.at]));
    turn.advance();
  }
#endif
};

// Stages of each team's sequences so far, modulo 256: in eight bits each.
struct StageCounts {
  uint32_t counts = 0;

  __device__ int of(int team) const { return int(counts >> 8 * team & 255); }
  __device__ void add(int team, int stages) {
    counts = (counts & ~(255u << 8 * team)) | (uint32_t(of(team) + stages) & 255) << 8 * team;
  }
};
__device__ inline int stages_of(const Sequence& s, int tokens) { return (s.tokens + tokens - 1) / tokens; }

}  // namespace octavo
