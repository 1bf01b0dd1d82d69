// Products of experts with many rows, on Hopper (sm_90a): tiles of 128 rows that one expert has, by wgmma. Of the first product a
// tile has 64 or 128 columns of gate and the same of up, of the second, and of a first one without a gate, twice as many.
//
// One warpgroup copies: the weights as boxes, rows of x one by one, as the lists say. Two multiply, 64 rows each; tiles with no more
// rows they have in turn, so that one multiplies while the other stores. Blocks go from tile to tile; how many there are the device
// alone knows. Every element is one chain of products over the whole depth, so that a row's bits do not depend on how many rows there
// are, or where in a tile it lies.
#include <algorithm>

#include "device/buffer_ring.cuh"
#include "experts/activation.cuh"
#include "experts/checks.h"
#include "linear/linear_tiles.cuh"

namespace octavo {
namespace {

constexpr int kConsumers = 2, kTileRows = kConsumers * kRows, kChains = 2;
constexpr int kManyThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kXBytes = kTileRows * kRowBytes;
// In shared memory: barriers of the ring and of consumers, tiles in front of each expert, its first place, the ring.
constexpr int kEnded = 128, kFirstTiles = 256, kStarts = kFirstTiles + (kMostExperts + 1) * 4, kRingAt = 5120;
static_assert(kStarts + (kMostExperts + 1) * 4 <= kRingAt);

// Columns of a chain, as many as an instruction has; a tile has two chains. An element's bits are the same in both.
template <int columns>
struct Shape {
  static constexpr int kChain = columns, kChainBytes = kChain * kRowBytes, kStageBytes = kXBytes + kChains * kChainBytes;
  static constexpr int kStages = 192 * 1024 / kStageBytes;
  static constexpr int kBytes = kRingAt + kStages * kStageBytes + 1024;  // the last for aligning the ring
  static_assert(16 * kStages <= kEnded);
};
using Wide = Shape<128>;
using Narrow = Shape<64>;  // of steps that wait for weights: the last tiles end sooner
constexpr int kNarrowRows = 16;  // of an expert, on average, up to which they do

enum class End { gated, plain };  // the latter of the second product, and of the first one without a gate

struct ManyArgs {
  ExpertMatrix matrix;
  const void* x;
  int64_t x_stride;
  const int32_t *sources, *starts;  // sources null: the second product, whose rows of x lie by place
  int activation;
  float clamped;
  void* out;
  int64_t out_stride;
};

#if OCTAVO_WGMMA

constexpr int kInner = 16;  // of the depth, what an instruction multiplies
constexpr int kUnits = kRowBytes / 16;
constexpr int kWarps = kWarpgroup / 32;
constexpr int kAtOnce = 4;  // loads of a lane
constexpr int kLag = 2;  // stages of x under way, behind which a thread says that its copies are there

struct Tile {
  int expert, begin, rows, column;  // the first place, how many there are in the tile, the first of the output's columns
};

template <class T, class S, End end>
struct Block {
  static constexpr int kChain = S::kChain, kChainBytes = S::kChainBytes, kStages = S::kStages;
  const ManyArgs& a;
  char* const shared;
  const uint32_t base, ring_base;
  const int width;  // columns of the output
  BufferRing ring;

  __device__ Block(const ManyArgs& args, char* memory)
      : a(args), shared(memory), base(shared_address(memory)), ring_base((base + kRingAt + 1023) & ~1023u),
        width(end == End::gated ? args.matrix.columns / 2 : args.matrix.columns), ring(base, kStages) {}

  __device__ static constexpr int columns() { return end == End::gated ? kChain : kChains * kChain; }
  __device__ int* first_tiles() const { return reinterpret_cast<int*>(shared + kFirstTiles); }
  __device__ int* starts() const { return reinterpret_cast<int*>(shared + kStarts); }
  __device__ uint32_t x_at(int stage) const { return ring_base + stage * S::kStageBytes; }
  __device__ uint32_t weights_at(int stage) const { return x_at(stage) + kXBytes; }
  // Says that a consumer has multiplied a tile that it has alone.
  __device__ uint32_t ended(int consumer) const { return base + kEnded + 8 * consumer; }
  __device__ int along() const { return (width + columns() - 1) / columns(); }
  __device__ int stages() const { return (a.matrix.depth + kDepth - 1) / kDepth; }

