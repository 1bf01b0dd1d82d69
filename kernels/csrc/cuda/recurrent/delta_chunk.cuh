// What is made of chunks of the gated delta rule, and where it lies.
#pragma once

#include "recurrent/chunk_plan.cuh"
#include "recurrent/rule.cuh"
#include "recurrent/split.cuh"

namespace octavo {

namespace {

// Both parts of each number (split.cuh). Rows are longer than they need be, so that eight of them lie
// in different banks.
struct KeyTile {
  bf16 k[2][kChunk][kRows + 8], q[2][kChunk][kRows + 8];
};
struct HeadTile {
  bf16 solved[2][kChunk][kChunk + 8];  // (I + A)^-1 diag(beta), by token and earlier token
  bf16 masked[2][kChunk][kChunk + 8];  // q . k, decayed from the latter on
  float into[kChunk], left[kChunk];    // decay up to a token, and from it to the end
};
// Values of a head by column, and in their place its outputs.
struct ValueTile {
  float at[kHead][kChunk + 4];
};
static_assert(sizeof(KeyTile) % 16 == 0 && sizeof(HeadTile) % 16 == 0 && sizeof(ValueTile) % 16 == 0);

// The state of a sequence goes from one part of a step to the next through `carry[2][heads]`.
struct ChunkArgs {
  ChunkPlan plan;
  DeltaArgs delta;
  float* carry;
  KeyTile* keys;
  HeadTile* heads;
  ValueTile* values;
};

#if OCTAVO_CLUSTERS

// Where a lane's row of four matrices begins, which lie side by side in pairs, one pair below the other.
template <int kWidth>
__device__ inline uint32_t quarter(const bf16 (&rows)[kChunk][kWidth], int row, int column) {
  const int lane = threadIdx.x % 32;
  return shared_address(&rows[row + lane % 8 + lane / 16 * 8][column + lane / 8 % 2 * 8]);
}

#endif

}  // namespace
}  // namespace octavo
