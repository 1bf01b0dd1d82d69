// Products of experts with up to eight rows of a step: how weights flow.
//
// A unit is sixteen rows of one expert's matrix. One warp copies units, piece by piece of the depth, into a ring; eight warps share
// out a piece's depth, and one of them adds up what they have. The weights are the sixteen rows of `mma`, rows of x its eight
// columns, which come from the L2: an expert has few. An element's sum is in one order, whatever other rows there are.
// Every block chooses by itself from the router's logits: lists made elsewhere are a chain of loads and stores to wait for.
// A block takes less than half of a multiprocessor, so that the next kernel's weights flow before this one has ended.
#pragma once

#include <algorithm>

#include "device/common.cuh"
#include "experts/choice.cuh"
#include "linear/norm.cuh"

namespace octavo {

constexpr int kFewWarps = 8, kFewThreads = (kFewWarps + 1) * 32;
constexpr int kUnitRows = 16;
static_assert(kFewRows == 8 && kFewRows < kFewWarps + 1);  // columns of `mma`; a warp chooses for a row
constexpr int kMostPiece = 1024, kWindow = 32, kWindows = kMostPiece / kWindow / kFewWarps;  // of the depth; of a warp
constexpr int kBlockBytes = 113 * 1024, kMostFewSlots = 8;
constexpr int kPartialAt = 2 * kMostFewSlots * 8, kPartialBytes = 2 * kFewWarps * 32 * 16;

// How a launch goes about it, and where things lie in shared memory: barriers, sums of the warps, the lists, the ring.
struct FewCut {
  int slices;         // units of an expert
  int piece, pieces;  // of the depth
  int pitch, slots;   // bytes between rows of a piece, which put two rows into different banks, or, of codes, between pieces;
                      // pieces in the ring
  int hits_at, sources_at, weights_at, sums_at, ring_at;
  int bytes;
};

// Lists from `at` on, and behind them `sums` bytes of the rows' sums and the ring.
inline void cut_lists(FewCut& cut, int at, int experts, int pairs, int sums) {
  const auto after = [](int begin, int bytes) { return begin + (bytes + 15) / 16 * 16; };
  cut.hits_at = at;
  cut.sources_at = after(cut.hits_at, 16 + 12 * std::min(experts, pairs));
  cut.weights_at = after(cut.sources_at, pairs);
  cut.sums_at = after(cut.weights_at, 4 * pairs);
  cut.ring_at = (after(cut.sums_at, sums) + 127) / 128 * 128;
}

inline FewCut cut_few(const ExpertMatrix& m, int slices, int pairs, int sums) {
  FewCut cut{};
  cut.slices = slices;
  const int least = (m.depth + kMostPiece - 1) / kMostPiece;
  cut.piece = ((m.depth + least - 1) / least + 63) / 64 * 64;
  cut.pieces = (m.depth + cut.piece - 1) / cut.piece;
  cut.pitch = cut.piece * 2 + 64;
  cut_lists(cut, kPartialAt + kPartialBytes, m.experts, pairs, sums);
  const int slot = kUnitRows * cut.pitch;
  cut.slots = std::max(2, std::min(kMostFewSlots, (kBlockBytes - cut.ring_at) / slot));
  cut.bytes = cut.ring_at + cut.slots * slot;
  return cut;
}

#if OCTAVO_BULK_COPY

struct Hit {
  int expert, begin, end;
};

// Experts that rows take, by row and by place, and their weights by row.
struct Taken {
  static constexpr int kMostPairs = kFewRows * kMostChosen;
  int32_t ids[kMostPairs], experts[kMostPairs];
  float weights[kMostPairs], room[kFewRows][kMostChosen];
};
static_assert(sizeof(Taken) <= kPartialBytes);

// A block's lists, by place: experts that are hit, rows of pairs, their weights.
struct FewLists {
  Taken& taken;  // where warps' sums will be
  int* count;
  Hit* hits;
  uint8_t* sources;
  float* weights;

  __device__ FewLists(char* shared, const FewCut& cut)
      : taken(*reinterpret_cast<Taken*>(shared + kPartialAt)), count(reinterpret_cast<int*>(shared + cut.hits_at)),
        hits(reinterpret_cast<Hit*>(shared + cut.hits_at + 16)), sources(reinterpret_cast<uint8_t*>(shared + cut.sources_at)),
        weights(reinterpret_cast<float*>(shared + cut.weights_at)) {}

  // By all threads: a warp chooses for a row, and one lists what they took. Of the experts, `owned` ones have matrices here.
  __device__ void make(const FewChoice& choice, int rows, int owned) const {
    const int chosen = choice.routing.chosen, pairs = rows * chosen, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < pairs; i += kFewThreads) taken.experts[i] = -1;
    if (warp < rows) {
      int32_t* ids = taken.ids + warp * chosen;
      float* own = taken.weights + warp * chosen;
      if (choice.routing.experts <= 128) choose_row<4>(choice, warp, lane, ids, own, taken.room[warp]);
      else choose_row<16>(choice, warp, lane, ids, own, taken.room[warp]);
    }
    __syncthreads();
    if (warp == 0) {
      place(lane, pairs, chosen);
      __syncwarp();
      list_hits(lane, pairs, choice.first, owned);
    }
    __syncthreads();
  }