  __device__ void init_barriers() const {
    ring.init(1 + kWarpgroup, kConsumers * kWarps);
    for (int i = 0; i < kConsumers; ++i) barrier_init(ended(i), kWarps);
    fence_bulk();
  }
  // One warp: tiles of rows in front of each expert.
  __device__ void count_tiles() const {
    const int experts = a.matrix.experts;
    int before = 0;
    for (int first = 0; first < experts; first += 32 * kAtOnce) {
      int start[kAtOnce], next[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int e = min(first + i * 32 + int(threadIdx.x), experts - 1);
        start[i] = __ldcg(a.starts + e), next[i] = __ldcg(a.starts + e + 1);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int e = first + i * 32 + threadIdx.x, own = e < experts ? (next[i] - start[i] + kTileRows - 1) / kTileRows : 0;
        int sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const int other = __shfl_up_sync(kAll, sum, step);
          if (int(threadIdx.x) >= step) sum += other;
        }
        if (e < experts) first_tiles()[e] = before + sum - own, starts()[e] = start[i], starts()[e + 1] = next[i];
        before += __shfl_sync(kAll, sum, 31);
      }
    }
    if (threadIdx.x == 0) first_tiles()[experts] = before;
  }
  __device__ int tiles() const { return first_tiles()[a.matrix.experts] * along(); }
  // Of an expert's tiles those with the same weights follow each other.
  __device__ Tile tile(int number) const {
    int low = 0, high = a.matrix.experts - 1;  // the last expert whose first tile is not behind this one
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_tiles()[middle] * along() <= number) low = middle;
      else high = middle - 1;
    }
    const int first = first_tiles()[low], down = first_tiles()[low + 1] - first, of_expert = number - first * along();
    const int begin = starts()[low] + of_expert % down * kTileRows;
    return {low, begin, min(kTileRows, starts()[low + 1] - begin), of_expert / down * columns()};
  }

  __device__ void bring_weights(const CUtensorMap& map, const Tile& to, int at, int stage) const {
    const int first = to.expert * a.matrix.columns + to.column;
#pragma unroll
    for (int c = 0; c < kChains; ++c)
      copy_rows(weights_at(stage) + c * kChainBytes, map, at * kDepth, first + c * (end == End::gated ? width : kChain),
                ring.full + 8 * stage);
  }

  // All threads of the warpgroup that copies. Eight of them copy a row's 128 bytes. Of the second product the first weights are on
  // their way before the previous kernel has ended: the lists are older than that.
  __device__ void copy(const CUtensorMap& map) {
    int early = 0;
    if (end == End::plain && !a.sources) {
      if (int(blockIdx.x) < tiles()) early = min(kStages, stages());
      for (int i = 0; i < early && threadIdx.x == 0; ++i) {
        barrier_expect(ring.full + 8 * i, kChains * kChainBytes);
        bring_weights(map, tile(blockIdx.x), i, i);
      }
      wait_for_previous_kernel();
      launch_next_kernel();
    }
    constexpr int kOwnRows = kTileRows * kUnits / kWarpgroup, kApart = kWarpgroup / kUnits;
    const int unit = threadIdx.x % kUnits, first_row = threadIdx.x / kUnits;
    BufferRing there = ring;
    int ahead = 0;
    const auto tell = [&] {
      fence_bulk();
      barrier_arrive_once(there.full_now());
      there.advance();
    };
    int next[kOwnRows];  // rows of x of the tile behind
    const auto look = [&](const Tile& to) {
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const int row = first_row + i * kApart, place = to.begin + row;
        next[i] = row >= to.rows ? -1 : a.sources ? __ldcg(a.sources + place) : place;
      }
    };
    Tile behind{};
    if (int(blockIdx.x) < tiles()) look(behind = tile(blockIdx.x));
    for (int number = blockIdx.x; number < tiles(); number += gridDim.x) {
      const Tile to = behind;
      const T* from[kOwnRows];
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) from[i] = next[i] < 0 ? nullptr : static_cast<const T*>(a.x) + next[i] * a.x_stride + unit * 8;
      if (number + int(gridDim.x) < tiles()) look(behind = tile(number + gridDim.x));
      for (int at = 0; at < stages(); ++at) {
        ring.await_empty();
        if (threadIdx.x == 0 && early-- <= 0) {
          barrier_expect(ring.full_now(), kChains * kChainBytes);
          bring_weights(map, to, at, ring.stage);
        }
        const bool is_inside = at * kDepth + unit * 8 < a.matrix.depth;
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
          const int row = first_row + i * kApart;
          if (from[i])
            copy16(x_at(ring.stage) + row * kRowBytes + (unit ^ row % 8) * 16, is_inside ? from[i] + at * kDepth : from[i], is_inside);
        }
        commit_copies();
        ring.advance();
        if (++ahead > kLag) {
          wait_copies<kLag>();
          tell(), --ahead;
        }
      }
    }
    wait_copies<0>();
    while (ahead-- > 0) tell();
  }

  // Sums of a consumer's rows of a tile, the `half`-th of it, whose stages so many arrivals of a warp let go.
  __device__ void multiply(int half, int arrivals, float (&sums)[kChains][kChain / 2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int i = 0; i < kChain / 2; ++i) sums[c][i] = 0.0f;
    int previous = 0;
    for (int at = 0; at < stages(); ++at) {
      ring.await_full();
      const uint32_t mine = uniform(x_at(ring.stage) + half * kRows * kRowBytes), theirs = uniform(weights_at(ring.stage));
      products_begin();
#pragma unroll
      for (int k = 0; k < kDepth / kInner; ++k)
#pragma unroll
        for (int c = 0; c < kChains; ++c)
          wgmma(T{}, sums[c], operand<128>(mine / 16 + k * kInner / 8),
                operand<128>((theirs + c * kChainBytes) / 16 + k * kInner / 8));
      products_commit();
      if (at > 0) {
        products_wait<1>();
        if (lane < arrivals) barrier_arrive_once(ring.empty + 8 * previous);
      }
      previous = ring.stage;
      ring.advance();
    }
    products_wait<0>();
    if (lane < arrivals) barrier_arrive_once(ring.empty + 8 * previous);
#pragma unroll
    for (int c = 0; c < kChains; ++c) pin(sums[c]);
  }

  // A consumer passes over stages of a tile that the other one has alone, and waits for the next ones when those have come: a barrier
  // tells apart two phases that follow each other, and no more.
  __device__ void compute() {
    const int consumer = uniform(threadIdx.x / kWarpgroup) - 1;
    int alone = 0;  // tiles that one consumer has
    uint32_t parity = 0;
    bool passed = false;
    for (int number = blockIdx.x; number < tiles(); number += gridDim.x) {
      const Tile to = tile(number);
      const bool together = to.rows > kRows;
      if (!together && alone++ % kConsumers != consumer) {
        ring.skip(stages()), passed = true;
        continue;
      }
      if (passed) barrier_wait(ended(1 - consumer), parity), parity ^= 1, passed = false;
      const int half = together ? consumer : 0;
      float sums[kChains][kChain / 2];
      multiply(half, together ? 1 : kConsumers, sums);
      if (!together && threadIdx.x % 32 == 0) barrier_arrive_once(ended(consumer));
      store_tile(to, half * kRows + threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4, sums);
    }
  }

  // `row`: the first of a thread's rows of the tile.
  __device__ void store_tile(const Tile& to, int row, const float (&sums)[kChains][kChain / 2]) const {
#pragma unroll
    for (int n = 0; n < kChain / 8; n += 2) {
      if constexpr (end == End::gated) {
        store(to, row, to.column + n * 8, [&](int eight, int half, int column) {
          const int at = (n + eight) * 4 + half * 2;
          const auto one = [&](int i) {
            return to_float(gated<T>(sums[0][at + i] + bias(to, column + i), sums[1][at + i] + bias(to, width + column + i),
                                     a.activation, a.clamped));
          };
          return pack<T>(one(0), one(1));
        });
      } else {
#pragma unroll
        for (int c = 0; c < kChains; ++c)
          store(to, row, to.column + c * kChain + n * 8, [&](int eight, int half, int column) {
            const int at = (n + eight) * 4 + half * 2;
            const float low = sums[c][at] + bias(to, column), high = sums[c][at + 1] + bias(to, column + 1);
            if (a.activation != kSquaredRelu) return pack<T>(low, high);
            return pack<T>(to_float(squared_relu<T>(low)), to_float(squared_relu<T>(high)));
          });
      }
    }
  }

  __device__ float bias(const Tile& to, int column) const {
    if (!a.matrix.bias || column >= a.matrix.columns) return 0.0f;
    return to_float(static_cast<const T*>(a.matrix.bias)[int64_t(to.expert) * a.matrix.columns + column]);
  }
  // Two eights of columns, from `first` on, of a thread's two rows. `pair` gives those of the eight and half that are its own; four
  // threads then have whole eights.
  template <class Pair>
  __device__ void store(const Tile& to, int row, int first, Pair&& pair) const {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = pair(i / 2, i % 2, first + i / 2 * 8 + threadIdx.x % 4 * 2);
    transpose_quad(words);
    const int unit = threadIdx.x % 4, own = row + unit % 2 * 8, column = first + unit / 2 * 8;
    if (own < to.rows && column < width)
      store_words(static_cast<T*>(a.out) + (to.begin + own) * a.out_stride + column, words[0], words[1], words[2], words[3]);
  }
};

