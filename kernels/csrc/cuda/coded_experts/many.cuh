// Products of experts of codes with many rows, on Hopper (sm_90a), by wgmma.
//
// As in coded/coded_wide.cuh the weight's rows are the 64 rows of an instruction, from registers: of each part of a stage, 64 of the
// depth, a warp turns the codes of a strip into numbers, rounded to the type of x, while the products of the part before are under
// way. Rows of x that one expert has are its columns, up to `tokens` a tile, so that an expert with a few rows costs no more than
// they do. Gated, a warp has eight rows of a gate's strip and the eight of the other half that they multiply.
//
// As in experts/many.cu one warpgroup copies: codes, scales and zeros as boxes of strips, rows of x one by one, as the lists say;
// blocks go from tile to tile, and how many there are the device alone knows. Every element is one chain of products over the whole
// depth, so that a row's bits do not depend on how many rows there are, or where in a tile it lies.
#pragma once

#include <algorithm>

#include "coded_experts/checks.h"
#include "coded_experts/paired.cuh"
#include "device/buffer_ring.cuh"
#include "device/cluster.cuh"
#include "experts/activation.cuh"
#include "linear/linear_tiles.cuh"

namespace octavo {
namespace {

constexpr int kConsumers = 2, kManyThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kParts = 2, kStageDepth = kParts * kDepth, kPartSteps = kDepth / kStepDepth;  // of a stage
constexpr int kTileStrips = kConsumers * 4;
constexpr int kCodeUnit = 8;  // bytes of an element, of which a box has up to 256 in a row
constexpr int kManyRoom = 225 * 1024;  // of a multiprocessor's shared memory: all of it, but for what two blocks reserve
// In shared memory: barriers, tiles in front of each expert, its first place, the ring.
constexpr int kFirstTiles = 256, kStarts = kFirstTiles + (kMostExperts + 1) * 4, kRingAt = 5120;
static_assert(kStarts + (kMostExperts + 1) * 4 <= kRingAt);

enum class End { gated, plain };  // the latter of the second product, and of the first one without a gate

template <Codes kind, int groups, int tokens, class Scales>
struct ManyShape {
  using Scale = Scales;
  static constexpr Codes kKind = kind;
  static constexpr int kTokens = tokens;
  static constexpr int kBricks = kStageDepth / brick_depth(kind), kBrickGroups = groups, kStageGroups = kBricks * groups;
  static constexpr int kGroups = kStageGroups > kParts ? kStageGroups / kParts : 1;  // of a part
  // Of a strip in a stage, but for the words, which are those of a lane in a part.
  static constexpr int kCodeBytes = kBricks * kBrickBytes, kScales = kStageGroups * kStripRows;
  static constexpr int kWords = kBricks * kBrickWords / kParts;
  // In a stage: rows of x, and codes, scales and zeros, which lie behind all of those.
  static constexpr int kPartBytes = tokens * kRowBytes, kXBytes = kParts * kPartBytes;
  static constexpr int kScalesAt = kTileStrips * kCodeBytes, kZerosAt = kScalesAt + kTileStrips * kScales * int(sizeof(Scale));
  static constexpr int kWeightBytes = (kZerosAt + kTileStrips * kScales + 127) / 128 * 128;
  // Two blocks of narrow tiles are on a multiprocessor: what one warp waits for while it unpacks, three others hide.
  static constexpr int kBlocks = tokens <= 32 ? 2 : 1, kTaken = kBlocks == 2 ? 96 : 216, kKept = kBlocks == 2 ? 40 : 72;
  static constexpr int kFits = (kManyRoom / kBlocks - kRingAt - 1024) / (kXBytes + kWeightBytes);
  static constexpr int kStages = kFits < 16 ? kFits : 16;
  static constexpr int kBytes = kRingAt + 1024 + kStages * (kXBytes + kWeightBytes);  // 1 KB for aligning the ring
  static_assert(kStages >= 4);
};

struct CodedManyArgs {
  ExpertMatrix matrix;
  bool has_zeros;
  int shift;  // as in codes.cuh
  const void* x;
  int64_t x_stride;
  const int32_t *sources, *starts;  // sources null: the second product, whose rows of x lie by place
  int activation;
  float clamped;
  void* out;
  int64_t out_stride;
  uint32_t one = 1;  // for `View`
};

// Maps of strips: [experts, or both halves of each][strips][what a strip has].
struct StripMaps {
  CUtensorMap codes, scales, zeros;
};

#if OCTAVO_WGMMA

constexpr int kUnits = kRowBytes / 16;
constexpr int kLag = 1;  // stages of x under way, behind which a thread says that its copies are there

struct ManyTile {
  int expert, begin, rows, column;  // the first place, how many there are in the tile, the first of the output's columns
};

template <class T, class S, End end>
struct ManyBlock {
  using Words = uint32_t[S::kWords];
  using Sums = float[S::kTokens / 2];
  using Held = uint32_t[kPartSteps][4];
  static constexpr bool kGated = end == End::gated;
  using Weights =
      std::conditional_t<std::is_same_v<T, typename S::Scale>, Paired<T, S::kKind, kGated>, Merged<T, S::kKind, kGated>>;
  static constexpr int kColumns = kTileStrips * kStripRows / (kGated ? 2 : 1);  // of the output
  static constexpr int kEights = S::kTokens / 8, kAtOnce = kGated ? 4 : 2;     // of rows of x; those stored at a time

