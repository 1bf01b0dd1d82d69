// Products of any number of rows with weights of codes, on Hopper (sm_90a): out = x weight^T, with bias and residual, or
// activation(x gate^T) * (x up^T).
//
// The weights are the left operand, from registers, and a tile of x's rows the right one, from shared memory: so few rows
// need no padding, and what the codes stand for never passes shared memory. A block has eight strips (codes.cuh), four for
// each of two warpgroups; one thread more keeps a ring of bricks, their scales and rows of x going (weights from before the
// previous kernel has ended: they are never written). Blocks of a cluster share the depth and then add each other's sums, in
// their order.
//
// Sums of the codes are those of tensor cores, a group at a time, times the group's scale in float32: no weight is rounded.
// How many rows a tile has changes how many elements an instruction computes, never one of them, and how the depth is shared
// depends on the weight and the chip alone. So a row's bits depend neither on the other rows nor on their number.
#pragma once

#include <algorithm>

#include "coded/store.cuh"
#include "coded/strips.cuh"
#include "device/buffer_ring.cuh"
#include "linear/linear.cuh"

namespace octavo {
namespace {

constexpr int kConsumers = 2, kMultipliers = kConsumers * kWarpgroup, kThreads = kMultipliers + kWarpgroup;
constexpr int kStripsEach = 4, kStrips = kConsumers * kStripsEach, kTileColumns = kStrips * kStripRows;
constexpr int kPitch = kTileColumns + 4;  // floats between the sums of two rows of x, against bank conflicts

template <Codes kind, int groups, int tokens>
struct Shape {
  static constexpr Codes kKind = kind;
  static constexpr int kGroups = groups, kTokens = tokens, kBrickDepth = brick_depth(kind);
  static constexpr int kBlocks = tokens <= 32 ? 2 : 1;  // on a multiprocessor
  static constexpr bool kUneven = tokens >= 64;         // consumers need more registers than an equal share
  static constexpr int kSlabs = kBrickDepth / kDepth, kSlabBytes = tokens * kRowBytes;
  static constexpr int kScales = groups * kStripRows * 4, kZeros = groups * kStripRows;  // bytes of a strip
  // Parts of a stage: x, codes, scales, zeros.
  static constexpr int kCodesAt = kSlabs * kSlabBytes, kScalesAt = kCodesAt + kStrips * kBrickBytes;
  static constexpr int kZerosAt = kScalesAt + kStrips * kScales;
  static constexpr int kStageBytes = (kZerosAt + kStrips * kZeros + 1023) / 1024 * 1024;
  static constexpr int kRing = 1024, kRoom = (kBlocks == 2 ? 112 : 226) * 1024 - 2 * kRing;  // behind the barriers
  static constexpr int kStages = kRoom / kStageBytes < 16 ? kRoom / kStageBytes : 16;
  static constexpr int kBytes = 2 * kRing + kRoom;  // one for aligning the ring
  static_assert(kStages >= 3 && tokens * kPitch * 4 <= kRoom);
};

// How a launch is cut: tiles of x's rows for each tile of the weight's, which `cluster` blocks share; as in codes.cuh.
struct TileCut {
  int token_tiles, cluster;
  int strips, bricks, shift, groups;  // strips of one side
};

#if OCTAVO_WGMMA

template <class T, class S>
struct Block {
  using U = Unpack<T, S::kKind>;
  static constexpr int kSteps = brick_steps(S::kKind), kGroupSteps = kSteps / S::kGroups;
  static constexpr int kHeld = kGroupSteps < 4 ? kGroupSteps : 4;  // steps whose operands are in registers at once

  const CodedArgs& a;
  const TileCut& cut;
  const uint32_t base;
  char* const memory;
  const int rank, first_token, tile;
  const int begin, bricks;  // of the depth, this block's

  __device__ Block(const CodedArgs& args, const TileCut& how, char* aligned_memory)
      : a(args),
        cut(how),
        base(shared_address(aligned_memory)),
        memory(aligned_memory),
        rank(blockIdx.x % how.cluster),
        first_token(blockIdx.x / how.cluster % how.token_tiles * S::kTokens),
        tile(blockIdx.x / how.cluster / how.token_tiles),
        begin(how.bricks * rank / how.cluster),
        bricks(how.bricks * (rank + 1) / how.cluster - begin) {}

  __device__ BufferRing ring() const { return BufferRing(base, S::kStages); }
  __device__ int stage_at(int stage) const { return S::kRing + stage * S::kStageBytes; }

  __device__ void init_barriers() const {
    ring().init(1, kConsumers * 4);
    fence_bulk();
  }