#endif

template <class T, class S, End end>
__global__ void __launch_bounds__(kManyThreads, 1)
    experts_many_kernel(const __grid_constant__ ManyArgs a, const __grid_constant__ CUtensorMap map) {
#if OCTAVO_WGMMA
  extern __shared__ __align__(128) char memory[];
  Block<T, S, end> block(a, memory);
  if (threadIdx.x == 0) block.init_barriers();
  if (end == End::gated || a.sources) {
    wait_for_previous_kernel();
    launch_next_kernel();
  }
  if (threadIdx.x < 32) block.count_tiles();
  __syncthreads();
  if (threadIdx.x >= kWarpgroup) {
    take_registers<216>();
    block.compute();
  } else {
    give_registers<72>();
    block.copy(map);
  }
#endif
}

template <class T, class S, End end>
cudaError_t launch(const ManyArgs& a, int width, int64_t pairs, const Device& device, cudaStream_t stream) {
  const ExpertMatrix& m = a.matrix;
  CUtensorMap map;
  if (!describe_matrix(map, m.weight, int64_t(m.experts) * m.columns, m.depth, m.stride, S::kChain)) return cudaErrorInvalidValue;
  const int columns = end == End::gated ? S::kChain : kChains * S::kChain;
  const int64_t tall = std::min<int64_t>(m.experts, pairs) + pairs / kTileRows, most = tall * ((width + columns - 1) / columns);
  const Launch how{dim3(unsigned(std::min<int64_t>(device.multiprocessors, most))), kManyThreads, S::kBytes};
  return launch_after(experts_many_kernel<T, S, end>, how, stream, a, map);
}