  const CodedManyArgs& a;
  char* const memory;
  const uint32_t base;
  char* const ring_memory;
  const uint32_t ring_base;
  const int lane, warp;  // the latter of those that multiply
  const int width;       // columns of the output
  const typename Weights::View view;
  BufferRing ring;

  __device__ ManyBlock(const CodedManyArgs& args, char* shared)
      : a(args), memory(shared), base(shared_address(shared)),
        ring_memory(shared + kRingAt + (-(shared_address(shared) + kRingAt) & 1023u)), ring_base(shared_address(ring_memory)),
        lane(threadIdx.x % 32), warp(uniform(threadIdx.x / 32) - 4),
        width(kGated ? args.matrix.columns / 2 : args.matrix.columns), view(warp % 2, args.one), ring(base, S::kStages) {}

  __device__ int* first_tiles() const { return reinterpret_cast<int*>(memory + kFirstTiles); }
  __device__ int* starts() const { return reinterpret_cast<int*>(memory + kStarts); }
  __device__ uint32_t x_at(int stage) const { return ring_base + stage * S::kXBytes; }
  __device__ int weights_at(int stage) const { return S::kStages * S::kXBytes + stage * S::kWeightBytes; }
  __device__ int along() const { return (width + kColumns - 1) / kColumns; }
  __device__ int stages() const { return (a.matrix.depth + kStageDepth - 1) / kStageDepth; }
  __device__ int parts() const { return (a.matrix.depth + kDepth - 1) / kDepth; }

