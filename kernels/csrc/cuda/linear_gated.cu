// The first half of a gated MLP for dozens of rows or more, on Hopper (sm_90a): out = activation(x gate^T) * (x up^T).
//
// As in linear_uniform.cu a warp copies and warpgroups multiply 64 rows of x each. Blocks come in pairs, which share their
// weights or their rows of x: each copies half of those and the copy engine hands it to both. A block goes on to its next tile,
// whose first stages arrive while the results of one are stored. Gate and up rows lie in shared memory by turns, eight of
// each, so that both factors of a result are one thread's.
#include <iterator>

#include "buffer_ring.cuh"
#include "linear.cuh"
#include "linear_tiles.cuh"

namespace octavo {
namespace {

constexpr int kPair = 2;  // blocks of a cluster
constexpr int kBand = 8;  // pairs of tiles side by side along the rows: the L2 keeps their x

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
  static constexpr int kXShare = kTileRows / kWide, kWeightsShare = columns / kHigh;  // rows that a block copies
  static_assert(kWeightsShare % 16 == 0 && columns % 32 == 0);
};

// Pairs of tiles of a launch, and the stages of one.
struct Grid {
  int rows, columns, stages;
  __host__ __device__ int pairs() const { return rows * columns; }
};

#if OCTAVO_WGMMA

// Copies to the same place in several blocks of the cluster, whose barriers there hear of it.
__device__ inline void copy_x(uint32_t shared, const CUtensorMap& map, int depth, int row, uint32_t barrier,
                              uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(shared),
      "l"(&map), "r"(depth), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}
__device__ inline void copy_weights(uint32_t shared, const CUtensorMap& map, int depth, int eights, uint32_t barrier,
                                    uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3, %3, %4}], [%5], %6;" ::"r"(shared),
      "l"(&map), "r"(depth), "r"(0), "r"(eights), "r"(barrier), "h"(blocks)
      : "memory");
}
// Of products that have ended, which need no fence: one for the cluster takes as long as a stage.
__device__ inline void arrive_at(uint32_t barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// Each of four threads has a word of four units, at its place: gives it the unit of its number.
__device__ inline void transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool high = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t got = __shfl_xor_sync(~0u, high ? words[i] : words[i | step], step);
      (high ? words[i] : words[i | step]) = got;
    }
  }
}

template <class T, class S>
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
    for (int i = 0; i < S::kStages; ++i)
      barrier_init(ring.full + 8 * i, 1), barrier_init(ring.empty + 8 * i, kPair * 4 * S::kConsumers);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_bulk();
  }

  struct Tile {
    int row, column;
  };
  __device__ Tile tile(int pair) const {
    const int of_band = kBand * grid.columns, band = pair / of_band, in_band = pair % of_band;
    const int height = min(kBand, grid.rows - band * kBand);
    return {((band * kBand + in_band % height) * S::kHigh + down) * S::kTileRows,
            (in_band / height * S::kWide + across) * S::kColumns};
  }

  // This block's share of a stage.
  __device__ void bring_x(const CUtensorMap& x, const Tile& to, int at, int stage) const {
    const int from = across * S::kXShare;
    copy_x(x_at(stage) + from * kRowBytes, x, at * kDepth, to.row + from, ring.full + 8 * stage, with_x());
  }
  __device__ void bring_weights(const CUtensorMap& weights, const Tile& to, int at, int stage) const {
    const int from = down * S::kWeightsShare;
    copy_weights(weights_at(stage) + from * kRowBytes, weights, at * kDepth, (to.column + from) / 16, ring.full + 8 * stage,
                 with_weights());
  }
  // The first weights are on their way before the previous kernel has ended.
  __device__ void load(const CUtensorMap& x, const CUtensorMap& weights) {
    const int early = min(S::kStages, grid.stages);
    const Tile first = tile(first_pair());
    for (int i = 0; i < early; ++i) {
      barrier_expect(ring.full + 8 * i, S::kStageBytes);
      bring_weights(weights, first, i, i);
    }
    wait_for_previous_kernel();
    launch_next_kernel();
    for (int i = 0; i < early; ++i) bring_x(x, first, i, i), ring.advance();
    for (int pair = first_pair(), i = early; pair < grid.pairs(); pair += pairs_apart(), i = 0) {
      const Tile to = tile(pair);
      for (; i < grid.stages; ++i) {
        barrier_wait(ring.empty_now(), ring.parity ^ 1);
        barrier_expect(ring.full_now(), S::kStageBytes);
        bring_weights(weights, to, i, ring.stage), bring_x(x, to, i, ring.stage);
        ring.advance();
      }
    }
  }

  // Both blocks copy into both blocks' stages.
  __device__ void release(int stage) const {
    const int lane = threadIdx.x % 32;
    if (lane < kPair) arrive_at(ring.empty + 8 * stage, lane);
  }
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
        barrier_wait(ring.full_now(), ring.parity);
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
      const int row = of.row + consumer * kRows + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
      switch (a.activation) {
        case Activation::silu: store<Activation::silu>(row, of.column, sums); break;
        case Activation::gelu: store<Activation::gelu>(row, of.column, sums); break;
        default: store<Activation::gelu_tanh>(row, of.column, sums);
      }
    }
  }

  // Rounded as if the product were stored. Four threads have two rows of sixteen results at a time, and store eight each.
  template <Activation kind>
  __device__ void store(int row, int column, const float (&sums)[S::kColumns / 2]) const {
    const auto rounded = [&](int at) { return unpack<T>(pack<T>(sums[at], sums[at + 1])); };
    const int unit = threadIdx.x % 4, to_row = row + unit % 2 * 8;
#pragma unroll
    for (int n = 0; n < S::kColumns / 16; n += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (n + i / 2) * 8 + i % 2 * 2;
        const float2 gate = rounded(at), up = rounded(at + 4);
        words[i] = pack<T>(activate<kind>(gate.x) * up.x, activate<kind>(gate.y) * up.y);
      }
      transpose_quad(words);
      const int to = column / 2 + (n + unit / 2) * 8;
      T* out = static_cast<T*>(a.out) + to_row * a.out_stride + to;
      if (to_row < a.rows && to < a.columns / 2) *reinterpret_cast<uint4*>(out) = {words[0], words[1], words[2], words[3]};
    }
  }
};

