// What a chunk needs that no state is in: keys and queries of unit length, gates, and the rule among its own tokens.
//
// With d_t what token t adds to the matrix along its key, and G the running sum of the decays' logarithms, the rule says
//   d_t + sum over i < t of A_ti d_i = beta_t (v_t - exp(G_t) S^T k_t),   A_ti = beta_t exp(G_t - G_i) k_t . k_i,
// for the state S before the chunk (arXiv 2412.06464, section 3.3). (I + A)^-1 is made here, column by column.
#pragma once

#include "recurrent/delta_chunk.cuh"

namespace octavo {
namespace {

constexpr int kMakers = 4, kSolvers = 2;     // warps of a block; of these, those that solve while others make values
constexpr int kValuesTaken = 1;              // barrier of the latter
constexpr int kGroup = 4, kLines = kTaps + kGroup - 1;  // tokens that a warp makes at a time, inputs that these take
constexpr int kMostSharing = 4;              // heads of a key head
constexpr int kSide = 16;                    // tokens of a block of the triangle

struct PrepareShared {
  KeyTile keys;
  float triangle[kChunk][kChunk + 4];  // above: A by earlier token and token; on and below: (I + A)^-1 by token and earlier token
  float weights[kTaps + 1][2 * kRows], value_weights[kTaps + 1][kHead];
  float logs[kMostSharing][kChunk], betas[kMostSharing][kChunk];  // base 2
};

#if OCTAVO_CLUSTERS

template <class T>
struct Maker {
  const ChunkArgs& c;
  const DeltaArgs& a;
  PrepareShared& shared;
  const Chunk chunk;
  const Sequence sequence;
  const Line<T> line;
  const int tile, key_head, lane, warp;

  __device__ Maker(const ChunkArgs& args, PrepareShared& memory, int at, int head)
      : c(args), a(args.delta), shared(memory), chunk(chunk_at(args.plan, at)), sequence(sequence_at(args.plan, chunk.order)),
        line(a.step, sequence, 0), tile(at - args.plan.begin), key_head(head), lane(threadIdx.x % 32), warp(threadIdx.x / 32) {}