  __device__ void init_barriers() const {
    ring.init(1 + kWarpgroup, kConsumers * 4);
    fence_bulk();
  }
  // One warp: tiles of rows in front of each expert.
  __device__ void count_tiles() const {
    int before = 0;
    for (int first = 0; first < a.matrix.experts; first += 32) {
      const int e = first + threadIdx.x;
      const int start = e < a.matrix.experts ? __ldcg(a.starts + e) : 0;
      const int rows = e < a.matrix.experts ? __ldcg(a.starts + e + 1) - start : 0;
      const int own = (rows + S::kTokens - 1) / S::kTokens;
      int sum = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAll, sum, step);
        if (int(threadIdx.x) >= step) sum += other;
      }
      if (e < a.matrix.experts) first_tiles()[e] = before + sum - own, starts()[e] = start;
      before += __shfl_sync(kAll, sum, 31);
    }
    if (threadIdx.x == 0) first_tiles()[a.matrix.experts] = before, starts()[a.matrix.experts] = __ldcg(a.starts + a.matrix.experts);
  }
  __device__ int tiles() const { return first_tiles()[a.matrix.experts] * along(); }
  // Of an expert's tiles those with the same weights follow each other.
  __device__ ManyTile tile(int number) const {
    int low = 0, high = a.matrix.experts - 1;  // the last expert whose first tile is not behind this one
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_tiles()[middle] * along() <= number) low = middle;
      else high = middle - 1;
    }
    const int first = first_tiles()[low], down = first_tiles()[low + 1] - first, of_expert = number - first * along();
    const int begin = starts()[low] + of_expert % down * S::kTokens;
    return {low, begin, min(S::kTokens, starts()[low + 1] - begin), of_expert / down * kColumns};
  }

  // Bytes of a stage that come as boxes.
  __device__ int weight_bytes() const {
    return kTileStrips * (S::kCodeBytes + S::kScales * (int(sizeof(typename S::Scale)) + int(a.has_zeros)));
  }
  __device__ void bring_weights(const StripMaps& maps, const ManyTile& to, int at, int stage) const {
    const uint32_t barrier = ring.full + 8 * stage, shared = ring_base + weights_at(stage);
    const int strip = to.column / kStripRows, half = kGated ? 2 * to.expert : to.expert;
    const int group = S::kBrickGroups == 1 ? at * S::kBricks >> a.shift : at * S::kStageGroups;
    barrier_expect(barrier, weight_bytes());
    copy_box(shared, maps.codes, at * (S::kCodeBytes / kCodeUnit), strip, half, barrier);
    copy_box(shared + S::kScalesAt, maps.scales, group * kStripRows, strip, half, barrier);
    if (a.has_zeros) copy_box(shared + S::kZerosAt, maps.zeros, group * kStripRows, strip, half, barrier);
  }

  // All threads of the warpgroup that copies. Eight of them copy a row's 128 bytes. Of the second product the first weights are on
  // their way before the previous kernel has ended: the lists are older than that.
  __device__ void copy(const StripMaps& maps) {
    int early = 0;
    if (!kGated && !a.sources) {
      if (int(blockIdx.x) < tiles()) early = min(S::kStages, stages());
      for (int i = 0; i < early && threadIdx.x == 0; ++i) bring_weights(maps, tile(blockIdx.x), i, i);
      wait_for_previous_kernel();
      launch_next_kernel();
    }
    constexpr int kOwnRows = S::kTokens * kUnits / kWarpgroup, kApart = kWarpgroup / kUnits;
    static_assert(kApart % 8 == 0);  // rows of a thread are swizzled alike
    const int unit = threadIdx.x % kUnits, first_row = threadIdx.x / kUnits;
    const uint32_t own = first_row * kRowBytes + (unit ^ first_row % 8) * 16;
    BufferRing there = ring;
    int ahead = 0;
    const auto tell = [&] {
      fence_bulk();
      barrier_arrive_once(there.full_now());
      there.advance();
    };
    for (int number = blockIdx.x; number < tiles(); number += gridDim.x) {
      const ManyTile to = tile(number);
      const int rows = to.rows - first_row;  // the i-th one of a thread is there if this is above i * kApart
      const T* from[kOwnRows];
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const int place = to.begin + first_row + i * kApart;
        from[i] = static_cast<const T*>(a.x) + unit * 8;
        if (i * kApart < rows) from[i] += (a.sources ? __ldcg(a.sources + place) : place) * a.x_stride;
      }
      int left = a.matrix.depth - unit * 8;
      for (int at = 0; at < stages(); ++at) {
        ring.await_empty();
        if (threadIdx.x == 0 && early-- <= 0) bring_weights(maps, to, at, ring.stage);
        const uint32_t x = x_at(ring.stage) + own;
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
          for (int part = 0; part < kParts; ++part)
            if (i * kApart < rows)
              copy16(x + part * S::kPartBytes + i * kApart * kRowBytes, from[i] + part * kDepth, left > part * kDepth);
          from[i] += kStageDepth;
        }
        left -= kStageDepth;
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

  // Codes of this lane's low and high row in a part of a stage, in the order of their steps.
  __device__ void read_codes(const char* stage, int part, Words& lows, Words& highs) const {
    const auto load = [&](int strip, Words& to) {
      const uint4* from = reinterpret_cast<const uint4*>(stage + strip * S::kCodeBytes) + part * S::kWords / 4 * 32 + lane;
#pragma unroll
      for (int i = 0; i < S::kWords / 4; ++i) {
        const uint4 raw = from[i * 32];
        to[4 * i] = raw.x, to[4 * i + 1] = raw.y, to[4 * i + 2] = raw.z, to[4 * i + 3] = raw.w;
      }
    };
    load(kGated ? warp / 2 : warp, lows), load(kGated ? kTileStrips / 2 + warp / 2 : warp, highs);
#pragma unroll
    for (int i = 0; i < S::kWords; ++i) Weights::align(view, lows[i], highs[i]);
  }

  // The weight's part that comes next, the `part`-th of its stage.
  __device__ void prepare(Held& held, int part) const {
    if (part == 0) ring.await_full();
    const char* stage = ring_memory + weights_at(ring.stage);
    // Where a thread's two rows of the tile are, of all scales in a stage.
    const int low = kGated ? warp / 2 * S::kScales + warp % 2 * 8 + lane / 4 : warp * S::kScales + lane / 4;
    const int high = kGated ? low + kTileStrips / 2 * S::kScales : low + 8;
    const auto* scales = reinterpret_cast<const typename S::Scale*>(stage + S::kScalesAt);
    const uint8_t* zeros = reinterpret_cast<const uint8_t*>(stage + S::kZerosAt);
    const bool has_zeros = !is_float(S::kKind) && a.has_zeros;
    Words lows, highs;
    read_codes(stage, part, lows, highs);
    using Row = typename Weights::Row;
    // Two bricks may have one group or one each; the second one's is there in any case.
    const int first_group = S::kBrickGroups == 1 && a.shift ? 0 : part * S::kStageGroups / kParts * kStripRows;
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) {
      const int group = first_group + g * kStripRows;
      const Row low_row(scales[low + group], has_zeros ? zeros[low + group] : Row::zero());
      const Row high_row(scales[high + group], has_zeros ? zeros[high + group] : Row::zero());
#pragma unroll
      for (int k = g * kPartSteps / S::kGroups; k < (g + 1) * kPartSteps / S::kGroups; ++k) {
        const int word = k * step_words(S::kKind);
        Weights::step(view, lows + word, highs + word, low_row, high_row, held[k]);
      }
    }
  }
  // Begins the products of a part, and gives the number of its stage.
  __device__ int multiply(Held& held, Sums& sums, int part) {
    const uint32_t x = uniform((x_at(ring.stage) + part * S::kPartBytes) / 16);
#pragma unroll
    for (auto& registers : held)
#pragma unroll
      for (uint32_t& word : registers) hold(word);
    products_begin();
#pragma unroll
    for (int k = 0; k < kPartSteps; ++k) wgmma_held(T{}, sums, held[k], operand<128>(x + 2 * k), true);
    products_commit();
    const int stage = ring.stage;
    if (part == kParts - 1) ring.advance();
    return stage;
  }
  __device__ void release(int stage) const {
    if (lane == 0) barrier_arrive_once(ring.empty + 8 * stage);
  }
  // A lane has sums of rows lane / 4 and + 8 of its warp with rows n * 8 + lane % 4 * 2 + {0, 1} of x: numbers 4 n + {0, 1} and
  // + {2, 3}.
  __device__ void add_up(Sums& sums) {
    Held even, odd;
    const int count = parts();
    prepare(even, 0);
    int last = multiply(even, sums, 0);
    products_wait<1>();  // as in coded_wide.cuh
    const auto next = [&](Held& held, int part) {
      prepare(held, part);
      const int before = last;
      last = multiply(held, sums, part);
      products_wait<1>();
      if (part == 0) release(before);
    };
    for (int i = 1; i < count; i += 2) {
      next(odd, 1);
      if (i + 1 == count) break;
      next(even, 0);
    }
    if (count % 2) ring.advance();  // from a stage whose second part lies behind the depth
    products_wait<0>(sums);
    release(last);
  }

  __device__ void compute() {
    for (int number = blockIdx.x; number < tiles(); number += gridDim.x) {
      const ManyTile to = tile(number);
      Sums sums;
#pragma unroll
      for (float& sum : sums) sum = 0.0f;
      add_up(sums);
      finish(to, sums);
    }
  }

  // Where a thread's results go: the columns of what its warp stores, and the biases of its own two rows of the weight.
  __device__ void finish(const ManyTile& to, const Sums& sums) const {
    const int column = to.column + (kGated ? warp * 8 : warp * kStripRows);
    float biases[2] = {};
    if (a.matrix.bias && column < width) {
      const T* bias = static_cast<const T*>(a.matrix.bias) + int64_t(to.expert) * a.matrix.columns + column + lane / 4;
      biases[0] = to_float(bias[0]), biases[1] = to_float(bias[kGated ? width : 8]);
    }
    const auto sum = [&](int at, float bias) { return __fmaf_rn(sums[at], Weights::kLift, bias); };
#pragma unroll
    for (int n = 0; n < kEights; n += kAtOnce) {
      if (n * 8 >= to.rows) break;
      uint32_t words[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (kGated && (n + i) * 8 >= to.rows) break;  // an activation takes as long as some stages
        float low, high;
        if constexpr (kGated) {
          const int at = (n + i) * 4;
          low = to_float(gated<T>(sum(at, biases[0]), sum(at + 2, biases[1]), a.activation, a.clamped));
          high = to_float(gated<T>(sum(at + 1, biases[0]), sum(at + 3, biases[1]), a.activation, a.clamped));
        } else {
          const int at = n * 4 + i * 2;
          low = sum(at, biases[i % 2]), high = sum(at + 1, biases[i % 2]);
          if (a.activation == kSquaredRelu) low = to_float(squared_relu<T>(low)), high = to_float(squared_relu<T>(high));
        }
        words[i] = transpose(pack<T>(low, high));
      }
      transpose_quad(words);
      // Plain, sixteen rows of x at a time: of two eights of columns four units of 16 bytes. Gated, thirty-two and one eight.
      const int row = (n + (kGated ? lane % 4 : lane % 4 / 2)) * 8 + lane / 4, own = kGated ? column : column + lane % 2 * 8;
      if (row < to.rows && own < width)
        store_words(static_cast<T*>(a.out) + (to.begin + row) * a.out_stride + own, words[0], words[1], words[2], words[3]);
    }
  }
};

