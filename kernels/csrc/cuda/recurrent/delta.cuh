// How the gated delta rule is cut into blocks, and what these have in shared memory.
#pragma once

#include "recurrent/rule.cuh"

namespace octavo {
namespace {

constexpr int kPortable = 8, kMostBlocks = 16;     // of a cluster, on any chip that has them and on Hopper
constexpr int kTaken = 1;                          // barrier: the weights are there

// Values of a head's keys, which are rows of its matrix, and its values, the columns.
struct EvenHead {
  static constexpr int kRows = octavo::kRows, kHead = octavo::kHead;
  static constexpr float kRoot = kRootOfRows;
};
struct WideHead {  // OLMo Hybrid's
  static constexpr int kRows = 96, kHead = 192;
  static constexpr float kRoot = 0.10206207261596575f;
};

// How a head is cut: blocks that share it, columns of a lane, warps that make inputs and norms, tokens of a stage that each of
// these has, and blocks of a multiprocessor.
template <class Of, int parts, int wide, int helpers, int pair, int blocks>
struct Cut : Of {
  using Of::kHead, Of::kRows;
  static constexpr int kParts = parts, kWide = wide, kHelpers = helpers, kPair = pair, kBlocks = blocks;
  static constexpr int kTokens = kHelpers * kPair;  // of a stage
  static constexpr int kColumns = kHead / kParts;
  static constexpr int kOwn = kColumns / 32;  // of the norm, that a lane has
  static constexpr int kWeights = 2 * octavo::kRows + kColumns;
  static constexpr int kAdvancers = kColumns / (kLaneColumns * kWide);
  static constexpr int kThreads = 32 * (kHelpers + kAdvancers);
  static constexpr bool kClustered = true;  // blocks that share a key head; else one block has all of its heads
  // Registers enough to keep a key until the state has it, and inputs from one stage to the next.
  static constexpr bool kHolds = kThreads * kBlocks <= 512;
};

// Keys have room for what all lanes of a warp make.
template <class C>
struct Stage {
  float4 gates[C::kTokens];  // decay, beta, k . q
  float k[C::kTokens][kRows], q[C::kTokens][kRows];
  float v[C::kTokens][C::kColumns], o[C::kTokens][C::kColumns];
};
template <class C>
struct Shared {
  Stage<C> stages[2];
  float weights[kTaps + 1][C::kWeights];  // of the convolution: q, k, v; the bias at the end
  float norm[C::kColumns], rate, dt_bias;
  alignas(16) float squares[2][4][C::kTokens];  // of each part of the head
  Handover handover;
  uint64_t told[2][C::kHelpers];
};

#if OCTAVO_CLUSTERS

// The place in a launch of a block, or of what a block of several would have been.
template <class C>
struct Place {
  int sequence, key_head, head, part, rank;

  __device__ Place(const DeltaArgs& a, int block) {
    const int sharing = a.heads / a.key_heads, cluster = sharing * C::kParts;
    rank = block % cluster, part = rank % C::kParts;
    key_head = block / cluster % a.key_heads, sequence = in_order(a.step.moves, block / (cluster * a.key_heads));
    head = key_head * sharing + rank / C::kParts;
  }
  // The last of those that share a key head.
  __device__ bool last(const DeltaArgs& a) const { return rank == a.heads / a.key_heads * C::kParts - 1; }
};

// Where a head's values of a row begin.
template <class C>
struct Channels {
  int q, k, v, z, b, a;

  __device__ Channels(const DeltaArgs& d, int key_head, int head) {
    const int keys = d.key_heads * C::kRows, values = d.heads * C::kHead;
    q = key_head * C::kRows, k = keys + q, v = 2 * keys + head * C::kHead, z = v + values;
    b = 2 * keys + 2 * values + head, a = b + d.heads;
  }
};

#endif

}  // namespace
}  // namespace octavo
