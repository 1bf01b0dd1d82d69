// How keys and values reach the warps of the decode kernel, and which blocks begin with items of their own.
#pragma once

#include "attention/decode.cuh"

namespace octavo {
namespace {

constexpr int kMaxStages = 8;

// Blocks that find no room until those of the prefix kernel have ended own no items: the others will not wait for them.
__device__ inline int owning_blocks(const AttentionArgs& a, int resident) {
  return gridDim.x - (a.prefix ? resident * prefix_blocks(a, gridDim.x / resident) : 0);
}
// Two blocks in a row mostly run on one multiprocessor: few items go to every second block first.
__device__ inline int block_rank(int blocks) { return int(blockIdx.x) / 2 + (blockIdx.x % 2 ? (blocks + 1) / 2 : 0); }

// Asks for the keys and values of 16 tokens, the first at position `token` of a sequence and in `block`.
template <class C, int D>
__device__ void bring_slice(const AttentionArgs& a, int block, int head, int token, uint32_t stage,
                            [[maybe_unused]] uint32_t barrier) {
  const int lane = threadIdx.x % 32, offset = token & (a.cache.block_size - 1);
  const C* k = static_cast<const C*>(a.cache.data) + int64_t(block) * a.cache.block_stride + head * a.cache.head_stride;
  const C* v = k + a.cache.kv_stride;
  constexpr int bytes = slice_bytes<C, D>;
#if OCTAVO_BULK_COPY
  if (lane == 0) {
    barrier_expect(barrier, 2 * bytes);
    const uint64_t policy = read_once_policy();
    auto bring = [&](uint32_t to, const C* cells) {
      slice_pieces<C, D>(cells, offset, a.cache.block_size, [&](int at, const void* from, int count) {
        copy_bulk(to + at, from, count, barrier, policy);
      });
    };
    bring(stage, k), bring(stage + bytes, v);
  }
#else
  auto bring = [&](uint32_t to, const C* cells) {
    slice_pieces<C, D>(cells, offset, a.cache.block_size, [&](int at, const void* from, int count) {
      for (int i = lane * 16; i < count; i += 512) copy16(to + at + i, static_cast<const char*>(from) + i);
    });
  };
  bring(stage, k), bring(stage + bytes, v);
#endif
}

// The slices of one warp that are in shared memory or on their way there.
template <class C, int D>
struct Ring {
  static constexpr int kStageBytes = 2 * slice_bytes<C, D>;
  const uint32_t slots, barriers;
  const int stages;
  int filled = 0, write = 0, read = 0;
  uint32_t parity = 0;

  __device__ Ring(uint32_t memory, uint32_t full, int count) : slots(memory), barriers(full), stages(count) {}

  // `now`: what the feeder wants to know about the work at hand.
  template <class Feeder, class... Now>
  __device__ void fill(Feeder& feeder, Now... now) {
    while (filled < stages) {
      if (feeder.ready(now...)) feeder.feed(slots + write * kStageBytes, barriers + write * 8);
      else if (OCTAVO_BULK_COPY) return;
#if !OCTAVO_BULK_COPY
      commit_copies();  // also when nothing is left: groups are counted
#endif
      advance();
    }
  }
  // The first slice of all, if it ends before `history`; no more, because the queries queue behind it.
  template <class Feeder>
  __device__ void fill_history(Feeder& feeder, int history) {
    if (!feeder.has_first() || feeder.token() + kSlice > history) return;
    feeder.feed(slots, barriers);
    advance();
  }
  __device__ void advance() {
    ++filled;
    if (++write == stages) write = 0;
  }
  template <int N>
  __device__ void wait(uint32_t (&places)[N]) const;
  __device__ void release(int count) {
    __syncwarp();
    filled -= count, read += count;
    if (read >= stages) read -= stages, parity ^= 1;
  }
};

// Waits for the N oldest slices and gives their places.
template <class C, int D>
template <int N>
__device__ void Ring<C, D>::wait(uint32_t (&places)[N]) const {
#if !OCTAVO_BULK_COPY
  wait_oldest(stages - N + 1);
  __syncwarp();
#endif
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int at = read + n < stages ? read + n : read + n - stages;
#if OCTAVO_BULK_COPY
    barrier_wait(barriers + at * 8, at < read ? parity ^ 1 : parity);
#endif
    places[n] = slots + at * kStageBytes;
  }
}

}  // namespace
}  // namespace octavo
