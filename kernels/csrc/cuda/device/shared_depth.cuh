// The depth of tiles, shared out among pairs of blocks (Stream-K: Osama and others, 2023).
//
// The stages of all tiles, one tile after the other, are cut into as many ranges as there are pairs: by whole tiles, or evenly.
// Who has a part of a tile stores its sums, and when all of them are there each of these pairs adds up some of the rows of x,
// in the order of the depth: the same bits in every run. All pairs of a launch run side by side, as they wait for each other;
// what has begun before them does not wait for them, and a kernel that follows begins when all of them have.
#pragma once

#include "device/pair_tiles.cuh"
#include "linear/args.h"

namespace octavo {

// Pairs of tiles, the stages of each, and the pairs of blocks, `workers`, that have them: `whole` tiles, or as many stages each.
struct SharedDepth {
  int tiles, stages, workers;
  bool whole;
  __host__ __device__ int units() const { return whole ? tiles : tiles * stages; }
  __host__ __device__ int begin(int worker) const {
    const int more = tiles % workers;
    return whole ? (tiles / workers * worker + (worker < more ? worker : more)) * stages : units() * worker / workers;
  }
  // The number of a pair's tile where tiles that are computed at the same time shall be neighbours.
  __host__ __device__ int neighbour(int worker, int tile) const {
    return whole ? worker + (tile - begin(worker) / stages) * workers : tile;
  }
};

// As many pairs as are asked for, `shares`, or, 0, whole tiles. `workers` is 0 where that cannot be launched.
inline SharedDepth share_depth(int tiles, int stages, int shares, int multiprocessors, bool has_room) {
  const int at_once = multiprocessors / kPair, whole = tiles < at_once ? tiles : at_once;
  const bool fits = shares == 0 || (shares <= at_once && shares <= tiles * stages && has_room);
  return {tiles, stages, !fits ? 0 : shares ? shares : whole, shares == 0};
}

#if OCTAVO_WGMMA

// The thread that copies brings the stages of its block's pair, as `bring_tiles` (pair_tiles.cuh); `Block` is asked for stages
// by their number among those of all tiles.
template <class Block, class Maps>
__device__ inline void bring_stages(Block& block, const Maps& maps, const SharedDepth& depth) {
  BufferRing& ring = block.ring;
  const int worker = blockIdx.x / kPair, begin = depth.begin(worker), end = depth.begin(worker + 1);
  const int early = min(ring.length, end - begin);
  for (int i = 0; i < early; ++i) {
    barrier_expect(ring.full + 8 * i, block.stage_bytes());
    block.bring_weights(maps, begin + i, i);
  }
  wait_for_previous_kernel();
  launch_next_kernel();
  for (int i = 0; i < early; ++i) block.bring_x(maps, begin + i, i), ring.advance();
  for (int at = begin + early; at < end; ++at) {
    ring.await_empty();
    barrier_expect(ring.full_now(), block.stage_bytes());
    block.bring_weights(maps, at, ring.stage), block.bring_x(maps, at, ring.stage);
    ring.advance();
  }
  ring.drain();
}

// Parts of tiles, as the threads that multiply see them, of which there are `kStorers`; each has four sums of every eight of
// `kEights * 8` rows of x, of which `eights` are there. In memory parts are [pairs][first or last of its tiles][block of the
// pair][eights][thread][4].
template <class Sum, int kEights, int kStorers>
struct DepthParts {
  struct alignas(16) Four {
    Sum at[4];
  };
  static constexpr int kBarrier = 4;  // which all of them meet at
  static constexpr int kTogether = kStorers > 2 * kWarpgroup ? 4 : 8;  // eights that are added up side by side, by registers

  const SharedDepth& depth;
  const Meetings& meetings;
  const int eights;

  __device__ static int worker() { return blockIdx.x / kPair; }
  __device__ static int rank() { return blockIdx.x % kPair; }
  __device__ static int thread() { return threadIdx.x - kWarpgroup; }

