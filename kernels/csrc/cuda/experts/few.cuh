// Products of experts with up to 64 rows of a step: how weights flow.
//
// A unit is sixteen rows of one expert's matrix. One warp copies units, piece by piece of the depth, into a ring; eight warps share
// out a piece's depth, and one of them adds up what they have. The weights are the sixteen rows of `mma`, rows of x its eight
// columns, which come from the L2: an expert has few. An element's sum is in one order, whatever other rows there are.
// A block takes less than half of a multiprocessor, so that the next kernel's weights flow before this one has ended.
#pragma once

#include <algorithm>

#include "device/common.cuh"
#include "experts/choice.cuh"
#include "linear/norm.cuh"

namespace octavo {

constexpr int kFewWarps = 8, kFewThreads = (kFewWarps + 1) * 32;
constexpr int kUnitRows = 16, kTileRows = 8, kMostTiles = kFewRows / kTileRows;
constexpr int kMostPiece = 1024, kWindow = 32, kWindows = kMostPiece / kWindow / kFewWarps;  // of the depth; of a warp
constexpr int kBlockBytes = 113 * 1024, kMostFewSlots = 8;
constexpr int kPartialBytes = 2 * kFewWarps * 32 * 16;

// How a launch goes about it, and where things lie in shared memory: barriers, sums of the warps, the lists, the ring.
struct FewCut {
  int slices;         // units of an expert
  int piece, pieces;  // of the depth
  int pitch, slots;   // bytes between rows of a piece, which put two rows into different banks; pieces in the ring
  int hits_at, sources_at, weights_at, sums_at, ring_at;
  int bytes;
};

// `sums`: bytes of the rows' sums; `weighs`: the lists have weights.
inline FewCut cut_few(const ExpertMatrix& m, int slices, int pairs, bool weighs, int sums) {
  FewCut cut{};
  cut.slices = slices;
  cut.pieces = (m.depth + kMostPiece - 1) / kMostPiece;
  cut.piece = ((m.depth + cut.pieces - 1) / cut.pieces + 63) / 64 * 64;
  cut.pitch = cut.piece * 2 + 64;
  cut.hits_at = 2 * kMostFewSlots * 8 + kPartialBytes;
  const auto after = [](int at, int bytes) { return at + (bytes + 15) / 16 * 16; };
  cut.sources_at = after(cut.hits_at, 16 + 12 * std::min(m.experts, pairs));
  cut.weights_at = after(cut.sources_at, pairs);
  cut.sums_at = after(cut.weights_at, weighs ? 4 * pairs : 0);
  cut.ring_at = (after(cut.sums_at, sums) + 127) / 128 * 128;
  const int slot = kUnitRows * cut.pitch;
  cut.slots = std::max(2, std::min(kMostFewSlots, (kBlockBytes - cut.ring_at) / slot));
  cut.bytes = cut.ring_at + cut.slots * slot;
  return cut;
}

#if OCTAVO_BULK_COPY

struct Hit {
  int expert, begin, end;
};

// A block's lists: experts that are hit, rows of pairs, their weights.
struct FewLists {
  int* count;
  Hit* hits;
  uint8_t* sources;
  float* weights;

  __device__ FewLists(char* shared, const FewCut& cut)
      : count(reinterpret_cast<int*>(shared + cut.hits_at)), hits(reinterpret_cast<Hit*>(shared + cut.hits_at + 16)),
        sources(reinterpret_cast<uint8_t*>(shared + cut.sources_at)),
        weights(reinterpret_cast<float*>(shared + cut.weights_at)) {}

  // All threads; they have to meet afterwards.
  __device__ void take(const int32_t* starts, const int32_t* rows, int experts) const {
    const int total = __ldcg(starts + experts);
    for (int i = threadIdx.x; i < total; i += kFewThreads) sources[i] = uint8_t(__ldcg(rows + i));
    if (threadIdx.x >= 32) return;
    int before = 0;
#pragma unroll 4
    for (int first = 0; first < experts; first += 32) {
      const int e = first + threadIdx.x;
      const int begin = e < experts ? __ldcg(starts + e) : 0, end = e < experts ? __ldcg(starts + e + 1) : 0;
      const unsigned with = __ballot_sync(kAll, end > begin);
      if (end > begin) hits[before + __popc(with & ((1u << threadIdx.x) - 1))] = {e, begin, end};
      before += __popc(with);
    }
    if (threadIdx.x == 0) *count = before;
  }
  __device__ void take_weights(const Lists& lists, int pairs) const {
    for (int i = threadIdx.x; i < pairs; i += kFewThreads)
      if (const int place = __ldcg(lists.places + i); place >= 0) weights[place] = __ldcg(lists.weights + i);
  }
};

// Units in the order in which a block takes them: `at(i)` is the i-th one's expert and slice.
struct Unit {
  Hit hit;
  int slice;
};

// A block of the kernel `Product`, which says where units' rows are, and what becomes of their sums.
template <class T>
struct FewBlock {
  const FewCut& cut;
  char* shared;
  uint32_t base;
  int lane, warp;
  int slot = 0;
  uint32_t parity = 0;

  __device__ FewBlock(char* memory, const FewCut& how)
      : cut(how), shared(memory), base(shared_address(memory)), lane(threadIdx.x % 32),
        warp(__shfl_sync(kAll, threadIdx.x / 32, 0)) {}