#endif

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    linear_gated_kernel(const __grid_constant__ LinearArgs a, const __grid_constant__ CUtensorMap x,
                        const __grid_constant__ CUtensorMap weights, const Grid grid) {
#if OCTAVO_WGMMA
  extern __shared__ char memory[];
  Block<T, S> block(a, grid, (shared_address(memory) + S::kRing - 1) & ~(S::kRing - 1u));
  if (threadIdx.x == 0) block.init_barriers();
  __syncthreads();
  cluster_arrive(), cluster_wait();
  if (threadIdx.x >= kWarpgroup) {
    if constexpr (S::kConsumers == 2) take_registers<232>();  // with 40 all of the 168 that each thread begins with
    block.compute();
  } else {
    if constexpr (S::kConsumers == 2) give_registers<40>();
    if (threadIdx.x == 0) block.load(x, weights);
    __syncwarp();
  }
  cluster_arrive(), cluster_wait();  // the other block may have copied to this one, or told its barriers
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
  return {over(a.rows, S::kTileRows * S::kHigh), over(a.columns, S::kColumns * S::kWide), over(a.depth, kDepth)};
}
int pairs_at_once(const Device& device) { return device.multiprocessors / kPair; }

template <class T, class S>
cudaError_t launch(const LinearArgs& a, const Device& device, cudaStream_t stream) {
  CUtensorMap x, weights;
  if (!describe_matrix(x, a.x, a.rows, a.depth, a.x_stride, S::kXShare) || !describe_halves(weights, a, S::kWeightsShare))
    return cudaErrorNotSupported;
  const Grid grid = grid_of<S>(a);
  return launch_clusters(linear_gated_kernel<T, S>, kPair, kPair * std::min(grid.pairs(), pairs_at_once(device)), S::kThreads,
                         S::kBytes, 0, stream, a, x, weights, grid);
}

// Tiles of one shape: results they have room for until the last round of pairs ends, and for about how many clocks they keep
// the shared memory of a multiprocessor busy, which moves 128 bytes a clock. Into it go x and weights, out of it each consumer
// reads its x and all weights: of 256 columns that takes as long as the products themselves, of fewer longer. Storing a
// column's results takes about twelve clocks.
struct Choice {
  double room, clocks;
  cudaError_t (*launch)(const LinearArgs&, const Device&, cudaStream_t);
};
template <class T, class S>
Choice choice(const LinearArgs& a, const Device& device) {
  const Grid grid = grid_of<S>(a);
  const double rounds = over(grid.pairs(), pairs_at_once(device));
  const double stage = 2 * S::kTileRows + (S::kConsumers + 1) * S::kColumns;
  return {rounds * pairs_at_once(device) * kPair * S::kTileRows * S::kColumns,
          rounds * (grid.stages * stage + 12 * S::kColumns), launch<T, S>};
}

// Where tiles were measured to be ahead of cuBLAS and the activation after it on an H200: up to 128 rows, and of more where
// next to nothing of the room is empty, or where all takes so few microseconds that a launch of two counts.
bool worth(const LinearArgs& a, const Choice& best) {
  return a.rows <= 128 || double(a.rows) * a.columns >= 0.95 * best.room || best.clocks <= 12000;
}

// With the shape that is done first; of equals the first one.
template <class T, class... Shapes>
cudaError_t launch_best(const LinearArgs& a, const Device& device, cudaStream_t stream) {
  const Choice choices[] = {choice<T, Shapes>(a, device)...};
  const auto sooner = [](const Choice& one, const Choice& other) { return one.clocks < other.clocks; };
  const Choice best = *std::min_element(std::begin(choices), std::end(choices), sooner);
  return worth(a, best) ? best.launch(a, device, stream) : cudaErrorNotSupported;
}

}  // namespace

cudaError_t linear_gated(const LinearArgs& a, const Device& device, cudaStream_t stream) {
  if (device.major != 9 || a.bias) return cudaErrorNotSupported;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.rows <= kRows)
      return launch_best<T, Shape<1, 224, false>, Shape<1, 160, false>, Shape<1, 128, false>, Shape<1, 96, false>>(
          a, device, stream);
    return launch_best<T, Shape<2, 256, true>, Shape<2, 224, true>, Shape<2, 224, false>, Shape<2, 160, false>,
                       Shape<2, 128, false>, Shape<2, 96, false>>(a, device, stream);
  });
}

}  // namespace octavo