  // One thread's: brick i of every strip into a stage. Gated, the second warpgroup's strips are those of what the first one's
  // gates multiply. Those that are not there come as zeros, and are not stored.
  __device__ void bring_weights(const CodedMaps& maps, int i, int stage) const {
    const int at = begin + i, group = S::kGroups > 1 ? at * S::kGroups : at >> cut.shift;
    const int first = tile * (a.gated ? kStripsEach : kStrips), zeros = a.matrix.zeros ? S::kZeros : 0;
    const uint32_t full = ring().full + 8 * stage, to = base + stage_at(stage);
    barrier_expect(full, S::kSlabs * S::kSlabBytes + kStrips * (kBrickBytes + S::kScales + zeros));
    copy_strips(to + S::kCodesAt, maps.codes, at * (kBrickBytes / 4), first, full);
    copy_strips(to + S::kScalesAt, maps.scales, group * kStripRows, first, full);
    if (zeros) copy_strips(to + S::kZerosAt, maps.zeros, group * kStripRows, first, full);
  }
  __device__ void bring_x(const CodedMaps& maps, int i, int stage) const {
#pragma unroll
    for (int slab = 0; slab < S::kSlabs; ++slab)
      copy_rows(base + stage_at(stage) + slab * S::kSlabBytes, maps.x, (begin + i) * S::kBrickDepth + slab * kDepth, first_token,
                ring().full + 8 * stage);
  }
  __device__ void load(const CodedMaps& maps) const {
    const int early = min(S::kStages, bricks);
    for (int i = 0; i < early; ++i) bring_weights(maps, i, i);
    wait_for_previous_kernel();
    launch_next_kernel();
    BufferRing to = ring();
    for (int i = 0; i < early; ++i, to.advance()) bring_x(maps, i, i);
    if (early < S::kStages) return;
    for (int i = early; i < bricks; ++i, to.advance()) {
      to.await_empty();
      bring_weights(maps, i, to.stage), bring_x(maps, i, to.stage);
    }
  }

  // A warpgroup's: sums of 64 of the weight's rows with the tile's rows of x. A lane has rows lane / 4 and + 8 of its warp's
  // strip, with rows n * 8 + lane % 4 * 2 + {0, 1} of x: registers 4 n + {0, 1} and + {2, 3}.
  __device__ void multiply(float (&sums)[S::kTokens / 2]) const {
    const int lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32) - 4;
    const bool has_zeros = !is_float(S::kKind) && a.matrix.zeros != nullptr;
    BufferRing from = ring();
    for (int i = 0; i < bricks; ++i, from.advance()) {
      from.await_full();
      const char* stage = memory + stage_at(from.stage);
      const uint32_t x = uniform((base + stage_at(from.stage)) / 16);
      const uint4* codes = reinterpret_cast<const uint4*>(stage + S::kCodesAt + warp * kBrickBytes) + lane;
      const float* scales = reinterpret_cast<const float*>(stage + S::kScalesAt + warp * S::kScales) + lane / 4;
      const uint8_t* zeros = reinterpret_cast<const uint8_t*>(stage + S::kZerosAt + warp * S::kZeros) + lane / 4;
      uint32_t words[4];
#pragma unroll
      for (int g = 0; g < S::kGroups; ++g) {
        const float scale[2] = {scales[g * kStripRows], scales[g * kStripRows + 8]};
        uint32_t low = U::zero(), high = U::zero();
        if (has_zeros) low = U::zero(zeros[g * kStripRows]), high = U::zero(zeros[g * kStripRows + 8]);
        float products[S::kTokens / 2];
#pragma unroll
        for (float& p : products) p = 0.0f;
#pragma unroll
        for (int from_step = 0; from_step < kGroupSteps; from_step += kHeld) {
          uint32_t held[kHeld][4];
#pragma unroll
          for (int k = 0; k < kHeld; ++k) {
            const int step = g * kGroupSteps + from_step + k;
            if (step % (kSteps / 2) == 0) {
              const uint4 raw = codes[step / (kSteps / 2) * 32];
              words[0] = raw.x, words[1] = raw.y, words[2] = raw.z, words[3] = raw.w;
            }
            U::step(words + step % (kSteps / 2) * step_words(S::kKind), low, high, held[k]);
          }
          products_begin();
#pragma unroll
          for (int k = 0; k < kHeld; ++k) {
            const int step = g * kGroupSteps + from_step + k;
            const uint32_t at = x + step / 4 * (S::kSlabBytes / 16) + step % 4 * 2;
            wgmma_held(T{}, products, held[k], operand<128>(at), from_step + k > 0);
          }
          products_commit();
          products_wait<0>(products);
        }
#pragma unroll
        for (int n = 0; n < S::kTokens / 2; ++n) sums[n] = __fmaf_rn(products[n], scale[n % 4 / 2], sums[n]);
      }
      pin(sums);  // scales have been read
      __syncwarp();
      if (lane == 0) barrier_arrive_once(from.empty_now());
    }
  }

