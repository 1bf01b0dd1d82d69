// Products of experts of codes with up to eight rows of a step: how weights flow.
//
// A unit is a strip of one expert's matrix (codes.cuh), or, of the first product, one of each half. One warp copies units into a
// ring, eight bricks of the depth at a time; eight warps have a brick each, and one of them adds up what they have. As in
// experts/few.cuh the weights are the sixteen rows of `mma`, rows of x its eight columns. Sums of the codes are those of tensor
// cores, a group at a time, times the group's scale in float32: no weight is rounded. An element's sum is in one order, whatever
// other rows there are.
#pragma once

#include "coded_experts/checks.h"
#include "experts/few.cuh"

namespace octavo {

constexpr int kPieceBricks = kFewWarps;
template <int groups>
constexpr int kFewBlocks = groups > 4 ? 1 : 2;  // on a multiprocessor: eight scales of a row take registers

// Bytes of a piece in the ring.
template <Codes kind, int groups, int strips, class Scale>
struct PieceOf {
  static constexpr int kScales = groups * kPieceBricks;  // of a row, at most
  static constexpr int kCodes = kPieceBricks * kBrickBytes;
  static constexpr int kScalesAt = strips * kCodes, kZerosAt = kScalesAt + strips * kScales * kStripRows * int(sizeof(Scale));
  static constexpr int kBytes = kZerosAt + strips * kScales * kStripRows;
  static_assert(kBytes % 16 == 0);
};
template <int strips>
constexpr int kSumsBytes = kPartialBytes * strips;

// `sums`: bytes of the rows' sums.
template <class Piece, int strips>
inline FewCut cut_codes(int experts, int slices, int pairs, int sums) {
  FewCut cut{};
  cut.slices = slices;
  cut_lists(cut, kPartialAt + kSumsBytes<strips>, experts, pairs, sums);
  cut.slots = std::max(2, std::min(kMostFewSlots, (kBlockBytes - cut.ring_at) / Piece::kBytes));
  cut.bytes = cut.ring_at + cut.slots * Piece::kBytes;
  return cut;
}

#if OCTAVO_BULK_COPY

template <class T, Codes kKind, int kGroups, int kStrips, class Scale>
struct CodedFewBlock : FewBlock<T> {
  using Base = FewBlock<T>;
  using Base::cut, Base::lane, Base::warp, Base::shared, Base::base, Base::slot, Base::parity;
  using Piece = PieceOf<kKind, kGroups, kStrips, Scale>;
  using U = Unpack<T, kKind>;
  using Sums = float[kStrips][4];
  static constexpr int kDepth = brick_depth(kKind), kSteps = brick_steps(kKind), kGroupSteps = kSteps / kGroups;
  static constexpr int kWindowsOfBrick = kDepth / kWindow;  // two steps each

  const ExpertStrips<Scale> strips;

  __device__ CodedFewBlock(char* memory, const FewCut& how, const ExpertStrips<Scale>& all) : Base(memory, how), strips(all) {}

  __device__ int group_of(int brick) const { return kGroups > 1 ? brick * kGroups : brick >> strips.shift; }

  // The warp that copies brings the unit of these strips; lanes copy side by side.
  template <class StripAt>
  __device__ void bring(StripAt&& strip_at, uint64_t policy) {
    const int kind = lane / kStrips;
    const int64_t strip = strip_at(lane % kStrips);
    const bool has_zeros = strips.zeros != nullptr;
    for (int brick = 0; brick < strips.bricks; brick += kPieceBricks) {
      const int count = min(kPieceBricks, strips.bricks - brick), group = group_of(brick);
      const int last = kGroups > 1 ? group + count * kGroups : group_of(brick + count - 1) + 1;
      const int scales = (last - group) * kStripRows;
      barrier_wait(Base::empty(), parity ^ 1);
      if (lane == 0)
        barrier_expect(Base::full(), kStrips * (count * kBrickBytes + scales * (int(sizeof(Scale)) + int(has_zeros))));
      __syncwarp();
      const uint32_t to = base + cut.ring_at + slot * Piece::kBytes;
      const int own = lane % kStrips;
      if (kind == 0) copy_bulk(to + own * Piece::kCodes, strips.codes_of(strip, brick), count * kBrickBytes, Base::full(), policy);
      if (kind == 1)
        copy_bulk(to + Piece::kScalesAt + own * Piece::kScales * kStripRows * sizeof(Scale), strips.scales_of(strip, group),
                  scales * sizeof(Scale), Base::full(), policy);
      if (kind == 2 && has_zeros)
        copy_bulk(to + Piece::kZerosAt + own * Piece::kScales * kStripRows, strips.zeros_of(strip, group), scales, Base::full(),
                  policy);
      Base::advance();
    }
  }

