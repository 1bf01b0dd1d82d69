// out[T, N] = x[T, K] weight[N, K]^T for any number of rows T, each row with the same bits whatever the others are and
// however many: every element of the output is one chain of tensor core products over the whole depth, in its order.
// Tiles of several sizes fill the device; which is taken changes nothing, because their instructions differ only in how
// many elements they compute. Hopper only. One warp copies, one or two warpgroups multiply 64 rows of x each.
#include "linear/linear.cuh"
#include "linear/linear_tiles.cuh"

namespace octavo {
namespace {

constexpr int kInner = 16;  // of the depth, what an instruction multiplies
constexpr int kBand = 16;  // tiles of rows of x that are computed side by side, so that the L2 cache serves them

template <int kGroups, int kColumns>
struct Shape {
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  static constexpr int kBlocks = kGroups * kColumns <= 64 ? 2 : 1;  // on a multiprocessor
  static constexpr int kXBytes = kGroups * kRows * kRowBytes, kStageBytes = kXBytes + kColumns * kRowBytes;
  static constexpr int kMostBytes = (kBlocks == 2 ? 110 : 224) * 1024, kRing = 1024;
  static constexpr int kStages = (kMostBytes - kRing) / kStageBytes < 12 ? (kMostBytes - kRing) / kStageBytes : 12;
  static constexpr int kBytes = kRing + kStages * kStageBytes + 1024;  // the last for aligning the ring
  static constexpr int kChain = kColumns < 128 ? kColumns : 128, kChains = kColumns / kChain;
};

#if OCTAVO_WGMMA

template <class T, int kGroups, int kColumns>
struct Block {
  using S = Shape<kGroups, kColumns>;
  const LinearArgs& a;
  const uint32_t base;
  const int row, column, chunks;

  __device__ uint32_t full(int stage) const { return base + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return base + 8 * (S::kStages + stage); }
  __device__ uint32_t x_at(int stage) const { return base + S::kRing + stage * S::kStageBytes; }
  __device__ uint32_t weights_at(int stage) const { return x_at(stage) + S::kXBytes; }

  __device__ void init_barriers() const {
    for (int s = 0; s < S::kStages; ++s) barrier_init(full(s), 1), barrier_init(empty(s), 4 * kGroups);
    fence_bulk();
  }

  // The first weights are on their way before the previous kernel has ended.
  __device__ void load(const CUtensorMap& x, const CUtensorMap& weights) const {
    const int early = min(S::kStages, chunks);
    for (int i = 0; i < early; ++i) {
      barrier_expect(full(i), S::kStageBytes);
      copy_rows(weights_at(i), weights, i * kDepth, column, full(i));
    }
    wait_for_previous_kernel();
    launch_next_kernel();
    for (int i = 0; i < early; ++i) copy_rows(x_at(i), x, i * kDepth, row, full(i));
    for (int i = early, stage = 0, phase = 0; i < chunks; ++i) {
      barrier_wait(empty(stage), phase);
      barrier_expect(full(stage), S::kStageBytes);
      copy_rows(weights_at(stage), weights, i * kDepth, column, full(stage));
      copy_rows(x_at(stage), x, i * kDepth, row, full(stage));
      if (++stage == S::kStages) stage = 0, phase ^= 1;
    }
  }

