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

// How many of the multiprocessors work at `tiles` tiles of prefixes, of a chunk each, while the others stream what decodes
// read. As long as a tile takes, a multiprocessor's share of the memory's speed brings some 800 tokens; but streams keep the
// memory busy without a third of the multiprocessors, and tiles that end last hold up everything, so they get more. Where
// warps take items alone and go on for long, tiles are better done soon: beside such streams they take longer.
constexpr int kTokensPerTile = 1800, kLongStream = 3000;
__device__ inline int prefix_share(int tiles, int decode_tokens, bool alone, int multiprocessors) {
  if (alone && decode_tokens / kLongStream >= tiles) return multiprocessors * 2 / 3;
  return max(1, int(int64_t(multiprocessors) * tiles / (tiles + decode_tokens / kTokensPerTile)));
}

}  // namespace octavo
