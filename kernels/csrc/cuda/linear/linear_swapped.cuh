// Products of 65 to 256 rows on Hopper (sm_90a): out = x weight^T, with bias and residual, or activation(x gate^T) * (x up^T).
//
// The weight's rows are the 64 rows of a tensor core instruction, and the rows of x, all of which a tile has, its columns: a
// multiple of 16, so that 200 rows are multiplied as 208 and the weight is read once. Pairs of blocks (pair_tiles.cuh) share
// their rows of x. Gate and up rows lie in shared memory by turns, eight of each, so that both factors of a result are one
// thread's.
//
// Pairs have whole tiles, or share the depth of all of them (shared_depth.cuh).
#pragma once

#include "device/shared_depth.cuh"
#include "linear/linear.cuh"
#include "linear/linear_tiles.cuh"
#include "linear/swapped_store.cuh"

namespace octavo {
namespace {

// A tile has 64 rows of the weight for each consumer, a warpgroup, and up to so many rows of x. The weight, which comes from
// memory, has a ring of its own, deeper than that of x, which comes out of the L2 and whose stages two blocks let go of.
template <int consumers, int tokens, bool more_x = false>
struct Shape {
  static constexpr int kConsumers = consumers, kTokens = tokens, kThreads = (consumers + 1) * kWarpgroup;
  static constexpr int kStorers = consumers * kWarpgroup, kHeight = consumers * kRows;
  static constexpr int kWeightBytes = kHeight * kRowBytes, kXBytes = tokens * kRowBytes;
  static constexpr int kBarriers = 1024, kRoom = 226 * 1024 - 2 * kBarriers;  // another 1 KB for aligning them
  static constexpr bool kMoreX = more_x;
  static constexpr int kXStages = (tokens <= 128 && consumers == 2 ? 6 : 4) + more_x, kLeft = (kRoom - kXStages * kXBytes) / kWeightBytes;
  static constexpr int kWeightStages = kLeft < 16 ? kLeft : 16;
  static constexpr int kXAt = kBarriers + kWeightStages * kWeightBytes, kBytes = kXAt + kXStages * kXBytes + kBarriers;
  // Registers: with those of the warpgroup that copies all that the block's threads begin with, 168, 128 or 96 each.
  static constexpr int kTaken = consumers == 4 ? 112 : consumers == 3 ? 160 : 232, kKept = consumers == 2 ? 40 : 32;
  static constexpr int kAhead = consumers == 4 ? 2 : 4;  // residuals that are on their way
  static_assert(tokens % 16 == 0 && kWeightStages >= 4);
};

struct Maps {
  CUtensorMap x, weights;
};

#if OCTAVO_WGMMA

template <class T, class S>
struct Block {
  using Store = SwappedStore<T, LinearArgs>;
  using Sums = float[S::kTokens / 2];
  using Parts = DepthParts<float, S::kTokens / 8, S::kStorers>;

  const LinearArgs& a;
  const SharedDepth& depth;
  const uint32_t base;
  const Store store;
  BufferRing weights, x;

  __device__ Block(const LinearArgs& args, const SharedDepth& all, uint32_t memory)
      : a(args), depth(all), base(memory), store{args, int(threadIdx.x % 32)},
        weights(memory, S::kWeightStages), x(memory + 2 * 8 * S::kWeightStages, S::kXStages) {}

  __device__ int tokens() const { return (a.rows + 15) / 16 * 16; }  // rows of x that are copied

  __device__ uint32_t weights_at(int stage) const { return base + S::kBarriers + stage * S::kWeightBytes; }
  __device__ uint32_t x_at(int stage) const { return base + S::kXAt + stage * S::kXBytes; }

  __device__ void init_barriers() const {
    weights.init(1, 4 * S::kConsumers), x.init(1, kPair * 4 * S::kConsumers);
    fence_barriers();
  }

  // The first row of this block's tile of a pair, of gate and up together.
  __device__ int row_of(int tile) const { return (tile * kPair + Parts::rank()) * S::kHeight; }