  // Sums of the tile where all threads of the cluster can add them, over the ring: [row of x][row of the weight].
  __device__ void share(const float (&sums)[S::kTokens / 2]) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
    float* to = reinterpret_cast<float*>(memory + S::kRing) + lane % 4 * 2 * kPitch + warp * kStripRows + lane / 4;
#pragma unroll
    for (int n = 0; n < S::kTokens / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(n * 8 + i % 2) * kPitch + i / 2 * 8] = sums[4 * n + i];
  }
  __device__ float4 total(int token, int row) const {
    const uint32_t at = base + S::kRing + (token * kPitch + row) * 4;
    if (cut.cluster == 1) return *reinterpret_cast<const float4*>(memory + S::kRing + (token * kPitch + row) * 4);
    float4 sum = load_of(0, at);
    for (int r = 1; r < cut.cluster; ++r) sum = sum + load_of(r, at);
    return sum;
  }

  // A consumer's share of what this block stores: four columns of a row at a time.
  __device__ void store() const {
    const int tile_columns = a.gated ? kTileColumns / 2 : kTileColumns, columns = a.gated ? a.columns / 2 : a.columns;
    const int quads = tile_columns / 4, all = quads * min(S::kTokens, a.rows - first_token);
    const int end = all * (rank + 1) / cut.cluster;
    for (int i = all * rank / cut.cluster + threadIdx.x - kWarpgroup; i < end; i += kMultipliers) {
      const int token = i / quads, in_tile = i % quads * 4, column = tile * tile_columns + in_tile;
      if (column >= columns) continue;
      const int64_t row = first_token + token;
      const float4 other = a.gated ? total(token, kTileColumns / 2 + in_tile) : addends<T>(a, row, column);
      store4<T>(a, row, column, total(token, in_tile), other);
    }
  }

  __device__ void compute() const {
    float sums[S::kTokens / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    multiply(sums);
    barrier_sync(1, kMultipliers);  // the ring is read no more
    share(sums);
    if (cut.cluster > 1) cluster_meet();
    else barrier_sync(1, kMultipliers);
    wait_for_previous_kernel();  // it may have written what is added now, or still read what is written
    store();
    if (cut.cluster > 1) cluster_meet();  // the others have read this block's sums
  }
};

#endif

template <class T, class S>
__global__ void __launch_bounds__(kThreads, S::kBlocks)
    coded_tiles_kernel(const __grid_constant__ CodedArgs a, const __grid_constant__ TileCut cut,
                       const __grid_constant__ CodedMaps maps) {
#if OCTAVO_WGMMA
  extern __shared__ char memory[];
  char* const aligned_memory = memory + (-shared_address(memory) & (S::kRing - 1));
  const Block<T, S> block(a, cut, aligned_memory);
  if (threadIdx.x == 0) block.init_barriers();
  __syncthreads();
  if (threadIdx.x >= kWarpgroup) {
    if constexpr (S::kUneven) take_registers<232>();  // with 40 all of the 168 that each thread begins with
    block.compute();
  } else {
    if constexpr (S::kUneven) give_registers<40>();
    if (threadIdx.x == 0) block.load(maps);
    __syncwarp();
    if (cut.cluster > 1) cluster_meet(), cluster_meet();
  }
#endif
}

template <class T, class S>
cudaError_t launch_shape(const CodedArgs& a, int cluster, const CodedSizes& sizes, cudaStream_t stream) {
  CodedMaps maps{};
  if (!describe_matrix(maps.x, a.x, a.rows, a.depth, a.x_stride, S::kTokens) ||
      !describe_weight(maps, a.matrix, sizes, a.gated, kStrips, kBrickBytes, S::kGroups * kStripRows))
    return cudaErrorNotSupported;
  const int strips = sizes.strips / (a.gated ? 2 : 1), tiles = units(strips, a.gated ? kStripsEach : kStrips);
  const TileCut cut{units(a.rows, S::kTokens), cluster, strips, sizes.bricks, sizes.grouping.shift, sizes.groups};
  const Launch how{dim3(tiles * cut.token_tiles * cluster), kThreads, S::kBytes, cluster};
  return launch_after(coded_tiles_kernel<T, S>, how, stream, a, cut, maps);
}

// With codes of this kind, in tiles of the rows that are asked for.
template <Codes kind, int groups>
cudaError_t launch_tiles(const CodedArgs& a, const CodedTile& tile, const CodedSizes& sizes, cudaStream_t stream) {
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (tile.tokens) {
      case 8: return launch_shape<T, Shape<kind, groups, 8>>(a, tile.cluster, sizes, stream);
      case 16: return launch_shape<T, Shape<kind, groups, 16>>(a, tile.cluster, sizes, stream);
      case 32: return launch_shape<T, Shape<kind, groups, 32>>(a, tile.cluster, sizes, stream);
      case 64: return launch_shape<T, Shape<kind, groups, 64>>(a, tile.cluster, sizes, stream);
      case 128: return launch_shape<T, Shape<kind, groups, 128>>(a, tile.cluster, sizes, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

}  // namespace
}  // namespace octavo