  // A pair whose stages begin in a tile has it as its first one.
  __device__ uint4* part(int from, int tile) const {
    const int last = depth.begin(from) < tile * depth.stages ? 1 : 0;
    const int64_t block = (int64_t(from) * 2 + last) * kPair + rank();
    return static_cast<uint4*>(meetings.parts) + block * kEights * kStorers + thread();
  }
  __device__ int* arrived(int tile) const { return meetings.arrivals + (tile * kPair + rank()) * 2; }

  // `of` gives the four sums of an eight.
  template <class F>
  __device__ void hand_in(int tile, F&& of) const {
    uint4* const to = part(worker(), tile);
#pragma unroll
    for (int n = 0; n < kEights; ++n)
      if (n < eights) {
        const Four own = of(n);
        to[n * kStorers] = reinterpret_cast<const uint4&>(own);
      }
    barrier_sync(kBarrier, kStorers);
    if (thread() == 0) __threadfence(), add_released(arrived(tile), 1);
  }

  // This pair's share of a tile: calls f with an eight and the sums of `kAtOnce` from there on, zeros of those that are not
  // there, which are to be stored. The last to leave sets both counters back.
  template <int kAtOnce, class F>
  __device__ void share(int tile, F&& f) const {
    int first = worker(), last = worker();
    while (depth.begin(first) > tile * depth.stages) --first;
    while (depth.begin(last + 1) < (tile + 1) * depth.stages) ++last;
    const int count = last - first + 1;
    if (thread() == 0)
      while (load_acquired(arrived(tile)) < count) {
      }
    barrier_sync(kBarrier, kStorers);
    constexpr int kUnits = kTogether / kAtOnce;
    const int apart = count * kAtOnce;
    for (int n = (worker() - first) * kAtOnce; n < eights; n += kUnits * apart) {
      Sum sums[kUnits][4 * kAtOnce];
      collect<kAtOnce>(tile, first, last, n, apart, sums);
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        if (n + u * apart < eights) f(n + u * apart, sums[u]);
    }
    barrier_sync(kBarrier, kStorers);
    if (thread() == 0 && atomicAdd(arrived(tile) + 1, 1) == count - 1) arrived(tile)[0] = 0, arrived(tile)[1] = 0;
  }
  // All sums of two parts are on their way at a time: their latency is what takes long.
  template <int kAtOnce, int kUnits>
  __device__ void collect(int tile, int first, int last, int n, int apart, Sum (&sums)[kUnits][4 * kAtOnce]) const {
#pragma unroll
    for (auto& unit : sums)
#pragma unroll
      for (Sum& sum : unit) sum = 0;
    for (int from = first; from <= last; from += 2) {
      uint4 raw[2][kUnits][kAtOnce];
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const uint4* const own = part(from + p, tile);
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int eight = n + u * apart + i;
            raw[p][u][i] = make_uint4(0, 0, 0, 0);
            if (from + p <= last && eight < eights) raw[p][u][i] = __ldcg(own + eight * kStorers);
          }
      }
#pragma unroll
      for (int p = 0; p < 2; ++p)
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const Four& four = reinterpret_cast<const Four&>(raw[p][u][i]);
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[u][4 * i + j] += four.at[j];
          }
    }
  }

  // Goes through this pair's stages: `whole` has a tile, `some` a part of one and its number of stages, `shared` a tile whose
  // parts are to be added up, after all of the pair's own.
  template <class Whole, class Some, class Shared>
  __device__ void go_through(Whole&& whole, Some&& some, Shared&& shared) const {
    const int begin = depth.begin(worker()), end = depth.begin(worker() + 1);
    for (int at = begin; at < end;) {
      const int tile = at / depth.stages, stop = min(end, (tile + 1) * depth.stages);
      if (stop - at == depth.stages) whole(tile);
      else some(tile, stop - at);
      at = stop;
    }
    const int first = begin / depth.stages, last = (end - 1) / depth.stages;
    if (begin % depth.stages || end < (first + 1) * depth.stages) shared(first);
    if (last > first && end % depth.stages) shared(last);
  }
};

#endif

}  // namespace octavo
