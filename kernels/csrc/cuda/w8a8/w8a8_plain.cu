// Products of codes of eight bits on any chip from A100 on, by its ordinary tensor core instructions: out = x weight^T with
// scales, bias and residual, or activation(x gate^T) * (x up^T). Simple, for what has no faster kernel.
//
// A block has 16 or 64 rows of x and 64 of the weight, gate and up by turns, eight of each; a warp has 16 of the latter. Codes
// that are floats become float16, which holds them exactly.
#include "cache/args.h"
#include "cache/cells.cuh"
#include "w8a8/w8a8.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kColumns = kWarps * 16;  // rows of the weight
constexpr int kRowBytes = kScaledDepth, kUnits = kRowBytes / 16;  // of a stage: so much of the depth
constexpr int kStages = 3;

// d[16][8] += a[16][32] b[8][32]^T.
__device__ inline void multiply_codes(Int8, int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Which of the depth's elements meet in which instruction does not matter, if both sides agree.
__device__ inline void multiply_codes(Fp8, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t rows[4], low, high;
    widen<false>(f8{}, a[2 * i], rows[0], rows[2]);
    widen<false>(f8{}, a[2 * i + 1], rows[1], rows[3]);
    widen<false>(f8{}, b[i], low, high);
    mma<f16>(d, rows, low, high);
  }
}

template <class T, class codes, int tokens, bool in_blocks>
struct Block {
  using C = codes;
  using Sum = typename C::Sum;
  static constexpr int kTokens = tokens, kTiles = tokens / 16, kStageBytes = (tokens + kColumns) * kRowBytes;
  using Sums = Sum[kTiles][2][4];

  const W8A8Args& a;
  const uint32_t base;
  const int lane, warp, token, column;  // the tile's first ones; gated, of the results

  __device__ Block(const W8A8Args& args, const void* memory)
      : a(args), base(shared_address(memory)), lane(threadIdx.x % 32), warp(threadIdx.x / 32), token(blockIdx.y * tokens),
        column(blockIdx.x * (args.gated ? kColumns / 2 : kColumns)) {}

  // The weight's row that is a tile's row `row`.
  __device__ int weight_row(int row) const {
    return a.gated ? row % 16 / 8 * (a.columns / 2) + column + row / 16 * 8 + row % 8 : column + row;
  }
  __device__ uint32_t unit_at(int stage, int row, int unit) const {
    return base + stage * kStageBytes + row * kRowBytes + ((unit ^ row) & 7) * 16;
  }
  __device__ void load(int step, int stage) const {
#pragma unroll
    for (int i = threadIdx.x; i < (tokens + kColumns) * kUnits; i += kThreads) {
      const int row = i / kUnits, unit = i % kUnits, depth = step * kRowBytes + unit * 16;
      const bool of_x = row < tokens;
      const int from = of_x ? token + row : weight_row(row - tokens);
      const CodedRows& rows = of_x ? a.x : a.weight;
      const bool there = from < (of_x ? a.rows : a.columns) && depth < a.depth;
      copy16(unit_at(stage, row, unit), static_cast<const char*>(rows.codes) + (there ? from * rows.stride + depth : 0), there);
    }
  }