template <End end>
cudaError_t launch(Dtype dtype, const ManyArgs& a, int rows, int chosen, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const int width = end == End::gated ? a.matrix.columns / 2 : a.matrix.columns;
  if (device.major != 9 || !takes(a.matrix, chosen, a.x, a.x_stride) || width % 8 || !in_units(a.out, a.out_stride))
    return cudaErrorInvalidValue;
  const int64_t pairs = int64_t(rows) * chosen;
  return with_half(dtype, [&](auto tag) {
    using T = decltype(tag);
    if (pairs <= int64_t(kNarrowRows) * a.matrix.experts) return launch<T, Narrow, end>(a, width, pairs, device, stream);
    return launch<T, Wide, end>(a, width, pairs, device, stream);
  });
}

}  // namespace

cudaError_t experts_up_many(const ExpertsUpArgs& a, cudaStream_t stream) {
  if (!takes_activation(a.activation)) return cudaErrorInvalidValue;
  const ManyArgs many{a.matrix, a.x, a.x_stride, a.sources, a.starts, a.activation, a.clamped, a.out, a.out_stride};
  if (!is_gate(a.activation)) return launch<End::plain>(a.dtype, many, a.rows, a.chosen, stream);
  return a.matrix.columns % 2 ? cudaErrorInvalidValue : launch<End::gated>(a.dtype, many, a.rows, a.chosen, stream);
}

cudaError_t experts_down_many(const ExpertsDownArgs& a, cudaStream_t stream) {
  const ManyArgs many{a.matrix, a.x, a.x_stride, nullptr, a.lists.starts, 0, 0.0f, a.parts, a.parts_stride};
  return launch<End::plain>(a.dtype, many, a.rows, a.chosen, stream);
}

}  // namespace octavo
