// Products of dozens of rows or more with weights of codes, on Hopper (sm_90a): out = x weight^T, with bias and residual, or
// activation(x gate^T) * (x up^T).
//
// The weight's rows are the 64 rows of a tensor core instruction, from registers, and x's are its columns, from shared memory:
// of each stage, 64 of the depth, a warp turns the codes of a strip (codes.cuh) into numbers while the products of the stage
// before are under way. Those are rounded to the type of x, as in dequantise.cu, so that one chain of instructions adds up all
// of the depth. Pairs of blocks (pair_tiles.cuh) share their rows of x. A block goes on to its next tile, whose first stages
// arrive while the results of one are stored. Gated, a warp has eight rows of a gate's strip and the eight of the other half
// that they multiply, so that both factors of a result are one thread's.
//
// Pairs have whole tiles, or share the depth of all of them (shared_depth.cuh).
#pragma once

#include "coded/rounded.cuh"
#include "coded/strips.cuh"
#include "device/shared_depth.cuh"
#include "linear/linear.cuh"
#include "linear/linear_tiles.cuh"
#include "linear/swapped_store.cuh"

namespace octavo {
namespace {

constexpr int kStageSteps = kDepth / kStepDepth;
constexpr int kStripsEach = 4;  // of a warpgroup
constexpr int kRoom = 226 * 1024;  // of a multiprocessor's shared memory: all of it, so that no two blocks are on one
constexpr int kAhead = 4;          // residuals that are on their way

template <Codes kind, int groups, int consumers, int tokens>
struct Shape {
  static constexpr Codes kKind = kind;
  static constexpr int kConsumers = consumers, kTokens = tokens, kThreads = (consumers + 1) * kWarpgroup;
  static constexpr int kStrips = consumers * kStripsEach, kStorers = consumers * kWarpgroup;
  static constexpr int kBrickStages = brick_depth(kind) / kDepth, kBrickGroups = groups;
  static constexpr int kGroups = groups > kBrickStages ? groups / kBrickStages : 1;  // of a stage
  // Bytes of a strip in a stage.
  static constexpr int kCodeBytes = kBrickBytes / kBrickStages, kCodeWords = kCodeBytes / 4 / 32;  // the latter of a lane
  static constexpr int kScales = kGroups * kStripRows;
  // Parts of a stage: rows of x, and codes, scales and zeros, which lie behind all of those.
  static constexpr int kXBytes = tokens * kRowBytes;
  static constexpr int kScalesAt = kStrips * kCodeBytes, kZerosAt = kScalesAt + kStrips * kScales * 4;
  static constexpr int kWeightBytes = (kZerosAt + kStrips * kScales + 127) / 128 * 128;
  static constexpr int kRing = 1024, kFits = (kRoom - 2 * kRing) / (kXBytes + kWeightBytes);
  static constexpr int kStages = kFits < 16 ? kFits : 16;
  static constexpr int kWeightsAt = kRing + kStages * kXBytes;
  static constexpr int kBytes = kRoom;  // 1 KB for aligning the ring
  // Registers: with those of the warpgroup that copies all that there are.
  static constexpr int kTaken = 232, kKept = 40;
  static_assert(kStages >= 4);
};

// Tiles of a launch, in pairs along the weight's rows: of `tokens` rows of x, `strips` of the weight, or of each half of it.
struct Grid {
  int along_x, along_weight, tokens, strips;
  int shift;  // as in codes.cuh
  SharedDepth depth;
};

#if OCTAVO_WGMMA

template <class T, class S>
struct Block {
  using Weights = Rounded<T, S::kKind>;
  using Store = SwappedStore<T, CodedArgs>;
  using Sums = float[S::kTokens / 2];
  using Held = uint32_t[kStageSteps][4];
  using Parts = DepthParts<float, S::kTokens / 8, S::kStorers>;
  static constexpr int kPlain = Store::kPlain, kGated = Store::kGated;

  const CodedArgs& a;
  const Grid& grid;
  char* const memory;
  const uint32_t base;
  const int across;      // in its pair
  const int lane, warp;  // the latter of those that multiply
  const Store store;
  BufferRing ring;