  __device__ void multiply(int stage, Sums& sums) const {
#pragma unroll
    for (int k = 0; k < kRowBytes / 32; ++k) {
      uint32_t weight[4];
      ldmatrix(weight, unit_at(stage, tokens + warp * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        uint32_t x[4];
        ldmatrix(x, unit_at(stage, m * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < 2; ++n) multiply_codes(C{}, sums[m][n], x, weight[2 * n], weight[2 * n + 1]);
      }
    }
  }

  // This thread's columns, or, gated, its rows of the gate and of what it multiplies: two of each eight.
  __device__ int own_row(int eight) const { return weight_row(warp * 16 + eight * 8 + lane % 4 * 2); }
  __device__ int own_token(int tile, int half) const { return token + tile * 16 + half * 8 + lane / 4; }
  __device__ float weight_scale(int group, int row) const {
    return row < a.columns ? a.weight.scales[group * a.weight.scales_stride + row] : 0.0f;
  }
  __device__ float x_scale(int group, int row) const {
    return row < a.rows ? a.x.scales[group * a.x.scales_stride + row] : 0.0f;
  }

  // Adds what the block `group` of the depth gave.
  __device__ void add(int group, float (&sums)[kTiles][2][4], const float (&part)[kTiles][2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float scales[2] = {weight_scale(group, own_row(n)), weight_scale(group, own_row(n) + 1)};
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            sums[m][n][2 * half + i] = __fmaf_rn(part[m][n][2 * half + i],
                                                 __fmul_rn(x_scale(group, own_token(m, half)), scales[i]),
                                                 sums[m][n][2 * half + i]);
    }
  }

  __device__ void run() const {
    wait_for_previous_kernel();
    launch_next_kernel();
    const int steps = (a.depth + kRowBytes - 1) / kRowBytes;
    for (int i = 0; i < kStages - 1; ++i) {
      if (i < steps) load(i, i);
      commit_copies();
    }
    Sums sums = {};
    for (int i = 0; i < steps; ++i) {
      wait_copies<kStages - 2>();
      __syncthreads();
      if (i + kStages - 1 < steps) load(i + kStages - 1, (i + kStages - 1) % kStages);
      commit_copies();
      if constexpr (in_blocks) {
        Sums part = {};
        multiply(i % kStages, part);
        add(i, sums, part);
      } else {
        multiply(i % kStages, sums);
      }
    }
    finish(sums);
  }

  // Values of columns `first` and the next, in a row of x.
  __device__ float2 values(Sum low, Sum high, float x, int first) const {
    float2 y;
    if constexpr (in_blocks) y = {low, high};
    else y = {scaled(low, x, weight_scale(0, first)), scaled(high, x, weight_scale(0, first + 1))};
    if (a.bias) y.x = __fadd_rn(y.x, element<T>(a.bias, first)), y.y = __fadd_rn(y.y, element<T>(a.bias, first + 1));
    return y;
  }
  __device__ void finish(const Sums& sums) const {
    const int end = a.gated ? a.columns / 2 : a.columns;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = own_token(m, half);
        const float x = in_blocks ? 1.0f : x_scale(0, int(row));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int first = own_row(n);
          if (row >= a.rows || (a.gated && n == 1) || first >= end) continue;
          float2 y = values(sums[m][n][2 * half], sums[m][n][2 * half + 1], x, first);
          if (a.gated) {
            const float2 up = values(sums[m][1][2 * half], sums[m][1][2 * half + 1], x, own_row(1));
            y = {gated<T>(a.activation, y.x, up.x), gated<T>(a.activation, y.y, up.y)};
          } else if (a.residual) {
            const int64_t at = row * a.residual_stride + first;
            y.x = __fadd_rn(y.x, element<T>(a.residual, at)), y.y = __fadd_rn(y.y, element<T>(a.residual, at + 1));
          }
          *reinterpret_cast<uint32_t*>(static_cast<T*>(a.out) + row * a.out_stride + first) = pack<T>(y.x, y.y);
        }
      }
  }
};

template <class B>
__global__ void __launch_bounds__(kThreads) w8a8_plain_kernel(const __grid_constant__ W8A8Args a) {
  __shared__ __align__(128) char memory[kStages * B::kStageBytes];
  B(a, memory).run();
}

template <class B>
cudaError_t launch(const W8A8Args& a, cudaStream_t stream) {
  const auto over = [](int n, int by) { return unsigned((n + by - 1) / by); };
  const Launch how{dim3(over(a.columns, kColumns), over(a.rows, B::kTokens)), kThreads};
  return launch_after(w8a8_plain_kernel<B>, how, stream, a);
}

template <class T, class C, bool in_blocks>
cudaError_t launch_tokens(const W8A8Args& a, cudaStream_t stream) {
  return a.rows <= 16 ? launch<Block<T, C, 16, in_blocks>>(a, stream) : launch<Block<T, C, 64, in_blocks>>(a, stream);
}

}  // namespace

cudaError_t w8a8_plain(const W8A8Args& a, cudaStream_t stream) {
  if (!in_eights(a) || a.depth % 16 != 0 || a.rows > 64 * 65535) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.cells == Cells::i8 && !a.in_blocks) return launch_tokens<T, Int8, false>(a, stream);
    if (a.cells != Cells::f8) return cudaErrorInvalidValue;
    return a.in_blocks ? launch_tokens<T, Fp8, true>(a, stream) : launch_tokens<T, Fp8, false>(a, stream);
  });
}

}  // namespace octavo
