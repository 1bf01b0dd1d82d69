// Products of 65 to 256 rows on Hopper (sm_90a): out = x weight^T, with bias and residual, or activation(x gate^T) * (x up^T).
//
// The weight's rows are the 64 rows of a tensor core instruction, and the rows of x, all of which a tile has, its columns: a
// multiple of 16, so that 200 rows are multiplied as 208 and the weight is read once. Pairs of blocks (pair_tiles.cuh) share
// their rows of x. Gate and up rows lie in shared memory by turns, eight of each, so that both factors of a result are one
// thread's.
//
// Pairs have whole tiles, or share the depth of all of them (shared_depth.cuh).
#include "device/shared_depth.cuh"
#include "linear/linear.cuh"
#include "linear/linear_tiles.cuh"
#include "linear/swapped_store.cuh"

namespace octavo {
namespace {

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
  static constexpr int kAhead = consumers == 4 ? 2 : 4;  // residuals that are on their way
  static_assert(tokens % 16 == 0 && kStages >= 4);
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
  BufferRing ring;

  __device__ Block(const LinearArgs& args, const SharedDepth& all, uint32_t memory)
      : a(args), depth(all), base(memory), store{args, int(threadIdx.x % 32)}, ring(memory, S::kStages) {}

  __device__ int tokens() const { return (a.rows + 15) / 16 * 16; }  // rows of x that are copied

  __device__ uint32_t weights_at(int stage) const { return base + S::kRing + stage * S::kStageBytes; }
  __device__ uint32_t x_at(int stage) const { return weights_at(stage) + S::kWeightBytes; }

  __device__ void init_barriers() const {
    ring.init(1, kPair * 4 * S::kConsumers);
    fence_barriers();
  }

  // The first row of this block's tile of a pair, of gate and up together.
  __device__ int row_of(int tile) const { return (tile * kPair + Parts::rank()) * S::kHeight; }

  __device__ int stage_bytes() const { return S::kWeightBytes + tokens() * kRowBytes; }
  __device__ void bring_weights(const Maps& maps, int at, int stage) const {
    const int row = row_of(at / depth.stages), column = at % depth.stages * kDepth;
    if (a.gated) copy_halves(weights_at(stage), maps.weights, column, row / 16, ring.full + 8 * stage);
    else copy_rows(weights_at(stage), maps.weights, column, row, ring.full + 8 * stage);
  }
  __device__ void bring_x(const Maps& maps, int at, int stage) const {
    const int from = Parts::rank() * (tokens() / kPair);
    copy_rows(x_at(stage) + from * kRowBytes, maps.x, at % depth.stages * kDepth, from, ring.full + 8 * stage, uint16_t(3));
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
      const uint32_t x = uniform(x_at(ring.stage) / 16);
      products_begin();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) wgmma(T{}, sums, operand<128>(rows + 2 * k), operand<128>(x + 2 * k));
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
    parts.share(tile, a.gated ? Store::kGated : Store::kPlain, [&](int n, const auto& sharers) {
      if (a.gated) {
        float sums[4 * Store::kGated];
        parts.template collect<Store::kGated>(tile, sharers, n, sums);
        store.gated(p, n, sums);
      } else {
        const uint4 raw = store.residual(p, n);
        float sums[4 * Store::kPlain];
        parts.template collect<Store::kPlain>(tile, sharers, n, sums);
        store.plain(p, n, sums, raw);
      }
    });
  }

  __device__ void compute() {
    const int warp = uniform(Parts::thread() / 32), consumer = warp / 4;
    const Parts parts{depth, a.meetings, tokens() / 8};
    // Each lags by a stage, and so multiplies on while the one before stores.
    const int stages = depth.begin(Parts::worker() + 1) - depth.begin(Parts::worker());
    if (consumer > 0) barrier_wait(ring.full + 8 * min(consumer, stages - 1), 0);
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
  Block<T, S> block(a, depth, (shared_address(memory) + S::kRing - 1) & ~(S::kRing - 1u));
  if (threadIdx.x == 0) block.init_barriers();
  cluster_meet();
  if (threadIdx.x >= kWarpgroup) {
    take_registers<S::kTaken>();
    block.compute();
  } else {
    give_registers<S::kKept>();
    if (threadIdx.x == 0) bring_stages(block, maps, depth);
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
