// Products of experts of codes with up to eight rows of a step: how weights flow.
//
// A unit is a strip of one expert's matrix (codes.cuh), or, of the first product, one of each half. One warp copies units into a
// ring, eight bricks of the depth at a time and what rows of x have there; eight warps have a brick each, and one of them adds up
// what they have. As in experts/few.cuh the weights are the sixteen rows of `mma`, rows of x its eight columns. Sums of the codes
// are those of tensor cores, a group at a time, times the group's scale in float32: no weight is rounded. Short scales of
// four-bit floats multiply the weights instead, which takes fewer instructions; those of MXFP4, powers of two, round none. An
// element's sum is in one order, whatever other rows there are.
#pragma once

#include "coded_experts/checks.h"
#include "coded_experts/paired.cuh"
#include "experts/few.cuh"

namespace octavo {

constexpr int kPieceBricks = kFewWarps;
template <int groups>
constexpr int kFewBlocks = groups > 4 ? 1 : 2;  // on a multiprocessor: eight scales of a row take registers

// Bytes of a piece in the ring: codes, scales and zero points, and behind them rows of x.
template <Codes kind, int groups, int strips, class Scale>
struct PieceOf {
  static constexpr int kScales = groups * kPieceBricks;  // of a row, at most
  static constexpr int kCodes = kPieceBricks * kBrickBytes;
  static constexpr int kScalesAt = strips * kCodes, kZerosAt = kScalesAt + strips * kScales * kStripRows * int(sizeof(Scale));
  static constexpr int kRowsAt = kZerosAt + strips * kScales * kStripRows;
  static constexpr int kRowBytes = kPieceBricks * brick_depth(kind) * 2 + 16;  // two rows begin in different banks
  static_assert(kRowsAt % 16 == 0);
};
template <int strips>
constexpr int kSumsBytes = kPartialBytes * strips;

// `sums`: bytes of the rows' sums.
template <class Piece, int strips>
inline FewCut cut_codes(int experts, int slices, int rows, int chosen, int sums) {
  FewCut cut{};
  cut.slices = slices;
  cut_lists(cut, kPartialAt + kSumsBytes<strips>, experts, rows * chosen, sums);
  cut.pitch = Piece::kRowsAt + rows * Piece::kRowBytes;
  cut.slots = std::max(2, std::min(kMostFewSlots, (kBlockBytes - cut.ring_at) / cut.pitch));
  cut.bytes = cut.ring_at + cut.slots * cut.pitch;
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
  static constexpr bool kIsPaired = is_float(kKind) && std::is_same_v<T, bf16>;
  static constexpr bool kIsScaled = kIsPaired && kKind == Codes::fp4 && std::is_same_v<Scale, ShortScale>;
  using P = Paired<bf16, kIsPaired ? kKind : Codes::fp4, false>;
  using Factor = std::conditional_t<kIsScaled, uint32_t, float>;  // of a row and group: prepared for weights, or of sums

  const ExpertStrips<Scale>& strips;

  __device__ CodedFewBlock(char* memory, const FewCut& how, const ExpertStrips<Scale>& all) : Base(memory, how), strips(all) {}

  // Place of a slot of the ring.
  __device__ int slot_at(int i) const { return cut.ring_at + i * cut.pitch; }

  __device__ int group_of(int brick) const { return kGroups > 1 ? brick * kGroups : brick >> strips.shift; }

  // A piece of the units that the warp that copies goes through.
  struct Place {
    Unit unit;
    int index = 0, brick = 0;
  };
  template <class Block>
  __device__ void enter(Place& place, const Block& block) const {
    place.unit = block.unit(place.index), place.brick = 0;
    block.prefetch(place.unit);
  }
  template <class Block>
  __device__ void go_on(Place& place, const Block& block, int units) const {
    if ((place.brick += kPieceBricks) < strips.bricks) return;
    if (++place.index < units) enter(place, block);
  }

  // The warp that copies, through so many units of `block`, which is this one: weights as far ahead as the ring has room, and
  // their rows of x once the previous kernel has made these.
  template <class Block>
  __device__ void bring_units(const Block& block, int units, int depth) {
    if (units == 0) return;
    const uint64_t policy = read_once_policy();
    const int ahead = min(cut.slots, units * ((strips.bricks + kPieceBricks - 1) / kPieceBricks));
    Place place;
    enter(place, block);
    Place behind = place;
    for (int i = 0; i < ahead; ++i) bring_weights(place, block, depth, policy), go_on(place, block, units);
    wait_for_previous_kernel();
    for (int i = 0; i < ahead; ++i) bring_rows(behind, block, depth, i), go_on(behind, block, units);
    while (place.index < units) {
      const int own = slot;
      bring_weights(place, block, depth, policy);
      bring_rows(place, block, depth, own);
      go_on(place, block, units);
    }
  }
  // Columns of x that belong to a piece.
  __device__ int columns_of(const Place& place, int depth) const {
    return min(kPieceBricks * kDepth, depth - place.brick * kDepth);
  }
  // Lanes copy side by side.
  template <class Block>
  __device__ void bring_weights(const Place& place, const Block& block, int depth, uint64_t policy) {
    const int kind = lane / kStrips, own = lane % kStrips, brick = place.brick;
    const int64_t strip = block.strip_of(place.unit, own);
    const bool has_zeros = strips.zeros != nullptr;
    const int count = min(kPieceBricks, strips.bricks - brick), group = group_of(brick);
    const int last = kGroups > 1 ? group + count * kGroups : group_of(brick + count - 1) + 1;
    const int scales = (last - group) * kStripRows, rows = place.unit.hit.end - place.unit.hit.begin;
    barrier_wait(Base::empty(), parity ^ 1);
    if (lane == 0)
      barrier_expect(Base::full(), kStrips * (count * kBrickBytes + scales * (int(sizeof(Scale)) + int(has_zeros))) +
                                       rows * columns_of(place, depth) * int(sizeof(T)));
    __syncwarp();
    const uint32_t to = base + slot_at(slot);
    if (kind == 0) copy_bulk(to + own * Piece::kCodes, strips.codes_of(strip, brick), count * kBrickBytes, Base::full(), policy);
    if (kind == 1)
      copy_bulk(to + Piece::kScalesAt + own * Piece::kScales * kStripRows * sizeof(Scale), strips.scales_of(strip, group),
                scales * sizeof(Scale), Base::full(), policy);
    if (kind == 2 && has_zeros)
      copy_bulk(to + Piece::kZerosAt + own * Piece::kScales * kStripRows, strips.zeros_of(strip, group), scales, Base::full(),
                policy);
    Base::advance();
  }
  template <class Block>
  __device__ void bring_rows(const Place& place, const Block& block, int depth, int to_slot) const {
    if (lane >= place.unit.hit.end - place.unit.hit.begin) return;
    const uint32_t to = base + slot_at(to_slot) + Piece::kRowsAt + lane * Piece::kRowBytes;
    copy_bulk(to, block.row_of(place.unit, lane) + place.brick * kDepth, columns_of(place, depth) * sizeof(T), base + 8 * to_slot);
  }

  // This warp's brick of a piece: a lane's places in the ring.
  struct Brick {
    const uint4* codes;
    const Scale* scales;
    const uint8_t* zeros;
    const uint32_t* x;
  };
  // Lanes without a row take the first one, and their sums go nowhere.
  __device__ Brick brick_at(int first, int rows) const {
    const char* from = shared + slot_at(slot);
    const int group = group_of(first + warp) - group_of(first), scale = group * kStripRows + lane / 4;
    return {reinterpret_cast<const uint4*>(from + warp * kBrickBytes) + lane,
            reinterpret_cast<const Scale*>(from + Piece::kScalesAt) + scale,
            reinterpret_cast<const uint8_t*>(from + Piece::kZerosAt) + scale, row_at(lane / 4 < rows ? lane / 4 : 0) + lane % 4};
  }
  // Of x, the words that meet this warp's brick.
  __device__ uint32_t* row_at(int row) const {
    return reinterpret_cast<uint32_t*>(shared + slot_at(slot) + Piece::kRowsAt + row * Piece::kRowBytes) + warp * (kDepth / 2);
  }
  // Zeros where rows have ended.
  __device__ void clear_behind(int columns, int rows) const {
    if (columns >= kDepth) return;
    for (int row = 0; row < rows; ++row)
      for (int i = columns / 2 + lane; i < kDepth / 2; i += 32) row_at(row)[i] = 0;
    fence_bulk();
    __syncwarp();
  }
  // Of rows lane / 4 and lane / 4 + 8 of a strip in a group.
  struct Factors {
    Factor low, high;
    uint32_t low_zero, high_zero;  // prepared for Unpack
  };
  __device__ Factors factors_of(const Brick& brick, int s, int g) const {
    const int at = (s * Piece::kScales + g) * kStripRows;
    Factors factors{factor_of(brick.scales[at]), factor_of(brick.scales[at + 8]), U::zero(), U::zero()};
    if (!is_float(kKind) && strips.zeros)
      factors.low_zero = U::zero(brick.zeros[at]), factors.high_zero = U::zero(brick.zeros[at + 8]);
    return factors;
  }
  __device__ static Factor factor_of(Scale scale) {
    if constexpr (kIsScaled) return typename P::Row(scale, 0).scale;
    else return to_float(scale);
  }
  // As FewBlock::leave: sums are known, and so what they are made of has been read, before the slot is given back.
  __device__ void leave(const Sums& sums) const {
    uint32_t known = 0;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) known |= __float_as_uint(sums[s][0]) | __float_as_uint(sums[s][2]);  // of both scales
    const uint32_t nothing = gridDim.y - 1;
    const uint32_t barrier = Base::empty() + 8 * __any_sync(kAll, (known & nothing) != 0);
    __syncwarp();
    if (lane == 0) barrier_arrive_once(barrier);
  }