  __device__ Block(const CodedArgs& args, const Grid& all, char* aligned_memory)
      : a(args), grid(all), memory(aligned_memory), base(shared_address(aligned_memory)), across(blockIdx.x % kPair),
        lane(threadIdx.x % 32), warp(uniform(threadIdx.x / 32) - 4), store{args, lane}, ring(base, S::kStages) {}

  __device__ uint32_t x_at(int stage) const { return base + S::kRing + stage * S::kXBytes; }
  __device__ int weights_at(int stage) const { return S::kWeightsAt + stage * S::kWeightBytes; }

  __device__ void init_barriers() const {
    ring.init(1, kPair * 4 * S::kConsumers);
    fence_barriers();
  }

  struct Tile {
    int token, strip;  // the latter of each half
  };
  __device__ Tile tile(int number) const {
    const int pair = grid.depth.neighbour(Parts::worker(), number);
    const TilePlace at = tile_place(pair, grid.along_x, grid.along_weight);
    return {at.along_x * grid.tokens, (at.along_weight * kPair + across) * grid.strips};
  }

  // Bytes of a stage that come into this block, the x that both blocks bring included.
  __device__ int stage_bytes() const {
    const int zeros = a.matrix.zeros ? S::kScales : 0;
    return grid.tokens * kRowBytes + S::kStrips * (S::kCodeBytes + S::kScales * 4 + zeros);
  }
  __device__ void bring_weights(const CodedMaps& maps, int number, int stage) const {
    const uint32_t barrier = ring.full + 8 * stage, shared = base + weights_at(stage);
    const Tile to = tile(number / grid.depth.stages);
    const int at = number % grid.depth.stages, brick = at / S::kBrickStages;
    const int group = S::kBrickGroups == 1 ? brick >> grid.shift : at * S::kBrickGroups / S::kBrickStages;
    copy_strips(shared, maps.codes, at * (S::kCodeBytes / 4), to.strip, barrier);
    copy_strips(shared + S::kScalesAt, maps.scales, group * kStripRows, to.strip, barrier);
    if (a.matrix.zeros) copy_strips(shared + S::kZerosAt, maps.zeros, group * kStripRows, to.strip, barrier);
  }
  __device__ void bring_x(const CodedMaps& maps, int number, int stage) const {
    const int from = across * (grid.tokens / kPair), at = number % grid.depth.stages;
    copy_rows(x_at(stage) + from * kRowBytes, maps.x, at * kDepth, tile(number / grid.depth.stages).token + from,
              ring.full + 8 * stage, uint16_t(3));
  }
  __device__ void release(int stage) const { leave_stage(ring, stage, lane); }

  // Codes of this lane in a stage, in the order of their steps.
  __device__ void read_codes(const char* stage, uint32_t (&words)[S::kCodeWords]) const {
    const auto load = [&](int strip, uint32_t(&to)[S::kCodeWords]) {
      const uint4* from = reinterpret_cast<const uint4*>(stage + strip * S::kCodeBytes) + lane;
#pragma unroll
      for (int i = 0; i < S::kCodeWords / 4; ++i) {
        const uint4 raw = from[i * 32];
        to[4 * i] = raw.x, to[4 * i + 1] = raw.y, to[4 * i + 2] = raw.z, to[4 * i + 3] = raw.w;
      }
    };
    if (!a.gated) return load(warp, words);
    uint32_t gates[S::kCodeWords], ups[S::kCodeWords];
    load(warp / 2, gates), load(S::kStrips / 2 + warp / 2, ups);
#pragma unroll
    for (int i = 0; i < S::kCodeWords; ++i) words[i] = Weights::merge(gates[i], ups[i], warp % 2);
  }