  __device__ bool copies() const { return warp == kFewWarps; }
  __device__ uint32_t full() const { return base + 8 * slot; }
  __device__ uint32_t empty() const { return base + 8 * (kMostFewSlots + slot); }
  __device__ void advance() {
    if (++slot == cut.slots) slot = 0, parity ^= 1;
  }
  __device__ void init() const {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < cut.slots; ++i) barrier_init(base + 8 * i, 1), barrier_init(base + 8 * (kMostFewSlots + i), kFewWarps);
    fence_bulk();
  }

  // The warp that copies brings a unit, whose i-th row is at `row_at(i)`, null if there is none.
  template <class RowAt>
  __device__ void bring(RowAt&& row_at, int depth, uint64_t policy) {
    const T* from = lane < kUnitRows ? row_at(lane) : nullptr;
    const int rows = __popc(__ballot_sync(kAll, from != nullptr));
    for (int begin = 0; begin < depth; begin += cut.piece) {
      const int bytes = min(cut.piece, depth - begin) * 2;
      barrier_wait(empty(), parity ^ 1);
      if (lane == 0) barrier_expect(full(), rows * bytes);
      __syncwarp();
      const uint32_t to = base + cut.ring_at + (slot * kUnitRows + lane) * cut.pitch;
      if (from) copy_bulk(to, from + begin, bytes, full(), policy);
      advance();
    }
  }

  // The slot may be filled again. An arrival may overtake loads that are under way, and what a bulk copy then brings is not
  // ordered behind them: they must have ended, as they have when something of each is known.
  __device__ void leave(const uint4 (&low)[kWindows], const uint4 (&high)[kWindows]) const {
    uint32_t loaded = 0;
#pragma unroll
    for (int i = 0; i < kWindows; ++i) loaded |= low[i].x | high[i].x;
    const uint32_t nothing = gridDim.y - 1;
    const uint32_t barrier = empty() + 8 * __any_sync(kAll, (loaded & nothing) != 0);
    __syncwarp();  // all lanes' loads stand before the arrival of one
    if (lane == 0) barrier_arrive_once(barrier);
  }

  // A warp that multiplies: sums of a unit with the rows of x at `x_at(i)`, of which there are `rows`.
  template <class XAt>
  __device__ void multiply(XAt&& x_at, int rows, int depth, float (&sums)[kMostTiles][4]) {
    const int column = lane % 4 * 8;
    for (int begin = 0; begin < depth; begin += cut.piece) {
      uint4 x[kWindows], low[kWindows], high[kWindows];
      const auto window = [&](int i) { return (i * kFewWarps + warp) * kWindow + column; };
      const auto there = [&](int i) { return window(i) < cut.piece && begin + window(i) < depth; };
      const auto load = [&](int tile) {
        const int row = tile * kTileRows + lane / 4;
        const T* from = row < rows ? x_at(row) + begin : nullptr;
#pragma unroll
        for (int i = 0; i < kWindows; ++i)
          x[i] = from && there(i) ? __ldcg(reinterpret_cast<const uint4*>(from + window(i))) : make_uint4(0, 0, 0, 0);
      };
      load(0);
      barrier_wait(full(), parity);
      const char* from = shared + cut.ring_at + (slot * kUnitRows + lane / 4) * cut.pitch;
#pragma unroll
      for (int i = 0; i < kWindows; ++i) {
        low[i] = there(i) ? *reinterpret_cast<const uint4*>(from + window(i) * 2) : make_uint4(0, 0, 0, 0);
        high[i] = there(i) ? *reinterpret_cast<const uint4*>(from + 8 * cut.pitch + window(i) * 2) : make_uint4(0, 0, 0, 0);
      }
      leave(low, high);
#pragma unroll
      for (int tile = 0; tile < kMostTiles; ++tile) {
        if (tile * kTileRows >= rows) break;
        if (tile > 0) load(tile);
#pragma unroll
        for (int i = 0; i < kWindows; ++i) {
          const uint32_t first[4] = {low[i].x, high[i].x, low[i].y, high[i].y};
          const uint32_t second[4] = {low[i].z, high[i].z, low[i].w, high[i].w};
          mma<T>(sums[tile], first, x[i].x, x[i].y);
          mma<T>(sums[tile], second, x[i].z, x[i].w);
        }
      }
      advance();
    }
  }

  // Adds up the warps' sums of a tile. One warp gets them, `turn` says which, and hands a lane's to `finish`: of the unit's rows
  // lane / 4 and lane / 4 + 8 the columns lane % 4 * 2 and the next.
  template <class Finish>
  __device__ void add_up(const float (&sums)[4], int turn, Finish&& finish) const {
    float4* partial = reinterpret_cast<float4*>(shared + 2 * kMostFewSlots * 8) + turn % 2 * kFewWarps * 32;
    partial[warp * 32 + lane] = {sums[0], sums[1], sums[2], sums[3]};
    barrier_sync(1, kFewWarps * 32);
    if (turn % kFewWarps != warp) return;
    float4 all = partial[lane];
#pragma unroll
    for (int i = 1; i < kFewWarps; ++i) {
      const float4 more = partial[i * 32 + lane];
      all.x += more.x, all.y += more.y, all.z += more.z, all.w += more.w;
    }
    finish(all);
  }
};

#endif

}  // namespace octavo