  __device__ int sharing() const { return a.heads / a.key_heads; }
  __device__ int values_at(int head) const { return 2 * a.key_heads * kRows + head * kHead; }
  __device__ void take_weights(int channel, float* to, int width, int first, int step) const {
    const Convolution& w = a.step.convolution;
    for (int tap = first; tap < kTaps; tap += step)
      widen_weights<T, kKey>(static_cast<const T*>(w.weight) + tap * w.channels, channel, to + tap * width);
    if (w.bias && first == 0) widen_weights<T, kKey>(w.bias, channel, to + kTaps * width);
  }
  // SiLU of the convolutions of kGroup tokens, from `t` of the chunk on: zeros behind its end.
  __device__ void convolved(int t, int channel, const float* weights, int width, float (&out)[kGroup][kKey]) const {
    Words<T, kKey> in[kLines];
    line.run(chunk.first + t - kTaps + 1, sequence.tokens - 1, channel, in);
    line.clear(chunk.first + t - kTaps + 1, in);
    convolve<kTaps, kGroup>(in, weights, width, a.step.convolution.bias, out);
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
#pragma unroll
      for (int j = 0; j < kKey; ++j)
        if (t + i >= chunk.count) out[i][j] = 0.0f;
  }
  // Of unit length, times `scale`.
  __device__ void normalise(float (&x)[kGroup][kKey], float scale) const {
    float sums[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      float squares[kKey];
#pragma unroll
      for (int j = 0; j < kKey; ++j) squares[j] = x[i][j] * x[i][j];
      sums[i] = sum_in_pairs(squares);
    }
    sum_over_lanes(sums, 1, 32);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float by = inverse_root(sums[i] + kLeastSquares) * scale;
#pragma unroll
      for (int j = 0; j < kKey; ++j) x[i][j] *= by;
    }
  }
  __device__ void make_keys() {
    const int q = key_head * kRows + lane * kKey, k = a.key_heads * kRows + q, own = lane * kKey;
    take_weights(q, shared.weights[0] + own, 2 * kRows, warp, kMakers);
    take_weights(k, shared.weights[0] + kRows + own, 2 * kRows, warp, kMakers);
    __syncthreads();
    for (int t = warp * kChunk / kMakers; t < (warp + 1) * kChunk / kMakers; t += kGroup) {
      float x[kGroup][kKey];
      convolved(t, q, shared.weights[0] + own, 2 * kRows, x);
      normalise(x, kRootOfRows);
      put(x, shared.keys.q, t);
      convolved(t, k, shared.weights[0] + kRows + own, 2 * kRows, x);
      normalise(x, 1.0f);
      put(x, shared.keys.k, t);
    }
  }
  __device__ void put(const float (&x)[kGroup][kKey], bf16 (&to)[2][kChunk][kRows + 8], int t) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const Split first(x[i][0], x[i][1]), second(x[i][2], x[i][3]);
      *reinterpret_cast<uint2*>(&to[0][t + i][lane * kKey]) = make_uint2(first.high, second.high);
      *reinterpret_cast<uint2*>(&to[1][t + i][lane * kKey]) = make_uint2(first.low, second.low);
    }
  }
  // Betas, and running sums of decays: a warp makes those of a head, a lane those of two tokens.
  __device__ void make_gates() {
    if (warp >= sharing()) return;
    const int head = key_head * sharing() + warp, b = 2 * a.key_heads * kRows + 2 * a.heads * kHead + head;
    const float rate = kLog2e * a.rates[head], bias = a.dt_bias[head];
    float steps[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane + i;
      const T* row = line.rows + int64_t(chunk.first + min(t, chunk.count - 1)) * line.stride + b;
      const float step = softplus(to_float(load_fresh<T, 1>(row + a.heads).at[0]) + bias);
      const float beta = a.beta_scale / (1.0f + expf(-to_float(load_fresh<T, 1>(row).at[0])));
      steps[i] = t < chunk.count ? rate * step : 0.0f;
      shared.betas[warp][t] = t < chunk.count ? beta : 0.0f;
    }
    float sum = steps[0] + steps[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float from = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += from;
    }
    shared.logs[warp][2 * lane] = sum - steps[1], shared.logs[warp][2 * lane + 1] = sum;
    HeadTile& to = c.heads[tile * a.heads + head];
    const float end = __shfl_sync(~0u, sum, 31);
    *reinterpret_cast<float2*>(to.into + 2 * lane) = make_float2(fast_exp2(sum - steps[1]), fast_exp2(sum));
    *reinterpret_cast<float2*>(to.left + 2 * lane) = make_float2(fast_exp2(end - sum + steps[1]), fast_exp2(end - sum));
  }

  // Products of 16 tokens of each warp with the keys of all tokens up to these.
  using Products = float[kChunk / 8][4];
  __device__ void multiply(const bf16 (&rows)[2][kChunk][kRows + 8], Products& to) {
    const auto left = [&](int part, int depth, uint32_t (&own)[4]) {
      uint32_t got[4];
      ldmatrix(got, quarter(rows[part], warp * kSide, depth));
      own[0] = got[0], own[1] = got[2], own[2] = got[1], own[3] = got[3];
    };
#pragma unroll
    for (int i = 0; i < kChunk / 8 * 4; ++i) to[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int depth = 0; depth < kRows; depth += 16) {
      uint32_t high[4], low[4];
      left(0, depth, high), left(1, depth, low);
#pragma unroll
      for (int pair = 0; pair < kChunk / kSide; ++pair) {
        if (pair > warp) break;
        uint32_t k[2][4];
        ldmatrix(k[0], quarter(shared.keys.k[0], pair * kSide, depth));
        ldmatrix(k[1], quarter(shared.keys.k[1], pair * kSide, depth));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mma<bf16>(to[2 * pair + half], high, k[0][2 * half], k[0][2 * half + 1]);
          mma<bf16>(to[2 * pair + half], low, k[0][2 * half], k[0][2 * half + 1]);
          mma<bf16>(to[2 * pair + half], high, k[1][2 * half], k[1][2 * half + 1]);
        }
      }
    }
  }
  // The triangle A, and the decayed products of queries and keys.
  __device__ void decay(int shared_head, const Products& of_k, const Products& of_q) {
    const float(&logs)[kChunk] = shared.logs[shared_head];
    HeadTile& to = c.heads[tile * a.heads + key_head * sharing() + shared_head];
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      if (n / 2 > warp) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = warp * kSide + half * 8 + lane / 4, i = n * 8 + lane % 4 * 2;
        float masked[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float by = i + e <= t ? fast_exp2(logs[t] - logs[i + e]) : 0.0f;
          masked[e] = by * of_q[n][2 * half + e];
          if (i + e < t) shared.triangle[i + e][t] = shared.betas[shared_head][t] * by * of_k[n][2 * half + e];
        }
        const Split split(masked[0], masked[1]);
        *reinterpret_cast<uint32_t*>(&to.masked[0][t][i]) = split.high;
        *reinterpret_cast<uint32_t*>(&to.masked[1][t][i]) = split.low;
      }
    }
  }
  // A column of (I + A)^-1 by each thread of two warps: first what tokens of blocks before add, then a block by itself.
  __device__ void solve(int shared_head) {
    const int column = threadIdx.x;
    auto& triangle = shared.triangle;
    HeadTile& to = c.heads[tile * a.heads + key_head * sharing() + shared_head];
    const float beta = shared.betas[shared_head][column];
    for (int begin = column / 32 * 32; begin < kChunk; begin += kSide) {
      float x[kSide];
#pragma unroll
      for (int r = 0; r < kSide; ++r) x[r] = begin + r == column ? 1.0f : 0.0f;
      const auto take = [&](int earlier, float by, int first) {
        float of[kSide];
#pragma unroll
        for (int r = 0; r < kSide; r += 4)
          *reinterpret_cast<float4*>(of + r) = *reinterpret_cast<const float4*>(&triangle[earlier][begin + r]);
#pragma unroll
        for (int r = 0; r < kSide; ++r)
          if (r >= first) x[r] = __fmaf_rn(-of[r], by, x[r]);
      };
#pragma unroll 4
      for (int earlier = column / 32 * 32; earlier < begin; ++earlier)
        take(earlier, column <= earlier ? triangle[earlier][column] : 0.0f, 0);
#pragma unroll
      for (int r = 0; r < kSide - 1; ++r) take(begin + r, x[r], r + 1);
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        if (column <= begin + r) triangle[begin + r][column] = x[r];
        const float solved = x[r] * beta;
        const bf16 high = from_float<bf16>(solved);
        to.solved[0][begin + r][column] = high;
        to.solved[1][begin + r][column] = from_float<bf16>(solved - to_float(high));
      }
    }
  }
  // Values of a head, by column.
  __device__ void make_values(int shared_head) {
    const int head = key_head * sharing() + shared_head, channel = values_at(head) + lane * kKey;
    const int own = warp - kSolvers, others = kMakers - kSolvers;
    take_weights(channel, shared.value_weights[0] + lane * kKey, kHead, own, others);
    barrier_sync(kValuesTaken, 32 * others);
    ValueTile& to = c.values[tile * a.heads + head];
    for (int t = own * kChunk / others; t < (own + 1) * kChunk / others; t += kGroup) {
      float x[kGroup][kKey];
      convolved(t, channel, shared.value_weights[0] + lane * kKey, kHead, x);
#pragma unroll
      for (int j = 0; j < kKey; ++j)
        *reinterpret_cast<float4*>(&to.at[lane * kKey + j][t]) = make_float4(x[0][j], x[1][j], x[2][j], x[3][j]);
    }
  }
  __device__ void store_keys() const {
    const auto* from = reinterpret_cast<const uint4*>(&shared.keys);
    auto* to = reinterpret_cast<uint4*>(c.keys + tile * a.key_heads + key_head);
    for (int i = threadIdx.x; i < int(sizeof(KeyTile) / sizeof(uint4)); i += 32 * kMakers) to[i] = from[i];
  }
  __device__ void run() {
    make_keys();
    make_gates();
    __syncthreads();
    Products of_k, of_q;
    multiply(shared.keys.k, of_k), multiply(shared.keys.q, of_q);
    store_keys();
    for (int head = 0; head < sharing(); ++head) {
      decay(head, of_k, of_q);
      __syncthreads();
      if (warp < kSolvers) solve(head);
      else make_values(head);
      __syncthreads();
    }
  }
};

#endif

template <class T>
__global__ void __launch_bounds__(32 * kMakers, 2) prepare_chunks(const __grid_constant__ ChunkArgs c) {
#if OCTAVO_CLUSTERS
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<PrepareShared*>(memory);
  wait_for_previous_kernel();
  launch_next_kernel();
  const Part part(c.plan);
  const int key_heads = c.delta.key_heads;
  for (int at = blockIdx.x; at < (part.end - part.begin) * key_heads; at += gridDim.x)
    Maker<T>(c, shared, part.begin + at / key_heads, at % key_heads).run();
#endif
}

}  // namespace
}  // namespace octavo
