// Products of 65 to 256 rows on Hopper (sm_90a): out = x weight^T, with bias and residual, or activation(x gate^T) * (x up^T).
//
// The weight's rows are the 64 rows of a tensor core instruction, and the rows of x, all of which a tile has, its columns: a
// multiple of 16, so that 200 rows are multiplied as 208 and the weight is read once. Pairs of blocks (pair_tiles.cuh) share
// their rows of x. Gate and up rows lie in shared memory by turns, eight of each, so that both factors of a result are one
// thread's.
//
// A tile's depth is cut into stages, and the stages of all tiles, one tile after the other, are shared out evenly among the
// pairs (Stream-K: Osama and others, 2023), or by whole tiles. Who has a part of a tile stores its sums in float32, and when
// all of them are there each adds up some of the rows of x, in the order of the depth: the same bits in every run.
#include <algorithm>

#include "device/pair_tiles.cuh"
#include "linear/linear.cuh"
#include "linear/linear_tiles.cuh"
#include "linear/swapped_store.cuh"

namespace octavo {
namespace {

constexpr int kAhead = 4;      // residuals that are on their way
constexpr int kStorersId = 1;  // of the barrier of all threads that multiply

// A tile has 64 rows of the weight for each consumer, a warpgroup, and up to so many rows of x.
template <int consumers, int tokens>
struct Shape {
  static constexpr int kConsumers = consumers, kTokens = tokens, kThreads = (consumers + 1) * kWarpgroup;
  static constexpr int kStorers = consumers * kWarpgroup, kHeight = consumers * kRows;
  static constexpr int kWeightBytes = kHeight * kRowBytes, kStageBytes = kWeightBytes + tokens * kRowBytes;
  static constexpr int kRing = 1024, kStages = (226 * 1024 - 2 * kRing) / kStageBytes;
  static constexpr int kBytes = 2 * kRing + kStages * kStageBytes;  // one for the barriers, one for aligning them
  // Registers: with those of the warpgroup that copies all that the block's threads begin with, 168, 128 or 96 each.
  static constexpr int kTaken = consumers == 4 ? 112 : consumers == 3 ? 160 : 232, kKept = consumers == 2 ? 40 : 32;
  static_assert(tokens % 16 == 0 && kStages >= 4);
};

// Pairs of tiles along the weight, their stages, the rows of x that are copied, and the pairs of blocks, `workers`, among which
// the stages are shared out: by `whole` tiles, or evenly.
struct Grid {
  int tiles, stages, tokens, workers;
  bool whole;
  __host__ __device__ int units() const { return whole ? tiles : tiles * stages; }
  __host__ __device__ int begin(int worker) const { return units() * worker / workers * (whole ? stages : 1); }
};

struct Maps {
  CUtensorMap x, weights;
};

#if OCTAVO_WGMMA

template <class T, class S>
struct Block {
  using Store = SwappedStore<T, LinearArgs>;
  using Sums = float[S::kTokens / 2];

  const LinearArgs& a;
  const Grid& grid;
  const uint32_t base;
  const int rank, worker, begin, end;  // in its pair; its pair; stages of all tiles
  const Store store;
  BufferRing ring;

  __device__ Block(const LinearArgs& args, const Grid& all, uint32_t memory)
      : a(args), grid(all), base(memory), rank(blockIdx.x % kPair), worker(blockIdx.x / kPair), begin(all.begin(worker)),
        end(all.begin(worker + 1)), store{args, int(threadIdx.x % 32)}, ring(memory, S::kStages) {}

  __device__ uint32_t weights_at(int stage) const { return base + S::kRing + stage * S::kStageBytes; }
  __device__ uint32_t x_at(int stage) const { return weights_at(stage) + S::kWeightBytes; }
  __device__ int thread() const { return threadIdx.x - kWarpgroup; }  // of those that multiply

  __device__ void init_barriers() const {
    ring.init(1, kPair * 4 * S::kConsumers);
    fence_barriers();
  }

  // The first row of this block's tile of a pair, of gate and up together.
  __device__ int row_of(int tile) const { return (tile * kPair + rank) * S::kHeight; }

  __device__ void bring_weights(const Maps& maps, int at, int stage) const {
    const int row = row_of(at / grid.stages), depth = at % grid.stages * kDepth;
    if (a.gated) copy_halves(weights_at(stage), maps.weights, depth, row / 16, ring.full + 8 * stage);
    else copy_rows(weights_at(stage), maps.weights, depth, row, ring.full + 8 * stage);
  }
  __device__ void bring_x(const Maps& maps, int at, int stage) const {
    const int from = rank * (grid.tokens / kPair);
    copy_rows(x_at(stage) + from * kRowBytes, maps.x, at % grid.stages * kDepth, from, ring.full + 8 * stage, uint16_t(3));
  }
  // The thread that copies brings all stages of its block, and the x that both blocks have. The first weights are on their way
  // before the previous kernel has ended. It does not end before the other block has let go of all of this one's stages
  // (pair_tiles.cuh).
  __device__ void bring(const Maps& maps) {
    const int bytes = S::kWeightBytes + grid.tokens * kRowBytes, early = min(ring.length, end - begin);
    for (int i = 0; i < early; ++i) barrier_expect(ring.full + 8 * i, bytes), bring_weights(maps, begin + i, i);
    wait_for_previous_kernel();
    launch_next_kernel();
    for (int i = 0; i < early; ++i) bring_x(maps, begin + i, i), ring.advance();
    for (int at = begin + early; at < end; ++at) {
      ring.await_empty();
      barrier_expect(ring.full_now(), bytes);
      bring_weights(maps, at, ring.stage), bring_x(maps, at, ring.stage);
      ring.advance();
    }
    ring.drain();
  }

