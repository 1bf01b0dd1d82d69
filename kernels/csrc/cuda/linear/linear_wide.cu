// Products of dozens of rows or more, on Hopper (sm_90a): out = x weight^T, with bias and residual, or
// activation(x gate^T) * (x up^T).
//
// Warpgroups multiply 64 rows of x each. Pairs of blocks (pair_tiles.cuh) share their weights or their rows of x. A block goes
// on to its next tile, whose first stages arrive while the results of one are stored. Gate and up rows lie in shared memory by
// turns, eight of each, so that both factors of a result are one thread's.
#include <algorithm>

#include "device/pair_tiles.cuh"
#include "linear/linear.cuh"
#include "linear/linear_tiles.cuh"

namespace octavo {
namespace {

enum class Ending { plain, gated };

// A tile has 64 rows of x for each consumer, a warpgroup, and so many rows of the weights. Pairs are tall, with the same
// weights, or wide, with the same x.
template <int consumers, int columns, bool tall>
struct Shape {
  static constexpr int kConsumers = consumers, kColumns = columns;
  static constexpr int kHigh = tall ? kPair : 1, kWide = kPair / kHigh;
  static constexpr int kThreads = (consumers + 1) * kWarpgroup, kTileRows = consumers * kRows;
  static constexpr int kXBytes = kTileRows * kRowBytes, kStageBytes = kXBytes + columns * kRowBytes;
  static constexpr int kRing = 1024, kStages = (226 * 1024 - 2 * kRing) / kStageBytes;
  static constexpr int kBytes = 2 * kRing + kStages * kStageBytes;  // one for the barriers, one for aligning them
  static constexpr int kWeightsShare = columns / kHigh;  // rows that a block copies
  static_assert(kWeightsShare % 16 == 0 && columns % 16 == 0);
};

// Pairs of tiles of a launch, and the stages of one. Tiles are as high as the rows they share out need: copies of rows that
// are not there take longer than of those that are.
struct Grid {
  int rows, columns, stages, height;
  __host__ __device__ int pairs() const { return rows * columns; }
};

struct Maps {
  CUtensorMap x, weights;
};

#if OCTAVO_WGMMA

// Copies rows of gate and up by turns.
__device__ inline void copy_halves(uint32_t shared, const CUtensorMap& map, int depth, int eights, uint32_t barrier,
                                   uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3, %3, %4}], [%5], %6;" ::"r"(shared),
      "l"(&map), "r"(depth), "r"(0), "r"(eights), "r"(barrier), "h"(blocks)
      : "memory");
}
template <class T, class S, Ending ending>
struct Block {
  const LinearArgs& a;
  const Grid grid;
  const uint32_t base;
  const int rank, down, across;  // in its pair
  BufferRing ring;

  __device__ Block(const LinearArgs& args, const Grid& all, uint32_t memory)
      : a(args), grid(all), base(memory), rank(blockIdx.x % kPair), down(rank % S::kHigh), across(rank / S::kHigh),
        ring(memory, S::kStages) {}

  // Masks of blocks: those with the same rows of x, and of the weights.
  __device__ uint32_t with_x() const { return S::kWide == kPair ? 3 : 1u << rank; }
  __device__ uint32_t with_weights() const { return S::kHigh == kPair ? 3 : 1u << rank; }

  __device__ uint32_t x_at(int stage) const { return base + S::kRing + stage * S::kStageBytes; }
  __device__ uint32_t weights_at(int stage) const { return x_at(stage) + S::kXBytes; }
  __device__ int first_pair() const { return blockIdx.x / kPair; }
  __device__ int pairs_apart() const { return gridDim.x / kPair; }

  __device__ void init_barriers() const {
    ring.init(1, kPair * 4 * S::kConsumers);
    fence_barriers();
  }

  struct Tile {
    int row, column;
  };
  __device__ Tile tile(int pair) const {
    const TilePlace at = tile_place(pair, grid.rows, grid.columns);
    return {(at.along_x * S::kHigh + down) * grid.height, (at.along_weight * S::kWide + across) * S::kColumns};
  }