  // A warp that multiplies: sums of a unit with its rows of x, eight at most.
  __device__ void multiply(int rows, int depth, Sums& sums) {
    for (int first = 0; first < strips.bricks; first += kPieceBricks) {
      barrier_wait(Base::full(), parity);
      if (first + warp < strips.bricks) {
        clear_behind(depth - (first + warp) * kDepth, rows);
        add(brick_at(first, rows), sums);
      }
      leave(sums);
      Base::advance();
    }
    if constexpr (kIsPaired) {
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (float& sum : sums[s]) sum *= P::kLift;
    }
  }
  // A brick's products.
  __device__ void add(const Brick& brick, Sums& sums) const {
    const typename P::View view(false, gridDim.y);  // which is 1
    uint4 codes[kStrips];
    Factors factors[kStrips];
    float products[kStrips][4];
    uint32_t weights[4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t low = brick.x[8 * step], high = brick.x[8 * step + 4];
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        if (step % (kSteps / 2) == 0) codes[s] = brick.codes[s * (Piece::kCodes / 16) + step / (kSteps / 2) * 32];
        if (step % kGroupSteps == 0) {
          factors[s] = factors_of(brick, s, step / kGroupSteps);
#pragma unroll
          for (float& p : products[s]) p = 0.0f;
        }
        unpack(weights, view, codes[s], factors[s], step % (kSteps / 2) * step_words(kKind));
        if constexpr (kIsScaled) {
          mma<T>(sums[s], weights, low, high);
        } else {
          mma<T>(products[s], weights, low, high);
          if (step % kGroupSteps == kGroupSteps - 1) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
              sums[s][i] = __fmaf_rn(products[s][i], i < 2 ? factors[s].low : factors[s].high, sums[s][i]);
          }
        }
      }
    }
  }
  // A step's weights, whose codes begin with this word.
  __device__ static void unpack(uint32_t (&weights)[4], const typename P::View& view, const uint4& raw, const Factors& factors,
                                int word) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    if constexpr (kIsPaired) {
      typename P::Row low(bf16(1.0f), 0), high = low;
      if constexpr (kIsScaled) low.scale = factors.low, high.scale = factors.high;
      P::step(view, words + word, words + word, low, high, weights);
    } else {
      U::step(words + word, factors.low_zero, factors.high_zero, weights);
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
