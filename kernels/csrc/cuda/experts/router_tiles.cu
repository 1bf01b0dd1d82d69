// A router's product of many rows, on tensor cores and yet as exact as in float32: weights are taken apart into three numbers of
// bfloat16, rows of float16 into two, and every product of two such numbers is exact. Sums are in one order, whatever the rows are.
//
// A block has 16 or 64 rows and 32 outputs; each of its warps has the share of all of the depth that comes to it, a window after every
// seventh other, and one adds up what they have.
#include "experts/choice.cuh"
#include "experts/route.h"
#include "linear/norm.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kOutputTiles = 4, kOutputs = 8 * kOutputTiles;
constexpr int kTall = 4, kTallRows = 1024;  // tiles of sixteen rows of a block, from so many rows on, else one
constexpr int kWindow = 32;  // of the depth, what a warp multiplies at once
constexpr int kPitch = kOutputs + 1;

// Two numbers as `parts` pairs of bfloat16, largest first, that add up to them: three are enough for float32.
template <int kParts>
__device__ inline void take_apart(float low, float high, uint32_t (&parts)[kParts]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    parts[i] = pack<bf16>(low, high);
    const float2 taken = unpack<bf16>(parts[i]);
    low -= taken.x, high -= taken.y;
  }
}

template <class T, int kRowTiles>
struct Tile {
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kRowParts = std::is_same_v<T, bf16> ? 1 : 2, kWeightParts = 3;
  const RouteArgs& a;
  const int64_t row;
  const int output, lane, warp;
  float sums[kRowTiles][kOutputTiles][4] = {};

  __device__ Tile(const RouteArgs& args, int64_t first_row, int first_output)
      : a(args), row(first_row), output(first_output), lane(threadIdx.x % 32), warp(threadIdx.x / 32) {}

  __device__ const float* weights_of(int o) const {
    return o < a.routing.experts ? a.router + o * a.router_stride : o == a.routing.experts ? a.gate : nullptr;
  }

  __device__ void multiply() {
    const T* rows[kRowTiles][2];
    const float* weights[kOutputTiles];
    const int column = lane % 4 * 8;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t at = row + m * 16 + half * 8 + lane / 4;
        rows[m][half] = at < a.rows ? static_cast<const T*>(a.x) + at * a.x_stride + column : nullptr;
      }
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n) {
      weights[n] = weights_of(output + n * 8 + lane / 4);
      if (weights[n]) weights[n] += column;
    }
    for (int begin = warp * kWindow; begin < a.width; begin += kWarps * kWindow) {
      const bool there = begin + column < a.width;
      uint4 x[kRowTiles][2];
      float w[kOutputTiles][8];
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n) {
        const bool has = there && weights[n];
        const float4* from = reinterpret_cast<const float4*>(weights[n] + begin);
        const float4 low = has ? __ldg(from) : float4{0, 0, 0, 0}, high = has ? __ldg(from + 1) : float4{0, 0, 0, 0};
        w[n][0] = low.x, w[n][1] = low.y, w[n][2] = low.z, w[n][3] = low.w;
        w[n][4] = high.x, w[n][5] = high.y, w[n][6] = high.z, w[n][7] = high.w;
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          x[m][half] = there && rows[m][half] ? __ldcg(reinterpret_cast<const uint4*>(rows[m][half] + begin)) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int step = 0; step < 2; ++step) multiply(step, x, w);
    }
  }
  // Half of a window: of each lane's eight columns the first or the last four.
  __device__ void multiply(int step, const uint4 (&x)[kRowTiles][2], const float (&w)[kOutputTiles][8]) {
    uint32_t parts[kOutputTiles][2][kWeightParts];
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) take_apart<kWeightParts>(w[n][step * 4 + i * 2], w[n][step * 4 + i * 2 + 1], parts[n][i]);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      uint32_t operands[kRowParts][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4& raw = x[m][i % 2];
        const uint32_t word = step ? (i < 2 ? raw.z : raw.w) : (i < 2 ? raw.x : raw.y);
        uint32_t pieces[kRowParts];
        if constexpr (kRowParts == 1) {
          pieces[0] = word;
        } else {
          const float2 pair = unpack<T>(word);
          take_apart<kRowParts>(pair.x, pair.y, pieces);
        }
#pragma unroll
        for (int p = 0; p < kRowParts; ++p) operands[p][i] = pieces[p];
      }