#endif

template <class T, class S, End end>
__global__ void __launch_bounds__(kManyThreads, S::kBlocks)
    coded_experts_many_kernel(const __grid_constant__ CodedManyArgs a, const __grid_constant__ StripMaps maps) {
#if OCTAVO_WGMMA
  extern __shared__ __align__(128) char memory[];
  ManyBlock<T, S, end> block(a, memory);
  if (threadIdx.x == 0) block.init_barriers();
  if (end == End::gated || a.sources) {
    wait_for_previous_kernel();
    launch_next_kernel();
  }
  if (threadIdx.x < 32) block.count_tiles();
  __syncthreads();
  if (threadIdx.x >= kWarpgroup) {
    take_registers<S::kTaken>();
    block.compute();
  } else {
    give_registers<S::kKept>();
    block.copy(maps);
  }
#endif
}

// Boxes of so many strips of one expert, or of both its halves.
inline bool describe_experts(CUtensorMap& map, const void* data, int64_t row, int64_t strips, int experts, int halves, int box,
                             CUtensorMapDataType element, int size) {
  const cuuint64_t stride = row * size, of_half = strips / halves;
  return describe_tensor<3>(map, data, {cuuint64_t(row), of_half, cuuint64_t(experts) * halves}, {stride, stride * of_half},
                            {cuuint32_t(box), cuuint32_t(kTileStrips / halves), cuuint32_t(halves)}, element, BoxRows::dense);
}