  // `meanwhile` is called while the last products are under way.
  template <class F>
  __device__ void add_up(Sums& sums, int consumer, int count, F&& meanwhile) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    int previous = 0;
    for (int i = 0; i < count; ++i) {
      ring.await_full();
      const uint32_t rows = uniform((weights_at(ring.stage) + consumer * kRows * kRowBytes) / 16);
      const uint32_t tokens = uniform(x_at(ring.stage) / 16);
      products_begin();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) wgmma(T{}, sums, operand<128>(rows + 2 * k), operand<128>(tokens + 2 * k));
      products_commit();
      if (i > 0) products_wait<1>(), leave_stage(ring, previous, store.lane);
      previous = ring.stage;
      ring.advance();
    }
    meanwhile();
    products_wait<0>(sums);
    leave_stage(ring, previous, store.lane);
  }

  __device__ SwappedPlace place(int tile, int warp) const {
    const int row = row_of(tile) + warp * 16, half = a.columns / 2;
    SwappedPlace p{0, min(a.rows, grid.tokens), a.gated ? row / 2 : row, {}};
    if (a.bias) {
      const int low = p.column + store.lane / 4;
      p.biases[0] = store.bias(low), p.biases[1] = store.bias(a.gated ? low + half : low + 8);
    }
    return p;
  }

  // All of a tile's depth is this block's. What is stored is loaded by the same thread: it may go where residuals are.
  __device__ void finish(int tile, int warp) {
    const SwappedPlace p = place(tile, warp);
    Sums sums;
    uint4 residuals[kAhead];
    add_up(sums, warp / 4, grid.stages, [&] {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) residuals[i] = store.residual(p, i * Store::kPlain);
    });
    if (a.gated) {
      in_parts<Store::kGated>(sums, [&](int n, const auto& own) {
        if (n * 8 < grid.tokens) store.gated(p, n, own);
      });
      return;
    }
    in_parts<Store::kPlain>(sums, [&](int n, const auto& own) {
      const uint4 raw = residuals[n / Store::kPlain % kAhead];
      residuals[n / Store::kPlain % kAhead] = store.residual(p, n + kAhead * Store::kPlain);
      if (n * 8 < grid.tokens) store.plain(p, n, own, raw);
    });
  }

  // Where sums of a part of a tile go, [pairs][first or last of its tiles][block][eights of rows of x][thread]. A pair whose
  // stages begin in a tile has it as its first one.
  __device__ float4* part(int from, int tile) const {
    const int last = grid.begin(from) < tile * grid.stages;
    const int64_t blocks = (int64_t(from) * 2 + (last ? 1 : 0)) * kPair + rank;
    return reinterpret_cast<float4*>(a.parts) + blocks * (S::kTokens / 8) * S::kStorers + thread();
  }
  __device__ int* arrived(int tile) const { return a.arrivals + (tile * kPair + rank) * 2; }

  __device__ void hand_in(int tile, int warp, int count) {
    Sums sums;
    add_up(sums, warp / 4, count, [] {});
    float4* const to = part(worker, tile);
#pragma unroll
    for (int n = 0; n < S::kTokens / 8; ++n)
      if (n * 8 < grid.tokens)
        to[n * S::kStorers] = make_float4(sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3]);
    barrier_sync(kStorersId, S::kStorers);
    if (thread() == 0) __threadfence(), add_released(arrived(tile), 1);
  }

  // Sums of so many eights of rows of x from `n` on, of the parts of a tile that these pairs have.
  template <int kAtOnce>
  __device__ void collect(int tile, int first, int last, int n, float (&sums)[4 * kAtOnce]) const {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    for (int from = first; from <= last; ++from) {
      const float4* const of = part(from, tile) + n * S::kStorers;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if ((n + i) * 8 >= grid.tokens) continue;
        const float4 own = __ldcg(of + i * S::kStorers);
        sums[4 * i] += own.x, sums[4 * i + 1] += own.y, sums[4 * i + 2] += own.z, sums[4 * i + 3] += own.w;
      }
    }
  }
  // This pair's share of a tile's rows of x, when all have handed in their sums. The last to leave sets both counters back.
  __device__ void share(int tile, int warp) const {
    int first = worker, last = worker;
    while (grid.begin(first) > tile * grid.stages) --first;
    while (grid.begin(last + 1) < (tile + 1) * grid.stages) ++last;
    const int count = last - first + 1, at_once = a.gated ? Store::kGated : Store::kPlain;
    const SwappedPlace p = place(tile, warp);
    if (thread() == 0)
      while (load_acquired(arrived(tile)) < count) {
      }
    barrier_sync(kStorersId, S::kStorers);
    for (int n = (worker - first) * at_once; n * 8 < grid.tokens; n += count * at_once) {
      if (a.gated) {
        float sums[4 * Store::kGated];
        collect<Store::kGated>(tile, first, last, n, sums);
        store.gated(p, n, sums);
      } else {
        const uint4 raw = store.residual(p, n);
        float sums[4 * Store::kPlain];
        collect<Store::kPlain>(tile, first, last, n, sums);
        store.plain(p, n, sums, raw);
      }
    }
    barrier_sync(kStorersId, S::kStorers);
    if (thread() == 0 && atomicAdd(arrived(tile) + 1, 1) == count - 1) arrived(tile)[0] = 0, arrived(tile)[1] = 0;
  }

  __device__ void compute() {
    const int warp = uniform(thread() / 32), consumer = warp / 4;
    // Each lags by a stage, and so multiplies on while the one before stores.
    if (consumer > 0) barrier_wait(ring.full + 8 * min(consumer, end - begin - 1), 0);
    wait_for_previous_kernel();  // it may have written what is added, or read what is handed in
    for (int at = begin; at < end;) {
      const int tile = at / grid.stages, stop = min(end, (tile + 1) * grid.stages);
      if (stop - at == grid.stages) finish(tile, warp);
      else hand_in(tile, warp, stop - at);
      at = stop;
    }
    const int first = begin / grid.stages, last = (end - 1) / grid.stages;
    if (begin % grid.stages || end < (first + 1) * grid.stages) share(first, warp);
    if (last > first && end % grid.stages) share(last, warp);
  }
};