#pragma unroll
      for (int p = kRowParts - 1; p >= 0; --p)
#pragma unroll
        for (int q = kWeightParts - 1; q >= 0; --q)
#pragma unroll
          for (int n = 0; n < kOutputTiles; ++n) mma<bf16>(sums[m][n], operands[p], parts[n][0][q], parts[n][1][q]);
    }
  }

  // Adds up the warps' sums in their order, a warp after the other, and stores.
  __device__ void finish(float* room) const {
#pragma unroll 1
    for (int turn = 0; turn < kWarps; ++turn) {
      if (turn == warp) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int n = 0; n < kOutputTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& sum = room[(m * 16 + i / 2 * 8 + lane / 4) * kPitch + n * 8 + lane % 4 * 2 + i % 2];
              sum = turn == 0 ? sums[m][n][i] : sum + sums[m][n][i];
            }
      }
      __syncthreads();
    }
    for (int i = threadIdx.x; i < kRows * kOutputs; i += kThreads) {
      const int64_t at = row + i / kOutputs;
      const int o = output + i % kOutputs;
      if (at >= a.rows || o > a.routing.experts) continue;
      const float sum = room[i / kOutputs * kPitch + i % kOutputs];
      if (o < a.routing.experts) a.logits[at * a.routing.experts + o] = a.bias ? sum + a.bias[o] : sum;
      else if (a.gate) a.gates[at] = sigmoid_of(sum);
    }
  }
};

template <class T, int kRowTiles>
__global__ void __launch_bounds__(kThreads) router_tiles_kernel(const __grid_constant__ RouteArgs a, int slices) {
  __shared__ float room[16 * kRowTiles * kPitch];
  wait_for_previous_kernel();
  launch_next_kernel();
  Tile<T, kRowTiles> tile(a, int64_t(blockIdx.x) / slices * 16 * kRowTiles, blockIdx.x % slices * kOutputs);
  tile.multiply();
  tile.finish(room);
}

constexpr int kChoiceWarps = 8;

// A warp chooses for a row.
template <int kHeld>
__global__ void __launch_bounds__(kChoiceWarps * 32) choice_kernel(const __grid_constant__ RouteArgs a) {
  __shared__ float room[kChoiceWarps][kMostChosen];
  wait_for_previous_kernel();
  launch_next_kernel();
  const int warp = threadIdx.x / 32;
  const int64_t row = int64_t(blockIdx.x) * kChoiceWarps + warp;
  if (row < a.rows) choose_row<kHeld>(a, row, threadIdx.x % 32, room[warp]);
}

}  // namespace

cudaError_t router_tiles(const RouteArgs& a, cudaStream_t stream) {
  const int slices = (a.routing.experts + (a.gate ? 1 : 0) + kOutputs - 1) / kOutputs;
  const auto blocks = [&](int tiles) { return dim3((a.rows + 16 * tiles - 1) / (16 * tiles) * slices); };
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.rows < kTallRows) return launch_after(router_tiles_kernel<T, 1>, {blocks(1), kThreads}, stream, a, slices);
    return launch_after(router_tiles_kernel<T, kTall>, {blocks(kTall), kThreads}, stream, a, slices);
  });
}

cudaError_t choose_rows(const RouteArgs& a, cudaStream_t stream) {
  const Launch how{dim3((a.rows + kChoiceWarps - 1) / kChoiceWarps), kChoiceWarps * 32};
  return a.routing.experts <= 128 ? launch_after(choice_kernel<4>, how, stream, a) : launch_after(choice_kernel<16>, how, stream, a);
}

}  // namespace octavo