template <class T, class S, End end>
cudaError_t launch_many_shape(const CodedManyArgs& a, const CodedMatrix& m, int64_t pairs, const Device& device,
                              cudaStream_t stream) {
  const CodedSizes sizes = sizes_of(m);
  const int halves = end == End::gated ? 2 : 1, width = m.columns / halves, columns = kTileStrips * kStripRows / halves;
  const int experts = a.matrix.experts, row = sizes.groups * kStripRows;
  StripMaps maps{};
  if (!describe_experts(maps.codes, m.codes, int64_t(sizes.bricks) * (kBrickBytes / kCodeUnit), sizes.strips, experts, halves,
                        S::kCodeBytes / kCodeUnit, CU_TENSOR_MAP_DATA_TYPE_UINT64, kCodeUnit) ||
      !describe_experts(maps.scales, m.scales, row, sizes.strips, experts, halves, S::kScales,
                        sizeof(typename S::Scale) == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
                        int(sizeof(typename S::Scale))) ||
      (m.zeros && !describe_experts(maps.zeros, m.zeros, row, sizes.strips, experts, halves, S::kScales,
                                    CU_TENSOR_MAP_DATA_TYPE_UINT8, 1)))
    return cudaErrorInvalidValue;
  const int64_t tall = std::min<int64_t>(experts, pairs) + pairs / S::kTokens, most = tall * units(width, columns);
  const Launch how{dim3(unsigned(std::min<int64_t>(S::kBlocks * device.multiprocessors, most))), kManyThreads, S::kBytes};
  return launch_after(coded_experts_many_kernel<T, S, end>, how, stream, a, maps);
}

constexpr int kNarrowTokens = 32, kMiddleTokens = 64, kWideTokens = 128;
constexpr int kNarrowRows = 18, kMiddleRows = 48;  // of an expert, on average, up to which tiles are so

template <Codes kind, int groups, End end, class Scale>
cudaError_t launch_many(Dtype dtype, const CodedManyArgs& a, const CodedMatrix& m, int rows, int chosen, const Device& device,
                        cudaStream_t stream) {
  const int64_t pairs = int64_t(rows) * chosen;
  return with_half(dtype, [&](auto tag) {
    using T = decltype(tag);
    if (pairs <= int64_t(kNarrowRows) * a.matrix.experts)
      return launch_many_shape<T, ManyShape<kind, groups, kNarrowTokens, Scale>, end>(a, m, pairs, device, stream);
    if (pairs <= int64_t(kMiddleRows) * a.matrix.experts)
      return launch_many_shape<T, ManyShape<kind, groups, kMiddleTokens, Scale>, end>(a, m, pairs, device, stream);
    return launch_many_shape<T, ManyShape<kind, groups, kWideTokens, Scale>, end>(a, m, pairs, device, stream);
  });
}

}  // namespace
}  // namespace octavo