  // This warp's brick of a piece, as it comes out of the ring.
  struct Brick {
    uint4 codes[kStrips][2];
    float scales[kStrips][kGroups][2];
    uint32_t zeros[kStrips][kGroups][2];
  };
  __device__ void read(Brick& to, int first) const {
    const char* from = shared + cut.ring_at + slot * Piece::kBytes;
    const int group = group_of(first + warp) - group_of(first);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const uint4* codes = reinterpret_cast<const uint4*>(from + s * Piece::kCodes + warp * kBrickBytes);
      to.codes[s][0] = codes[lane], to.codes[s][1] = codes[32 + lane];
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = (s * Piece::kScales + group + g) * kStripRows + half * 8 + lane / 4;
          to.scales[s][g][half] = to_float(reinterpret_cast<const Scale*>(from + Piece::kScalesAt)[at]);
          to.zeros[s][g][half] = 0;
          if (!is_float(kKind) && strips.zeros)
            to.zeros[s][g][half] = reinterpret_cast<const uint8_t*>(from + Piece::kZerosAt)[at];
        }
    }
  }
  // As FewBlock::leave: something of each load is known before the slot is given back.
  __device__ void leave(const Brick& brick) const {
    uint32_t loaded = 0;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      loaded |= brick.codes[s][0].x | brick.codes[s][1].x;
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int half = 0; half < 2; ++half) loaded |= __float_as_uint(brick.scales[s][g][half]) | brick.zeros[s][g][half];
    }
    const uint32_t nothing = gridDim.y - 1;
    const uint32_t barrier = Base::empty() + 8 * __any_sync(kAll, (loaded & nothing) != 0);
    __syncwarp();
    if (lane == 0) barrier_arrive_once(barrier);
  }

  // A warp that multiplies: sums of a unit with the rows of x at `x_at(i)`, of which there are `rows`, eight at most.
  template <class XAt>
  __device__ void multiply(XAt&& x_at, int rows, int depth, Sums& sums) {
    const int row = lane / 4;
    const T* x_row = row < rows ? x_at(row) : nullptr;
    for (int first = 0; first < strips.bricks; first += kPieceBricks) {
      const int begin = (first + warp) * kDepth;
      const bool is_mine = first + warp < strips.bricks;
      uint4 x[kWindowsOfBrick];
#pragma unroll
      for (int i = 0; i < kWindowsOfBrick; ++i) {
        const int column = begin + i * kWindow + lane % 4 * 8;
        x[i] = x_row && is_mine && column < depth ? __ldcg(reinterpret_cast<const uint4*>(x_row + column)) : make_uint4(0, 0, 0, 0);
      }
      Brick brick{};
      barrier_wait(Base::full(), parity);
      if (is_mine) read(brick, first);
      leave(brick);
      if (is_mine) add(brick, x, sums);
      Base::advance();
    }
  }
  // A brick's products. Four lanes have eights of a window of x, of which `mma` wants pairs.
  __device__ void add(const Brick& brick, const uint4 (&x)[kWindowsOfBrick], Sums& sums) const {
    float products[kStrips][4];
    uint32_t words[4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int g = step / kGroupSteps;
      if (step % 2 == 0) {
        words[0] = x[step / 2].x, words[1] = x[step / 2].y, words[2] = x[step / 2].z, words[3] = x[step / 2].w;
        transpose_quad(words);
      }
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        if (step % kGroupSteps == 0) {
#pragma unroll
          for (float& p : products[s]) p = 0.0f;
        }
        const uint4& raw = brick.codes[s][step / (kSteps / 2)];
        const uint32_t codes[4] = {raw.x, raw.y, raw.z, raw.w};
        const bool has_zeros = !is_float(kKind) && strips.zeros != nullptr;
        const uint32_t low = has_zeros ? U::zero(brick.zeros[s][g][0]) : U::zero();
        const uint32_t high = has_zeros ? U::zero(brick.zeros[s][g][1]) : U::zero();
        uint32_t operand[4];
        U::step(codes + step % (kSteps / 2) * step_words(kKind), low, high, operand);
        mma<T>(products[s], operand, words[step % 2 * 2], words[step % 2 * 2 + 1]);
        if (step % kGroupSteps == kGroupSteps - 1) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[s][i] = __fmaf_rn(products[s][i], brick.scales[s][g][i / 2], sums[s][i]);
        }
      }
    }
  }

  __device__ bool adds_up(int turn) const { return turn % kFewWarps == warp; }

  // Adds up the warps' sums of a unit, as FewBlock::add_up: of each strip's rows lane / 4 and lane / 4 + 8 a lane of one warp
  // gets the columns lane % 4 * 2 and the next.
  template <class Finish>
  __device__ void add_up(const Sums& sums, int turn, Finish&& finish) const {
    float4* partial = reinterpret_cast<float4*>(shared + kPartialAt) + turn % 2 * kStrips * kFewWarps * 32;
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
      partial[(s * kFewWarps + warp) * 32 + lane] = make_float4(sums[s][0], sums[s][1], sums[s][2], sums[s][3]);
    barrier_sync(1, kFewWarps * 32);
    if (!adds_up(turn)) return;
    float4 all[kStrips];
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      all[s] = partial[s * kFewWarps * 32 + lane];
#pragma unroll
      for (int i = 1; i < kFewWarps; ++i) {
        const float4 more = partial[(s * kFewWarps + i) * 32 + lane];
        all[s].x += more.x, all[s].y += more.y, all[s].z += more.z, all[s].w += more.w;
      }
    }
    finish(all);
  }
};

#endif

}  // namespace octavo
