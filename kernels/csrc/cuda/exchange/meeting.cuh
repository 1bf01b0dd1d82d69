// Where ranks find each other: counts of calls, slots, waits, meetings.
//
// Calls are counted on the device, so that graphs need no number from the host. What a call pushes goes into one of two sets of
// slots. A rank takes it out and leaves gaps (`kGap`), in the same call. Another rank writes there again in its next call but
// one, which comes after the next call, which waits for what this rank sends in it, which this rank does when it has ended the
// first. So nothing is overwritten, and slots are empty when they are written to.
// The idea of data that is its own flag: L. Lamport's registers, as NCCL's LL protocol and TensorRT-LLM's one-shot all-reduce
// have it.
#pragma once

#include "device/peer.cuh"
#include "exchange/args.h"

namespace octavo {

inline constexpr int kTurns = 1024;                     // of a wait between two looks at what ends it
inline constexpr uint64_t kPatience = 10'000'000'000u;  // nanoseconds

__device__ inline Counts* counts_of(const Peers& peers) { return reinterpret_cast<Counts*>(peers.memory[peers.rank]); }

// The number of this call, from what is there when the previous kernel has ended.
__device__ inline uint64_t this_call(const Peers& peers) { return load_system(&counts_of(peers)->calls) + 1; }

// One thread of each block says that all of the block know the number. The last of them counts the call.
__device__ inline void count_call(const Peers& peers, uint64_t call) {
  Counts* counts = counts_of(peers);
  if (atomicAdd(&counts->arrived, 1u) + 1 < gridDim.x) return;
  counts->arrived = 0;
  counts->calls = call;
}

// Where rank `to` finds what rank `from` pushes in this call.
__device__ inline uint4* slot(const Peers& peers, int to, int from, uint64_t call) {
  const int64_t at = (int64_t(call % 2) * peers.ranks + from) * peers.slot_bytes;
  return reinterpret_cast<uint4*>(peers.memory[to] + kSlotsAt + at);
}
__device__ inline bool has_gap(const uint4& x) { return x.x == kGap || x.y == kGap || x.z == kGap || x.w == kGap; }
__device__ inline void leave_gaps(uint4* at) { store_system(at, make_uint4(kGap, kGap, kGap, kGap)); }

// The rank that is `step` further on in a circle of them, less than a whole one: so not all write to the same one at a time.
__device__ inline int rank_after(const Peers& peers, int step) {
  const int next = peers.rank + step;
  return next < peers.ranks ? next : next - peers.ranks;
}
__device__ inline int rank_before(const Peers& peers, int step) {
  return step <= peers.rank ? peers.rank - step : peers.rank - step + peers.ranks;
}

// A thread that waits for another rank.
class Wait {
 public:
  // True if a wait looks again: until the host or another thread says no, or for long enough.
  __device__ bool goes_on(const Peers& peers) {
    if (++turns_ % kTurns != 0) return true;
    const uint64_t now = nanoseconds();
    if (began_ == 0) began_ = now;
    Watch* watch = peers.watch;
    if (!load_system(&watch->aborted) && !load_system(&watch->lost) && now - began_ < kPatience) return true;
    store_system(&watch->lost, 1u);
    return false;
  }

 private:
  uint32_t turns_ = 0;
  uint64_t began_ = 0;
};

// This block and those of its number on the other ranks: what they wrote before is there. Numbers of meetings only grow.
__device__ inline void meet(const Peers& peers, uint64_t number) {
  __syncthreads();
  const int other = threadIdx.x;
  if (other < peers.ranks && other != peers.rank) {
    const auto flags = [&](int rank) {
      return reinterpret_cast<uint64_t*>(peers.memory[rank] + kFlagsAt) + blockIdx.x * kMostRanks;
    };
    store_released(flags(other) + peers.rank, number);
    Wait wait;
    while (load_acquired(flags(peers.rank) + other) < number && wait.goes_on(peers)) continue;
  }
  __syncthreads();
}

}  // namespace octavo