  // The thread that copies the weight's rows: they are older than the previous kernel.
  __device__ void bring_weights(const Maps& maps) {
    for (int at = depth.begin(Parts::worker()), end = depth.begin(Parts::worker() + 1); at < end; ++at) {
      const int row = row_of(at / depth.stages), column = at % depth.stages * kDepth;
      weights.await_empty();
      barrier_expect(weights.full_now(), S::kWeightBytes);
      if (a.gated) copy_halves(weights_at(weights.stage), maps.weights, column, row / 16, weights.full_now());
      else copy_rows(weights_at(weights.stage), maps.weights, column, row, weights.full_now());
      weights.advance();
    }
  }
  // The thread that copies this block's half of the rows of x to both. It does not end before the other block has let go of all
  // of this one's stages (pair_tiles.cuh).
  __device__ void bring_x(const Maps& maps) {
    wait_for_previous_kernel();
    launch_next_kernel();
    const int from = Parts::rank() * (tokens() / kPair);
    for (int at = depth.begin(Parts::worker()), end = depth.begin(Parts::worker() + 1); at < end; ++at) {
      x.await_empty();
      barrier_expect(x.full_now(), tokens() * kRowBytes);
      copy_rows(x_at(x.stage) + from * kRowBytes, maps.x, at % depth.stages * kDepth, from, x.full_now(), uint16_t(3));
      x.advance();
    }
    x.drain();
  }
  // Of a warp that has multiplied these stages.
  __device__ void release(int weights_stage, int x_stage) const {
    if (store.lane == kPair) barrier_arrive_once(weights.empty + 8 * weights_stage);
    leave_stage(x, x_stage, store.lane);
  }

  // `meanwhile` is called while the last products are under way.
  template <class F>
  __device__ void add_up(Sums& sums, int consumer, int count, F&& meanwhile) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    int weights_before = 0, x_before = 0;
    for (int i = 0; i < count; ++i) {
      weights.await_full(), x.await_full();
      const uint32_t rows = uniform((weights_at(weights.stage) + consumer * kRows * kRowBytes) / 16);
      const uint32_t tokens = uniform(x_at(x.stage) / 16);
      products_begin();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) wgmma(T{}, sums, operand<128>(rows + 2 * k), operand<128>(tokens + 2 * k));
      products_commit();
      if (i > 0) products_wait<1>(), release(weights_before, x_before);
      weights_before = weights.stage, x_before = x.stage;
      weights.advance(), x.advance();
    }
    meanwhile();
    products_wait<0>(sums);
    release(weights_before, x_before);
  }

  __device__ SwappedPlace place(int tile, int warp) const {
    const int row = row_of(tile) + warp * 16, half = a.columns / 2;
    SwappedPlace p{0, a.rows, a.gated ? row / 2 : row, {}};
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
    uint4 residuals[S::kAhead];
    add_up(sums, warp / 4, depth.stages, [&] {
#pragma unroll
      for (int i = 0; i < S::kAhead; ++i) residuals[i] = store.residual(p, i * Store::kPlain);
    });
    if (a.gated) {
      in_parts<Store::kGated>(sums, [&](int n, const auto& own) {
        if (n * 8 < tokens()) store.gated(p, n, own);
      });
      return;
    }
    in_parts<Store::kPlain>(sums, [&](int n, const auto& own) {
      const uint4 raw = residuals[n / Store::kPlain % S::kAhead];
      residuals[n / Store::kPlain % S::kAhead] = store.residual(p, n + S::kAhead * Store::kPlain);
      if (n * 8 < tokens()) store.plain(p, n, own, raw);
    });
  }
  __device__ void finish_part(const Parts& parts, int tile, int warp, int count) {
    Sums sums;
    add_up(sums, warp / 4, count, [] {});
    parts.hand_in(tile, [&](int n) {
      return typename Parts::Four{sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3]};
    });
  }
  __device__ void finish_shared(const Parts& parts, int tile, int warp) const {
    const SwappedPlace p = place(tile, warp);
    if (a.gated) {
      parts.template share<Store::kGated>(tile, [&](int n, const auto& sums) { store.gated(p, n, sums); });
    } else {
      parts.template share<Store::kPlain>(tile, [&](int n, const auto& sums) { store.plain(p, n, sums, store.residual(p, n)); });
    }
  }

  __device__ void compute() {
    const int warp = uniform(Parts::thread() / 32);
    const Parts parts{depth, a.meetings, tokens() / 8};
    wait_for_previous_kernel();  // it may have written what is added, or read what is handed in
    parts.go_through([&](int tile) { finish(tile, warp); },
                     [&](int tile, int count) { finish_part(parts, tile, warp, count); },
                     [&](int tile) { finish_shared(parts, tile, warp); });
  }
};

