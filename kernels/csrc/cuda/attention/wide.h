// Attention of heads with 512 values on Hopper: keys of 576, whose first 512 are the values (latent rows), or keys and values
// of 512 each. Arguments, and the lists that its plan writes.
#pragma once

#include <cuda_runtime_api.h>

#include "operands.h"

namespace octavo {

inline constexpr int kWideRows = 64, kWideKeys = 64;  // of a tile: packed query rows (token x grouped head), tokens
inline constexpr int kWideValues = 512, kWideLatent = 576;

// All tiles of keys that tiles of rows see, one after the other, are cut into one stretch for each block (Stream-K, arXiv
// 2301.03598). A sequence's tiles are numbered tile of rows by tile of rows and, of one of those, KV head by KV head.
struct alignas(16) WideStart {
  int sequence, tile, key, padding;  // a block goes from its tile of keys up to the next one's
};
// A tile whose keys went to `parts` blocks from `first` on; 0: none.
struct alignas(16) WideFold {
  int sequence, tile, first, parts;
};

struct WidePlanArgs {
  const int32_t *context_lens, *query_start;
  int sequences, group, kv_heads, blocks;
  bool cuts;          // whether the keys of a tile may go to several blocks; else a row's bits are its sequence's alone
  WideStart* starts;  // [blocks + 1]
  WideFold* folds;    // [blocks]
};

struct WideArgs : AttentionOperands {
  const int32_t *context_lens, *query_start;
  bool latent;
  int blocks;
  const WideStart* starts;
  const WideFold* folds;
  // Of what each block has of the tile that ends with it, or began before it: its last one at 2 block + 1, its first at
  // 2 block.
  float* partial;  // [2 blocks][rows][values]
  float* sums;     // [2 blocks][rows][2]: the score that weights are relative to, in the log2 domain; their sum
};

// Of caches in eight bits, without the fold.
cudaError_t wide_attention_cells(const WideArgs&, cudaStream_t);
cudaError_t plan_wide(const WidePlanArgs&, cudaStream_t);
// cudaErrorInvalidValue for what it does not take; then nothing is launched.
cudaError_t wide_attention(const WideArgs&, cudaStream_t);

}  // namespace octavo