 private:
  // A pair's place is how many pairs lie before it; those of padding are in no list.
  __device__ void place(int lane, int pairs, int chosen) const {
    for (int i = lane; i < pairs; i += 32) {
      const int expert = taken.ids[i];
      if (expert < 0) continue;
      int before = 0;
#pragma unroll 8
      for (int other = 0; other < pairs; ++other) {
        const int id = taken.ids[other];
        before += id >= 0 && (id < expert || (id == expert && other < i));
      }
      taken.experts[before] = expert, sources[before] = uint8_t(i / chosen), weights[before] = taken.weights[i];
    }
  }
  __device__ void list_hits(int lane, int pairs, int first, int owned) const {
    int before = 0;
    for (int begin = 0; begin < pairs; begin += 32) {
      const int at = begin + lane, expert = at < pairs ? taken.experts[at] : -1, own = expert - first;
      const bool is_hit = expert >= 0 && own >= 0 && own < owned && (at == 0 || taken.experts[at - 1] != expert);
      const unsigned with = __ballot_sync(kAll, is_hit);
      if (is_hit) {
        int end = at + 1;
        while (end < pairs && taken.experts[end] == expert) ++end;
        hits[before + __popc(with & ((1u << lane) - 1))] = {own, at, end};
      }
      before += __popc(with);
    }
    if (lane == 0) *count = before;
  }
};

// A slice of an expert's matrix, and the rows that take it: of the shared expert all.
struct Unit {
  Hit hit;
  int slice;
  bool is_shared = false;
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
    for (int begin = 0; begin < depth; begin += cut.piece) bring_piece(row_at, begin, depth, policy);
  }
  // A piece of it, from `begin` of the depth on.
  template <class RowAt>
  __device__ void bring_piece(RowAt&& row_at, int begin, int depth, uint64_t policy) {
    const T* from = lane < kUnitRows ? row_at(lane) : nullptr;
    const int rows = __popc(__ballot_sync(kAll, from != nullptr)), bytes = min(cut.piece, depth - begin) * 2;
    barrier_wait(empty(), parity ^ 1);
    if (lane == 0) barrier_expect(full(), rows * bytes);
    __syncwarp();
    const uint32_t to = base + cut.ring_at + (slot * kUnitRows + lane) * cut.pitch;
    if (from) copy_bulk(to, from + begin, bytes, full(), policy);
    advance();
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
  __device__ void multiply(XAt&& x_at, int rows, int depth, float (&sums)[4]) {
    const int column = lane % 4 * 8, row = lane / 4;
    const T* x_row = row < rows ? x_at(row) : nullptr;
    for (int begin = 0; begin < depth; begin += cut.piece) {
      uint4 x[kWindows], low[kWindows], high[kWindows];
      const auto window = [&](int i) { return (i * kFewWarps + warp) * kWindow + column; };
      const auto there = [&](int i) { return window(i) < cut.piece && begin + window(i) < depth; };
#pragma unroll
      for (int i = 0; i < kWindows; ++i)
        x[i] = x_row && there(i) ? __ldcg(reinterpret_cast<const uint4*>(x_row + begin + window(i))) : make_uint4(0, 0, 0, 0);
      barrier_wait(full(), parity);
      const char* from = shared + cut.ring_at + (slot * kUnitRows + lane / 4) * cut.pitch;
#pragma unroll
      for (int i = 0; i < kWindows; ++i) {
        low[i] = there(i) ? *reinterpret_cast<const uint4*>(from + window(i) * 2) : make_uint4(0, 0, 0, 0);
        high[i] = there(i) ? *reinterpret_cast<const uint4*>(from + 8 * cut.pitch + window(i) * 2) : make_uint4(0, 0, 0, 0);
      }
      leave(low, high);
#pragma unroll
      for (int i = 0; i < kWindows; ++i) {
        const uint32_t first[4] = {low[i].x, high[i].x, low[i].y, high[i].y};
        const uint32_t second[4] = {low[i].z, high[i].z, low[i].w, high[i].w};
        mma<T>(sums, first, x[i].x, x[i].y);
        mma<T>(sums, second, x[i].z, x[i].w);
      }
      advance();
    }
  }

  // Adds up the warps' sums. One warp gets them, `turn` says which, and hands a lane's to `finish`: of the unit's rows
  // lane / 4 and lane / 4 + 8 the columns lane % 4 * 2 and the next.
  template <class Finish>
  __device__ void add_up(const float (&sums)[4], int turn, Finish&& finish) const {
    float4* partial = reinterpret_cast<float4*>(shared + kPartialAt) + turn % 2 * kFewWarps * 32;
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
