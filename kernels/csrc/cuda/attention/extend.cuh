// The common part of the two kernels for many query rows.
#pragma once

#include "attention/attention.cuh"

namespace octavo {

// One tile of packed query rows (token x grouped head) of one KV head, and the keys that its rows see. kParts of them
// are a tile of the list.
template <int kKeys, int kRows, int parts = 1>
struct ExtendTile {
  static constexpr int kParts = parts;
  ExtendItem item;
  int head, group;
  int begin, end;  // keys that any row sees; begin is a multiple of kKeys
  int offset;      // query i sees keys up to offset + i

  __device__ ExtendTile(const AttentionArgs& a, int index, int kv_head) {
    item = a.extend[index / kParts];
    item.tile = item.tile * kParts + index % kParts;
    head = kv_head;
    group = a.heads / a.kv_heads;
    offset = item.context - item.queries;
    const int last = min(item.queries - 1, (item.tile * kRows + kRows - 1) / group);
    end = max(0, offset + last + 1);
    begin = a.window > 0 ? max(0, lowest(a, item.tile * kRows / group)) / kKeys * kKeys : 0;
  }
  __device__ bool has_rows() const { return item.tile * kRows < item.queries * group; }
  // The last tile of keys. There is always one, be all of it masked: a row without keys gives zeros.
  __device__ int last() const { return max(end - 1, begin) / kKeys * kKeys; }
  __device__ int lowest(const AttentionArgs& a, int query) const {
    return a.window > 0 ? offset + query - a.window + 1 : 0;
  }
};

// The place in its list of the item that a block takes in a round; the first place beyond the list ends the block's
// work. Back and forth: the block with the longest tile of one round gets the shortest of the next.
__device__ inline int extend_place(int round) {
  return round * int(gridDim.x) + (round % 2 ? int(gridDim.x) - 1 - int(blockIdx.x) : int(blockIdx.x));
}

// The kernel for Hopper, in builds for 90a. cudaErrorInvalidValue: it does not cover these arguments.
cudaError_t extend_attention_wgmma(const AttentionArgs&, cudaStream_t);

}  // namespace octavo