#endif

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    linear_swapped_kernel(const __grid_constant__ LinearArgs a, const __grid_constant__ Maps maps,
                          const __grid_constant__ Grid grid) {
#if OCTAVO_WGMMA
  extern __shared__ char memory[];
  Block<T, S> block(a, grid, (shared_address(memory) + S::kRing - 1) & ~(S::kRing - 1u));
  if (threadIdx.x == 0) block.init_barriers();
  cluster_meet();
  if (threadIdx.x >= kWarpgroup) {
    take_registers<S::kTaken>();
    block.compute();
  } else {
    give_registers<S::kKept>();
    if (threadIdx.x == 0) block.bring(maps);
  }
#endif
}

constexpr int over(int n, int by) { return (n + by - 1) / by; }

template <class T, class S>
cudaError_t launch(const LinearArgs& a, int shares, const Device& device, cudaStream_t stream) {
  Grid grid{over(a.columns, S::kHeight * kPair), over(a.depth, kDepth), over(a.rows, 16) * 16, 0, shares == 0};
  const int at_once = device.multiprocessors / kPair;  // all of which run side by side: they wait for each other
  if (shares > std::min(at_once, grid.tiles * grid.stages) || (shares && !(a.parts && a.arrivals))) return cudaErrorInvalidValue;
  grid.workers = shares ? shares : std::min(grid.tiles, at_once);
  Maps maps;
  const bool described =
      (a.gated ? describe_halves(maps.weights, a.weight, a.columns, a.depth, a.weight_stride, S::kHeight)
               : describe_matrix(maps.weights, a.weight, a.columns, a.depth, a.weight_stride, S::kHeight)) &&
      describe_matrix(maps.x, a.x, a.rows, a.depth, a.x_stride, grid.tokens / kPair);
  if (!described) return cudaErrorNotSupported;
  const Launch how{dim3(kPair * grid.workers), S::kThreads, S::kBytes, kPair};
  return launch_after(linear_swapped_kernel<T, S>, how, stream, a, maps, grid);
}

// With the tile that is asked for, which is one of these.
template <class T, class... Shapes>
cudaError_t launch_one_of(const LinearArgs& a, const LinearTile& tile, int shares, const Device& device, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto launch_if = [&](auto shape) {
    using S = decltype(shape);
    if (tile.consumers == S::kConsumers && tile.columns == S::kTokens) error = launch<T, S>(a, shares, device, stream);
  };
  (launch_if(Shapes{}), ...);
  return error;
}

}  // namespace

cudaError_t linear_swapped(const LinearArgs& a, const LinearTile& tile, int shares, const Device& device, cudaStream_t stream) {
  if (device.major != 9 || a.norm || !in_groups(a) || a.rows > tile.columns) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    return launch_one_of<decltype(tag), Shape<2, 96>, Shape<2, 128>, Shape<2, 160>, Shape<2, 192>, Shape<2, 208>, Shape<2, 224>,
                         Shape<2, 240>, Shape<2, 256>, Shape<3, 96>, Shape<3, 128>, Shape<3, 160>, Shape<3, 192>, Shape<4, 96>,
                         Shape<4, 128>>(a, tile, shares, device, stream);
  });
}

}  // namespace octavo
