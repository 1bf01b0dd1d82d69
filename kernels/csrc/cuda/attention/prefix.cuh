// Facts that the kernels for shared prefixes, the plan and the fold share.
#pragma once

#include "attention/args.h"
#include "device/common.cuh"

namespace octavo {

// The kernel for Hopper, in builds for 90a. cudaErrorInvalidValue: it does not cover these arguments.
cudaError_t prefix_attention_wgmma(const AttentionArgs&, cudaStream_t);

// The head dims that kernel takes. Where it takes the tiles, it merges the chunks of runs.
constexpr bool merges_shared_runs(int head_dim) { return head_dim == 64 || head_dim == 128; }
inline bool prefix_merges_runs(const Device& device, int head_dim, float softcap = 0.0f) {
  return runs_hopper_code(device) && merges_shared_runs(head_dim) && softcap <= 0.0f;
}

// True if the prefix kernel has tiles. If it has, the decode kernel runs beside them and waits for nothing: their blocks let
// it begin when queries and keys are there, and it reads nothing of theirs. The fold, which waits for the decode kernel, hears
// from them when they have ended. If it has none, it lets the decode kernel begin at once and ends when what comes before both
// has ended.
__device__ inline bool beside_tiles(const AttentionArgs& a) { return a.prefix && a.header->prefix_items > 0; }
__device__ inline bool leaves_without_tiles(const AttentionArgs& a) {
  if (beside_tiles(a)) return false;
  launch_next_kernel();
  if (blockIdx.x == 0) wait_for_previous_kernel();
  return true;
}
#if OCTAVO_BULK_COPY
__device__ inline void add_tiles_left(const AttentionArgs& a, int tiles) { add_released(&a.header->tiles_left, tiles); }
#endif
// By one thread of the prefix kernel, before the decode kernel may begin: so many will be ended. Also before the kernel's
// wait: all blocks of the fold before have heard of the end of theirs when they let the next kernel begin.
__device__ inline void begin_tiles([[maybe_unused]] const AttentionArgs& a, [[maybe_unused]] int tiles) {
#if OCTAVO_BULK_COPY
  add_tiles_left(a, tiles);
  __threadfence();
#endif
}
// Called by one thread of those that have written the results of so many.
__device__ inline void end_tiles([[maybe_unused]] const AttentionArgs& a, [[maybe_unused]] int tiles) {
#if OCTAVO_BULK_COPY
  add_tiles_left(a, -tiles);
#endif
}
__device__ inline void wait_for_tiles([[maybe_unused]] const AttentionArgs& a) {
#if OCTAVO_BULK_COPY
  while (load_acquired(&a.header->tiles_left) != 0) continue;
#endif
}

// Of the multiprocessors, so many for `tiles` tiles of prefixes, of a chunk each, that the others, which stream what decodes
// read, end with them: a tile keeps the tensor cores as busy as so many tokens keep the memory, more where warps take items
// alone. Those that go on for long slow tiles down, which are then better done soon.
constexpr int kTokensPerTile = 600, kAloneTokensPerTile = 1800, kLongStream = 3000;
__device__ inline int prefix_share(int tiles, int decode_tokens, bool alone, int multiprocessors) {
  if (alone && decode_tokens / kLongStream >= tiles) return multiprocessors * 2 / 3;
  const int streams = decode_tokens / (alone ? kAloneTokensPerTile : kTokensPerTile);
  return max(1, int(int64_t(multiprocessors) * tiles / (tiles + streams)));
}
// Runs of tiles have so many at least, if that is one each: streams do without a third of the multiprocessors, and would wait
// for the second of two runs.
__device__ inline int least_for_runs(int runs, int multiprocessors) {
  return runs <= multiprocessors * 2 / 3 ? runs : 0;
}

}  // namespace octavo