  // The weight's part of the stage that comes next.
  __device__ void prepare(Held& held) const {
    ring.await_full();
    const char* stage = memory + weights_at(ring.stage);
    // Where a thread's two rows of the tile are, of all scales in a stage.
    const int low = a.gated ? warp / 2 * S::kScales + warp % 2 * 8 + lane / 4 : warp * S::kScales + lane / 4;
    const int high = a.gated ? low + S::kStrips / 2 * S::kScales : low + 8;
    const float* scales = reinterpret_cast<const float*>(stage + S::kScalesAt);
    const uint8_t* zeros = reinterpret_cast<const uint8_t*>(stage + S::kZerosAt);
    const bool has_zeros = !is_float(S::kKind) && a.matrix.zeros != nullptr;
    uint32_t words[S::kCodeWords];
    read_codes(stage, words);
    using Row = typename Weights::Row;
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) {
      const int group = g * kStripRows;
      const Row low_row(scales[low + group], has_zeros ? zeros[low + group] : Row::zero());
      const Row high_row(scales[high + group], has_zeros ? zeros[high + group] : Row::zero());
#pragma unroll
      for (int k = g * kStageSteps / S::kGroups; k < (g + 1) * kStageSteps / S::kGroups; ++k)
        Weights::step(words + k * step_words(S::kKind), low_row, high_row, held[k]);
    }
  }
  // Begins the products of a stage, and gives its number.
  __device__ int multiply(Held& held, Sums& sums) {
    const uint32_t x = uniform(x_at(ring.stage) / 16);
#pragma unroll
    for (auto& registers : held)
#pragma unroll
      for (uint32_t& word : registers) hold(word);
    products_begin();
#pragma unroll
    for (int k = 0; k < kStageSteps; ++k) wgmma_held(T{}, sums, held[k], operand<128>(x + 2 * k), true);
    products_commit();
    const int stage = ring.stage;
    ring.advance();
    return stage;
  }
  // A lane has sums of rows lane / 4 and + 8 of its warp with rows n * 8 + lane % 4 * 2 + {0, 1} of x: numbers 4 n + {0, 1} and
  // + {2, 3}. `meanwhile` is called while the last products are under way.
  template <class F>
  __device__ void add_up(Sums& sums, int count, F&& meanwhile) {
    clear(sums);
    Held even, odd;
    prepare(even);
    int last = multiply(even, sums);
    products_wait<1>();  // wherever branches meet as many are under way: otherwise ptxas lets them follow each other one by one
    const auto next = [&](Held& held) {
      prepare(held);
      const int before = last;
      last = multiply(held, sums);
      products_wait<1>();
      release(before);
    };
    for (int i = 1; i < count; i += 2) {
      next(odd);
      if (i + 1 == count) break;
      next(even);
    }
    meanwhile();
    products_wait<0>(sums);
    release(last);
  }

  __device__ SwappedPlace place(const Tile& to) const {
    const int half = a.columns / 2, strip = a.gated ? to.strip + warp / 2 : to.strip + warp;
    SwappedPlace p{to.token, min(a.rows, to.token + grid.tokens), strip * kStripRows + (a.gated ? warp % 2 * 8 : 0), {}};
    if (a.bias) {
      const int low = p.column + lane / 4, high = a.gated ? low + half : low + 8;
      p.biases[0] = store.bias(low), p.biases[1] = store.bias(high);
    }
    return p;
  }

  // All of the depth is this block's.
  __device__ void finish(const Tile& to) {
    const SwappedPlace p = place(to);
    Sums sums;
    if (a.gated) {
      add_up(sums, grid.depth.stages, [] {});
      in_parts<kGated>(sums, [&](int n, const float(&own)[4 * kGated]) {
        if (n * 8 < grid.tokens) store.gated(p, n, own);
      });
      return;
    }
    uint4 residuals[kAhead];  // what is stored is loaded by the same thread: it may go where they are
    add_up(sums, grid.depth.stages, [&] {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) residuals[i] = store.residual(p, i * kPlain);
    });
    in_parts<kPlain>(sums, [&](int n, const float(&own)[4 * kPlain]) {
      const uint4 raw = residuals[n / kPlain % kAhead];
      residuals[n / kPlain % kAhead] = store.residual(p, n + kAhead * kPlain);
      if (n * 8 < grid.tokens) store.plain(p, n, own, raw);
    });
  }
  __device__ static void clear(Sums& sums) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
  }
  // A part of it is.
  __device__ void finish_part(const Parts& parts, int number, int count) {
    Sums sums;
    add_up(sums, count, [] {});
    parts.hand_in(number, [&](int n) {
      return typename Parts::Four{sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3]};
    });
  }
  __device__ void finish_shared(const Parts& parts, int number) const {
    const SwappedPlace p = place(tile(number));
    if (a.gated) {
      parts.template share<kGated>(number, [&](int n, const auto& sums) { store.gated(p, n, sums); });
    } else {
      parts.template share<kPlain>(number, [&](int n, const auto& sums) { store.plain(p, n, sums, store.residual(p, n)); });
    }
  }

  __device__ void compute() {
    const Parts parts{grid.depth, a.meetings, grid.tokens / 8};
    // Each lags by a stage, and so multiplies on while the one before stores.
    const int consumer = warp / 4, count = grid.depth.begin(Parts::worker() + 1) - grid.depth.begin(Parts::worker());
    if (consumer > 0) barrier_wait(ring.full + 8 * min(consumer, count - 1), 0);
    wait_for_previous_kernel();  // it may have written what is added, or read what is handed in
    parts.go_through([&](int number) { finish(tile(number)); },
                     [&](int number, int stages) { finish_part(parts, number, stages); },
                     [&](int number) { finish_shared(parts, number); });
  }
};

