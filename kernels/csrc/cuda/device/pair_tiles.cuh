// Tiles of a product that pairs of blocks go through: of each block a warp copies and warpgroups multiply. The blocks of a pair
// share rows of x or of the weight, of which each copies half, and the copy engine hands it to both.
#pragma once

#include "device/buffer_ring.cuh"
#include "device/cluster.cuh"

namespace octavo {

constexpr int kPair = 2;  // blocks that share
constexpr int kBand = 8;  // tiles side by side along the rows of x: the L2 keeps those

#if OCTAVO_WGMMA

// A tile's place along x, and along the weight.
struct TilePlace {
  int along_x, along_weight;
};
__device__ inline TilePlace tile_place(int tile, int along_x, int along_weight) {
  const int of_band = kBand * along_weight, band = tile / of_band, in_band = tile % of_band;
  const int deep = min(kBand, along_x - band * kBand);
  return {band * kBand + in_band % deep, in_band / deep};
}

// The thread that copies brings all tiles of its block, of `steps` stages each, whose bytes are `stage_bytes()`. The first
// weights are on their way before the previous kernel has ended.
// It does not end before the other block has let go of all of this one's stages: an arrival at a block that has ended is a fault
// ("cluster target block not present"). It may overtake a barrier of the cluster that does not release. What the other block
// copies here has come, as all of it has been multiplied.
template <class Block, class Maps>
__device__ inline void bring_tiles(Block& block, const Maps& maps, int steps) {
  BufferRing& ring = block.ring;
  const int early = min(ring.length, steps);
  const auto first = block.tile(block.first_pair());
  for (int i = 0; i < early; ++i) {
    barrier_expect(ring.full + 8 * i, block.stage_bytes());
    block.bring_weights(maps, first, i, i);
  }
  wait_for_previous_kernel();
  launch_next_kernel();
  for (int i = 0; i < early; ++i) block.bring_x(maps, first, i, i), ring.advance();
  for (int pair = block.first_pair(), i = early; pair < block.grid.pairs(); pair += block.pairs_apart(), i = 0) {
    const auto to = block.tile(pair);
    for (; i < steps; ++i) {
      ring.await_empty();
      barrier_expect(ring.full_now(), block.stage_bytes());
      block.bring_weights(maps, to, i, ring.stage), block.bring_x(maps, to, i, ring.stage);
      ring.advance();
    }
  }
  ring.drain();
}

// A lane of a warp that lets go of a stage: both blocks of the pair, `first` and the next of the cluster, copy into it.
__device__ inline void leave_stage(const BufferRing& ring, int stage, int lane, int first = 0) {
  if (lane < kPair) arrive_at(ring.empty + 8 * stage, first + lane);
}

#endif

}  // namespace octavo
