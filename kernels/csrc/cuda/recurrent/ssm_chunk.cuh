// What is made of chunks of Mamba2, and where it lies.
#pragma once

#include "device/wgmma.cuh"
#include "recurrent/chunk_plan.cuh"
#include "recurrent/split.cuh"

namespace octavo {
namespace {

constexpr int kTaps = 4;
constexpr int kWide = 64;  // columns of a tile, and of a unit: a head's, or a part of a head's

// Both parts (split.cuh) of the numbers of a chunk's tokens. A row has 128 bytes, whose sixteens are swizzled, as products of
// warpgroups take them; an address in shared memory is a multiple of 1,024.
struct alignas(16) Tile {
  bf16 part[2][kChunk * kWide];

  __device__ static int place(int token, int column) { return token * kWide + ((column / 8 ^ token % 8) * 8 + column % 8); }
};
// The lower triangle of a chunk's tokens, in blocks of kSide rows that are as long as their last row.
constexpr int kSide = 16, kTriangle = kSide * kSide * (1 + 2 + 3 + 4);
__device__ inline int triangle_row(int block, int row) {
  return kSide * kSide * (block * (block + 1) / 2) + row * kSide * (block + 1);
}
// Of a chunk and a group: C and B by token and row of the state, and C . B by token and earlier token.
template <int rows>
struct GroupTile {
  Tile c[rows / kWide], b[rows / kWide];
  float products[kTriangle];
};

// The states of a sequence go from one part of a step to the next through `carry[2][heads]`.
struct SsmChunkArgs {
  ChunkPlan plan;
  SsmArgs ssm;
  float* carry;
  void* tiles;  // GroupTile<size>[tiles][groups]
};
template <int rows>
__device__ inline GroupTile<rows>& tile_of(const SsmChunkArgs& c, int chunk, int group) {
  return static_cast<GroupTile<rows>*>(c.tiles)[int64_t(chunk - c.plan.begin) * c.ssm.groups + group];
}

}  // namespace
}  // namespace octavo