#endif

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    coded_wide_kernel(const __grid_constant__ CodedArgs a, const __grid_constant__ CodedMaps maps,
                      const __grid_constant__ Grid grid) {
#if OCTAVO_WGMMA
  extern __shared__ char memory[];
  Block<T, S> block(a, grid, memory + (-shared_address(memory) & (S::kRing - 1)));
  if (threadIdx.x == 0) block.init_barriers();
  cluster_meet();
  if (threadIdx.x >= kWarpgroup) {
    take_registers<S::kTaken>();
    block.compute();
  } else {
    give_registers<S::kKept>();
    if (threadIdx.x == 0) bring_stages(block, maps, grid.depth);
  }
#endif
}

template <class T, class S>
cudaError_t launch_shape(const CodedArgs& a, int shares, const CodedSizes& sizes, const Device& device, cudaStream_t stream) {
  const int halves = a.gated ? 2 : 1, strips = S::kStrips / halves, along_x = units(a.rows, S::kTokens);
  Grid grid{along_x, units(sizes.strips / halves, strips * kPair), units(units(a.rows, along_x), 16) * 16, strips,
            sizes.grouping.shift, {}};
  grid.depth = share_depth(along_x * grid.along_weight, units(a.depth, kDepth), shares, device.multiprocessors,
                           a.meetings.parts && a.meetings.arrivals);
  if (grid.depth.workers == 0) return cudaErrorInvalidValue;
  CodedMaps maps{};
  if (!describe_matrix(maps.x, a.x, a.rows, a.depth, a.x_stride, grid.tokens / kPair) ||
      !describe_weight(maps, a.matrix, sizes, a.gated, S::kStrips, S::kCodeBytes, S::kScales))
    return cudaErrorNotSupported;
  const Launch how{dim3(kPair * grid.depth.workers), S::kThreads, S::kBytes, kPair};
  return launch_after(coded_wide_kernel<T, S>, how, stream, a, maps, grid);
}

// With codes of this kind, in tiles of the size that is asked for, which is one of these.
template <Codes kind, int groups>
cudaError_t launch_wide(const CodedArgs& a, const CodedWideTile& tile, const CodedSizes& sizes, const Device& device,
                        cudaStream_t stream) {
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto is = [&](int consumers, int tokens) { return tile.consumers == consumers && tile.tokens == tokens; };
    if (is(2, 64)) return launch_shape<T, Shape<kind, groups, 2, 64>>(a, tile.shares, sizes, device, stream);
    if (is(2, 128)) return launch_shape<T, Shape<kind, groups, 2, 128>>(a, tile.shares, sizes, device, stream);
    if (is(2, 192)) return launch_shape<T, Shape<kind, groups, 2, 192>>(a, tile.shares, sizes, device, stream);
    if (is(2, 208)) return launch_shape<T, Shape<kind, groups, 2, 208>>(a, tile.shares, sizes, device, stream);
    if (is(2, 256)) return launch_shape<T, Shape<kind, groups, 2, 256>>(a, tile.shares, sizes, device, stream);
    return cudaErrorInvalidValue;
  });
}

}  // namespace
}  // namespace octavo