  __device__ void compute() const {
    const int group = uniform(threadIdx.x / kWarpgroup) - 1, lane = threadIdx.x % 32;
    float sums[S::kChains][S::kChain / 2];
#pragma unroll
    for (int c = 0; c < S::kChains; ++c)
#pragma unroll
      for (int i = 0; i < S::kChain / 2; ++i) sums[c][i] = 0.0f;
    int stage = 0, phase = 0, previous = 0;
    for (int i = 0; i < chunks; ++i) {
      barrier_wait(full(stage), phase);
      const uint32_t mine = uniform(x_at(stage) + group * kRows * kRowBytes), theirs = uniform(weights_at(stage));
      products_begin();
#pragma unroll
      for (int k = 0; k < kDepth / kInner; ++k)
#pragma unroll
        for (int c = 0; c < S::kChains; ++c)
          wgmma(T{}, sums[c], operand<128>(mine / 16 + k * kInner / 8),
                operand<128>((theirs + c * S::kChain * kRowBytes) / 16 + k * kInner / 8));
      products_commit();
      if (i > 0) {
        products_wait<1>();
        if (lane == 0) barrier_arrive_once(empty(previous));
      }
      previous = stage;
      if (++stage == S::kStages) stage = 0, phase ^= 1;
    }
    products_wait<0>();
#pragma unroll
    for (int c = 0; c < S::kChains; ++c) pin(sums[c]);
    wait_for_previous_kernel();  // it may have written what is added now
    const int first = row + group * kRows + threadIdx.x % kWarpgroup / 32 * 16 + lane / 4;
#pragma unroll
    for (int c = 0; c < S::kChains; ++c)
#pragma unroll
      for (int n = 0; n < S::kChain / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store(first + 8 * half, column + c * S::kChain + n * 8 + lane % 4 * 2, sums[c][n * 4 + 2 * half],
                sums[c][n * 4 + 2 * half + 1]);
  }

  __device__ float finished(int64_t at_row, int at, float sum) const {
    if (a.bias) sum += to_float(static_cast<const T*>(a.bias)[at]);
    if (a.residual)
      sum = __fmaf_rn(a.factor, sum, to_float(static_cast<const T*>(a.residual)[at_row * a.residual_stride + at]));
    return sum;
  }
  __device__ void store(int64_t at_row, int at, float low, float high) const {
    if (at_row >= a.rows || at >= a.columns) return;
    T* out = static_cast<T*>(a.out) + at_row * a.out_stride + at;
    low = finished(at_row, at, low);
    if (at + 1 == a.columns) {
      *out = from_float<T>(low);
    } else if (high = finished(at_row, at + 1, high); reinterpret_cast<uintptr_t>(out) % 4 == 0) {
      *reinterpret_cast<uint32_t*>(out) = pack<T>(low, high);
    } else {
      out[0] = from_float<T>(low), out[1] = from_float<T>(high);
    }
  }
};

#endif

template <class T, int kGroups, int kColumns>
__global__ void __launch_bounds__(Shape<kGroups, kColumns>::kThreads, Shape<kGroups, kColumns>::kBlocks)
    linear_uniform_kernel(const __grid_constant__ LinearArgs a, const __grid_constant__ CUtensorMap x,
                          const __grid_constant__ CUtensorMap weights, int row_tiles, int column_tiles) {
#if OCTAVO_WGMMA
  extern __shared__ char memory[];
  // Bands of row tiles, in a band columns one after the other.
  const int band = blockIdx.x / (kBand * column_tiles), in_band = blockIdx.x % (kBand * column_tiles);
  const int height = min(kBand, row_tiles - band * kBand);
  const int row = (band * kBand + in_band % height) * kGroups * kRows, column = in_band / height * kColumns;
  const Block<T, kGroups, kColumns> block{a, (shared_address(memory) + 1023) & ~1023u, row, column,
                                          (a.depth + kDepth - 1) / kDepth};
  if (threadIdx.x == 0) block.init_barriers();
  __syncthreads();
  if (threadIdx.x >= kWarpgroup) {
    if constexpr (kGroups == 2) take_registers<232>();
    block.compute();
  } else {
    if constexpr (kGroups == 2) give_registers<40>();
    if (threadIdx.x == 0) block.load(x, weights);
  }
#endif
}

template <class T, int kGroups, int kColumns>
cudaError_t launch(const LinearArgs& a, cudaStream_t stream) {
  using S = Shape<kGroups, kColumns>;
  CUtensorMap x, weights;
  if (!describe_matrix(x, a.x, a.rows, a.depth, a.x_stride, kGroups * kRows) ||
      !describe_matrix(weights, a.weight, a.columns, a.depth, a.weight_stride, kColumns))
    return cudaErrorInvalidValue;
  const int row_tiles = (a.rows + kGroups * kRows - 1) / (kGroups * kRows);
  const int column_tiles = (a.columns + kColumns - 1) / kColumns;
  const Launch how{dim3(row_tiles * column_tiles), S::kThreads, S::kBytes};
  return launch_after(linear_uniform_kernel<T, kGroups, kColumns>, how, stream, a, x, weights, row_tiles, column_tiles);
}

template <class T>
cudaError_t launch_tile(const LinearArgs& a, const LinearTile& tile, cudaStream_t stream) {
  const auto is = [&](int groups, int columns) { return tile.consumers == groups && tile.columns == columns; };
  if (is(1, 32)) return launch<T, 1, 32>(a, stream);
  if (is(1, 64)) return launch<T, 1, 64>(a, stream);
  if (is(2, 64)) return launch<T, 2, 64>(a, stream);
  if (is(2, 128)) return launch<T, 2, 128>(a, stream);
  if (is(2, 256)) return launch<T, 2, 256>(a, stream);
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t linear_uniform(const LinearArgs& a, const LinearTile& tile, const Device& device, cudaStream_t stream) {
  if (device.major != 9 || a.gated || a.norm || !aligned(a.x, a.x_stride) || !aligned(a.weight, a.weight_stride))
    return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) { return launch_tile<decltype(tag)>(a, tile, stream); });
}

}  // namespace octavo
