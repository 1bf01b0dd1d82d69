// What the kernels for shared prefixes, the plan and the fold know of each other.
#pragma once

#include "common.cuh"

namespace octavo {

// The kernel for Hopper, in builds for 90a. cudaErrorInvalidValue: it does not cover these arguments.
cudaError_t prefix_attention_wgmma(const AttentionArgs&, cudaStream_t);

// The head dims that kernel takes. Where it takes the tiles, it merges the chunks of runs.
constexpr bool merges_shared_runs(int head_dim) { return head_dim == 64 || head_dim == 128; }
inline bool prefix_merges_runs(const Device& device, int head_dim, float softcap = 0.0f) {
  return runs_hopper_code(device) && merges_shared_runs(head_dim) && softcap <= 0.0f;
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

}  // namespace octavo