#endif

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    linear_swapped_kernel(const __grid_constant__ LinearArgs a, const __grid_constant__ Maps maps,
                          const __grid_constant__ SharedDepth depth) {
#if OCTAVO_WGMMA
  extern __shared__ char memory[];
  Block<T, S> block(a, depth, (shared_address(memory) + S::kBarriers - 1) & ~(S::kBarriers - 1u));
  if (threadIdx.x == 0) block.init_barriers();
  cluster_meet();
  if (threadIdx.x >= kWarpgroup) {
    take_registers<S::kTaken>();
    block.compute();
  } else {
    give_registers<S::kKept>();
    if (threadIdx.x == 0) block.bring_weights(maps);
    if (threadIdx.x == 32) block.bring_x(maps);
  }
#endif
}

constexpr int over(int n, int by) { return (n + by - 1) / by; }

template <class T, class S>
cudaError_t launch(const LinearArgs& a, int shares, const Device& device, cudaStream_t stream) {
  const SharedDepth depth = share_depth(over(a.columns, S::kHeight * kPair), over(a.depth, kDepth), shares,
                                        device.multiprocessors, a.meetings.parts && a.meetings.arrivals);
  if (depth.workers == 0) return cudaErrorInvalidValue;
  Maps maps;
  const bool described =
      (a.gated ? describe_halves(maps.weights, a.weight, a.columns, a.depth, a.weight_stride, S::kHeight)
               : describe_matrix(maps.weights, a.weight, a.columns, a.depth, a.weight_stride, S::kHeight)) &&
      describe_matrix(maps.x, a.x, a.rows, a.depth, a.x_stride, over(a.rows, 16) * 16 / kPair);
  if (!described) return cudaErrorNotSupported;
  const Launch how{dim3(kPair * depth.workers), S::kThreads, S::kBytes, kPair};
  return launch_after(linear_swapped_kernel<T, S>, how, stream, a, maps, depth);
}

// With the tile that is asked for, which is one of these.
template <class T, class... Shapes>
cudaError_t launch_one_of(const LinearArgs& a, const LinearTile& tile, int shares, const Device& device, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto launch_if = [&](auto shape) {
    using S = decltype(shape);
    if (tile.consumers == S::kConsumers && tile.columns == S::kTokens && tile.tall == S::kMoreX)
      error = launch<T, S>(a, shares, device, stream);
  };
  (launch_if(Shapes{}), ...);
  return error;
}

template <class T>
cudaError_t launch_swapped(const LinearArgs& a, const LinearTile& tile, int shares, const Device& device, cudaStream_t stream) {
  if (device.major != 9 || a.norm || !in_groups(a) || a.rows > tile.columns) return cudaErrorInvalidValue;
  return launch_one_of<T, Shape<2, 96>, Shape<2, 128>, Shape<2, 160>, Shape<2, 192>, Shape<2, 208>, Shape<2, 224>, Shape<2, 240>,
                       Shape<2, 256>, Shape<2, 208, true>, Shape<2, 256, true>, Shape<3, 96>, Shape<3, 128>, Shape<3, 160>,
                       Shape<3, 192>, Shape<4, 96>, Shape<4, 128>>(a, tile, shares, device, stream);
}

}  // namespace
}  // namespace octavo