  // Bytes that both blocks bring of a stage, and this block's share.
  __device__ int stage_bytes() const { return (grid.height + S::kColumns) * kRowBytes; }
  __device__ void bring_x(const Maps& maps, const Tile& to, int at, int stage) const {
    const int from = across * (grid.height / S::kWide);
    copy_rows(x_at(stage) + from * kRowBytes, maps.x, at * kDepth, to.row + from, ring.full + 8 * stage, with_x());
  }
  __device__ void bring_weights(const Maps& maps, const Tile& to, int at, int stage) const {
    const int from = down * S::kWeightsShare, row = to.column + from;
    const uint32_t shared = weights_at(stage) + from * kRowBytes, barrier = ring.full + 8 * stage;
    if constexpr (ending == Ending::gated) copy_halves(shared, maps.weights, at * kDepth, row / 16, barrier, with_weights());
    else copy_rows(shared, maps.weights, at * kDepth, row, barrier, with_weights());
  }
  __device__ void release(int stage) const { leave_stage(ring, stage, threadIdx.x % 32); }
  __device__ void compute() {
    const int consumer = uniform(threadIdx.x / kWarpgroup) - 1;
    // The second one lags by a stage, and so multiplies on while the first stores.
    if (consumer > 0) barrier_wait(ring.full + 8 * min(1, grid.stages - 1), 0);
    float sums[S::kColumns / 2];
    for (int pair = first_pair(); pair < grid.pairs(); pair += pairs_apart()) {
#pragma unroll
      for (float& sum : sums) sum = 0.0f;
      int previous = 0;
      for (int i = 0; i < grid.stages; ++i) {
        ring.await_full();
        const uint32_t rows = uniform((x_at(ring.stage) + consumer * kRows * kRowBytes) / 16);
        const uint32_t columns = uniform(weights_at(ring.stage) / 16);
        products_begin();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) wgmma(T{}, sums, operand<128>(rows + 2 * k), operand<128>(columns + 2 * k));
        products_commit();
        if (i > 0) products_wait<1>(), release(previous);
        previous = ring.stage;
        ring.advance();
      }
      products_wait<0>(sums);
      release(previous);
      const Tile of = tile(pair);
      const int thread = threadIdx.x % kWarpgroup, row = consumer * kRows + thread / 32 * 16 + thread % 32 / 4;
      const Place to{of.row + row, min(a.rows, of.row + grid.height), of.column};
      if constexpr (ending == Ending::gated) store_gated(to, sums);
      else store_plain(to, sums);
    }
  }

  // Place of a thread's results: its first row, where the tile's rows end, the tile's first column.
  struct Place {
    int row, end, column;
  };

  // Four threads have two rows of sixteen results at a time, two of each eight: stores eight of each thread, of columns from
  // `first` on. `pair`: those of the eight and half that are given.
  template <class Pair>
  __device__ void store(const Place& to, int first, int columns, Pair&& pair) const {
    const int unit = threadIdx.x % 4, row = to.row + unit % 2 * 8, column = first + unit / 2 * 8;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = pair(i / 2, i % 2);
      words[i] = pack<T>(x.x, x.y);
    }
    transpose_quad(words);
    T* out = static_cast<T*>(a.out) + row * a.out_stride + column;
    if (row < to.end && column < columns) *reinterpret_cast<uint4*>(out) = {words[0], words[1], words[2], words[3]};
  }

  __device__ void store_gated(const Place& to, const float (&sums)[S::kColumns / 2]) const {
    switch (a.activation) {
      case Activation::silu: return store_gated<Activation::silu>(to, sums);
      case Activation::gelu: return store_gated<Activation::gelu>(to, sums);
      default: return store_gated<Activation::gelu_tanh>(to, sums);
    }
  }
  // Rounded as if the product were stored.
  template <Activation kind>
  __device__ void store_gated(const Place& to, const float (&sums)[S::kColumns / 2]) const {
    static_assert(S::kColumns % 32 == 0);
    const auto rounded = [&](int at) { return unpack<T>(pack<T>(sums[at], sums[at + 1])); };
#pragma unroll
    for (int n = 0; n < S::kColumns / 16; n += 2)
      store(to, to.column / 2 + n * 8, a.columns / 2, [&](int eight, int half) {
        const int at = (n + eight) * 8 + half * 2;
        const float2 gate = rounded(at), up = rounded(at + 4);
        return make_float2(activate<kind>(gate.x) * up.x, activate<kind>(gate.y) * up.y);
      });
  }

  __device__ void store_plain(const Place& to, const float (&sums)[S::kColumns / 2]) const {
    wait_for_previous_kernel();  // it may have written what is added now
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; n += 2)
      store(to, to.column + n * 8, a.columns, [&](int eight, int half) {
        const int at = (n + eight) * 4 + half * 2, row = to.row + half * 8;
        const int column = to.column + (n + eight) * 8 + threadIdx.x % 4 * 2;
        float2 sum = make_float2(sums[at], sums[at + 1]);
        const auto add = [&](float factor, const void* data, int64_t offset) {
          const float2 more = unpack<T>(*reinterpret_cast<const uint32_t*>(static_cast<const T*>(data) + offset));
          sum.x = __fmaf_rn(factor, sum.x, more.x), sum.y = __fmaf_rn(factor, sum.y, more.y);
        };
        if (row < to.end && column < a.columns) {
          if (a.bias) add(1.0f, a.bias, column);
          if (a.residual) add(a.factor, a.residual, row * a.residual_stride + column);
        }
        return sum;
      });
  }
};

