// How the units of chunks of Mamba2 are shared out among blocks, and what these have in shared memory.
#pragma once

#include "recurrent/ssm_chunk.cuh"

namespace octavo {
namespace {

constexpr int kUnits = 2;  // of a block

// Of a unit's tokens: running sums of decays' logarithms to base 2, with what these leave beside a float; time steps; the decay up to
// a token, and from it to the end times its time step.
struct alignas(16) SsmGates {
  float2 sums[kChunk];
  float dt[kChunk], into[kChunk], left[kChunk];
};
// Of a unit's head.
struct SsmHead {
  float skip, dt_bias, rate;
};
template <int rows>
struct SsmShared {
  static constexpr int kStages = 256 / rows;
  static constexpr int kMakers = rows == 128 ? 8 : 4;  // warps
  static constexpr int kThreads = 128 * kUnits + 32 * kMakers;
  static constexpr int kTaken = rows == 128 ? 144 : 200, kKept = rows == 128 ? 112 : 104;  // registers of either kind of warps
  static_assert(128 * kUnits * kTaken + 32 * kMakers * kKept <= 65536 / kThreads / 8 * 8 * kThreads, "of those that a block begins with");

  Tile c[kStages][rows / kWide], b[kStages][rows / kWide];
  Tile masked[kUnits];  // M by token and earlier token
  Tile x[kUnits];       // by token and column
  float products[2][kTriangle];
  SsmGates gates[2][kUnits];  // of a unit's chunks in turn
  SsmHead heads[kUnits];
  float weights[kTaps + 1][kUnits * kWide];  // of the convolution: x of each unit; the bias at the end
  uint64_t c_full[kStages], c_empty[kStages], b_full[kStages], b_empty[kStages], products_full[2], made[kUnits], used[kUnits];

#if OCTAVO_WGMMA
  // One thread's.
  __device__ void set_up() {
    const auto set = [](uint64_t& barrier, int count) { barrier_init(shared_address(&barrier), count); };
    for (int i = 0; i < kStages; ++i)
      set(c_full[i], 1), set(b_full[i], 1), set(c_empty[i], 4 * kUnits), set(b_empty[i], 4 * kUnits);
    for (int i = 0; i < 2; ++i) set(products_full[i], 1);
    for (int i = 0; i < kUnits; ++i) set(made[i], kMakers), set(used[i], 4);
    fence_bulk();
  }
#endif
};

#if OCTAVO_WGMMA

__device__ inline int units_of_group(const SsmArgs& a) { return a.heads / a.groups * (a.head_dim / kWide); }
// A block's share of a part: two units of a group of a sequence, or one, where they are odd in number.
struct SsmPiece {
  const Stretch stretch;
  int group, units, x;  // x: its first value of a row

  __device__ SsmPiece(const SsmChunkArgs& c, const Part& part, int at, int pairs)
      : stretch(c.plan, part, part.first + at / (c.ssm.groups * pairs)), group(at / pairs % c.ssm.groups) {
    const int of_group = units_of_group(c.ssm), first = at % pairs * kUnits;
    units = min(of_group - first, kUnits), x = (group * of_group + first) * kWide;
  }
};
template <class F>
__device__ inline void for_ssm_pieces(const SsmChunkArgs& c, F&& f) {
  const Part part(c.plan);
  const int pairs = (units_of_group(c.ssm) + kUnits - 1) / kUnits;
  for (int at = blockIdx.x; at < part.sequences * c.ssm.groups * pairs; at += gridDim.x) f(SsmPiece(c, part, at, pairs));
}
// One of the units of a piece: its first value of a row, its head, and its first column of that.
struct SsmUnit {
  int x, head, column;

  __device__ SsmUnit(const SsmArgs& a, const SsmPiece& piece, int unit)
      : x(piece.x + unit * kWide), head(x / a.head_dim), column(x - head * a.head_dim) {}
};

#endif

}  // namespace
}  // namespace octavo