#endif

template <class T, class S, Ending ending>
__global__ void __launch_bounds__(S::kThreads, 1)
    linear_wide_kernel(const __grid_constant__ LinearArgs a, const __grid_constant__ Maps maps, const Grid grid) {
#if OCTAVO_WGMMA
  extern __shared__ char memory[];
  Block<T, S, ending> block(a, grid, (shared_address(memory) + S::kRing - 1) & ~(S::kRing - 1u));
  if (threadIdx.x == 0) block.init_barriers();
  __syncthreads();
  cluster_arrive(), cluster_wait();
  if (threadIdx.x >= kWarpgroup) {
    if constexpr (S::kConsumers == 2) take_registers<232>();  // with 40 all of the 168 that each thread begins with
    block.compute();
  } else {
    if constexpr (S::kConsumers == 2) give_registers<40>();
    if (threadIdx.x == 0) bring_tiles(block, maps, grid.stages);
  }
#endif
}

// [gate; up] as [eights][gate, up][8][depth].
bool describe_halves(CUtensorMap& map, const LinearArgs& a, int box) {
  const cuuint64_t row = cuuint64_t(a.weight_stride) * 2;
  return describe_tensor<4>(map, a.weight, {cuuint64_t(a.depth), 8, 2, cuuint64_t(a.columns / 16)},
                            {row, row * (a.columns / 2), row * 8}, {kDepth, 8, 2, cuuint32_t(box / 16)});
}

constexpr int over(int n, int by) { return (n + by - 1) / by; }

template <class S>
Grid grid_of(const LinearArgs& a) {
  const int rows = over(a.rows, S::kTileRows * S::kHigh), tiles = rows * S::kHigh;
  return {rows, over(a.columns, S::kColumns * S::kWide), over(a.depth, kDepth),
          over(over(a.rows, tiles), 16) * 16};
}
int pairs_at_once(const Device& device) { return device.multiprocessors / kPair; }

template <class T, class S, Ending ending>
cudaError_t launch(const LinearArgs& a, const Device& device, cudaStream_t stream) {
  Maps maps;
  constexpr int box = S::kWeightsShare;
  const bool described = ending == Ending::gated
                             ? describe_halves(maps.weights, a, box)
                             : describe_matrix(maps.weights, a.weight, a.columns, a.depth, a.weight_stride, box);
  const Grid grid = grid_of<S>(a);
  if (!described || !describe_matrix(maps.x, a.x, a.rows, a.depth, a.x_stride, grid.height / S::kWide)) return cudaErrorNotSupported;
  const Launch how{dim3(kPair * std::min(grid.pairs(), pairs_at_once(device))), S::kThreads, S::kBytes, kPair};
  return launch_after(linear_wide_kernel<T, S, ending>, how, stream, a, maps, grid);
}

// With the tile that is asked for, which is one of these.
template <class T, Ending ending, class... Shapes>
cudaError_t launch_one_of(const LinearArgs& a, const LinearTile& tile, const Device& device, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto launch_if = [&](auto shape) {
    using S = decltype(shape);
    if (tile.consumers == S::kConsumers && tile.columns == S::kColumns && tile.tall == (S::kHigh == kPair))
      error = launch<T, S, ending>(a, device, stream);
  };
  (launch_if(Shapes{}), ...);
  return error;
}

}  // namespace

cudaError_t linear_wide(const LinearArgs& a, const LinearTile& tile, const Device& device, cudaStream_t stream) {
  if (device.major != 9 || a.norm || !in_groups(a) || (a.gated && a.bias)) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.gated)
      return launch_one_of<T, Ending::gated, Shape<1, 96, false>, Shape<1, 128, false>, Shape<1, 160, false>,
                           Shape<1, 224, false>, Shape<2, 96, false>, Shape<2, 128, false>, Shape<2, 160, false>,
                           Shape<2, 224, false>, Shape<2, 224, true>, Shape<2, 256, true>>(a, tile, device, stream);
    return launch_one_of<T, Ending::plain, Shape<1, 48, false>, Shape<1, 64, false>, Shape<1, 96, false>,
                         Shape<1, 128, false>, Shape<1, 160, false>, Shape<1, 224, false>>(a, tile, device, stream);
  });
}

}  // namespace octavo
