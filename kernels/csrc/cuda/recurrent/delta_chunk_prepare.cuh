// What a chunk needs that no state is in: keys and queries of unit length, gates, and the rule among its own tokens.
//
// With d_t what token t adds to the matrix along its key, and G the running sum of the decays' logarithms, the rule says
//   d_t + sum over i < t of A_ti d_i = beta_t (v_t - exp(G_t) S^T k_t),   A_ti = beta_t exp(G_t - G_i) k_t . k_i,
// for the state S before the chunk (arXiv 2412.06464, section 3.3). T = (I + A)^-1 is made here: of a block of the diagonal by columns,
// of one below it, in the order of rows of blocks, as  T_bc = -T_bb (sum over c <= k < b of A_bk T_kc).
#pragma once

#include "recurrent/delta_chunk.cuh"

namespace octavo {
namespace {

constexpr int kMakers = 4, kSolvers = 2;     // warps of a block; of these, those that solve before they make values
constexpr int kInverted = 1;                 // barrier of the latter
constexpr int kGroup = 4, kLines = kTaps + kGroup - 1;  // tokens that a warp makes at a time, inputs that these take
constexpr int kSolversGroups = 2, kOthersGroups = 6;    // of a head's values
static_assert((kSolvers * kSolversGroups + (kMakers - kSolvers) * kOthersGroups) * kGroup == kChunk);
constexpr int kMostSharing = 4;              // heads of a key head
constexpr int kSide = 16, kBlocks = kChunk / kSide;     // tokens of a block of the triangle, blocks of a side

struct PrepareShared {
  KeyTile keys;
  bf16 triangle[2][kChunk][kChunk + 8];  // by token and earlier token, in two parts: A, and in blocks of the diagonal T
  float diagonal[kBlocks][kSide][kSide + 4];  // those of A, by earlier token and token
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
  // Inputs of the convolutions of kGroup tokens, from `t` of the chunk on: asked for before those of others are computed.
  using Inputs = Words<T, kKey>[kLines];
  __device__ void read(int t, int channel, Inputs& in) const {
    line.run(chunk.first + t - kTaps + 1, sequence.tokens - 1, channel, in);
    line.clear(chunk.first + t - kTaps + 1, in);
  }
  // Their SiLU: zeros behind the chunk's end.
  __device__ void convolved(const Inputs& in, int t, const float* weights, int width, float (&out)[kGroup][kKey]) const {
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
    const int end = (warp + 1) * kChunk / kMakers;
    Inputs queries, keys;
    read(warp * kChunk / kMakers, q, queries);
    take_weights(q, shared.weights[0] + own, 2 * kRows, warp, kMakers);
    take_weights(k, shared.weights[0] + kRows + own, 2 * kRows, warp, kMakers);
    __syncthreads();
    for (int t = warp * kChunk / kMakers; t < end; t += kGroup) {
      float x[kGroup][kKey];
      read(t, k, keys);
      convolved(queries, t, shared.weights[0] + own, 2 * kRows, x);
      normalise(x, kRootOfRows);
      put(x, shared.keys.q, t);
      if (t + kGroup < end) read(t + kGroup, q, queries);
      convolved(keys, t, shared.weights[0] + kRows + own, 2 * kRows, x);
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

  // Products of 16 tokens of each warp with the keys of all tokens: of their keys and of their queries. Sixteen lie between two that
  // wait for each other. All warps wait for the one that needs all of them.
  using Products = float[kChunk / 8][4];
  using Rows = bf16[2][kChunk][kRows + 8];
  struct Own {
    uint32_t high[4], low[4];
  };
  __device__ void take(const Rows& rows, int depth, Own& own) const {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t got[4];
      ldmatrix(got, quarter(rows[part], warp * kSide, depth));
      uint32_t(&to)[4] = part == 0 ? own.high : own.low;
      to[0] = got[0], to[1] = got[2], to[2] = got[1], to[3] = got[3];
    }
  }
  __device__ void multiply(Products& of_k, Products& of_q) const {
#pragma unroll
    for (int i = 0; i < kChunk / 8 * 4; ++i) of_k[i / 4][i % 4] = 0.0f, of_q[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int depth = 0; depth < kRows; depth += 16) {
      Own k, q;
      take(shared.keys.k, depth, k), take(shared.keys.q, depth, q);
      uint32_t right[kBlocks][4];
      const auto load = [&](int part) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) ldmatrix(right[i], quarter(shared.keys.k[part], i * kSide, depth));
      };
      const auto each = [&](Products& to, const uint32_t (&part)[4]) {
#pragma unroll
        for (int i = 0; i < kChunk / 8; ++i) mma<bf16>(to[i], part, right[i / 2][i % 2 * 2], right[i / 2][i % 2 * 2 + 1]);
      };
      load(0), each(of_k, k.high), each(of_q, q.high), each(of_k, k.low), each(of_q, q.low);
      load(1), each(of_k, k.high), each(of_q, q.high);
    }
  }
  // The triangle A, and the decayed products of queries and keys.
  __device__ void decay(int shared_head, const Products& of_k, const Products& of_q) {
    const float(&logs)[kChunk] = shared.logs[shared_head];
    HeadTile& to = c.heads[tile * a.heads + key_head * sharing() + shared_head];
    const int row = warp * kSide + lane / 4;
    const float ends[2] = {logs[row], logs[row + 8]}, betas[2] = {shared.betas[shared_head][row], shared.betas[shared_head][row + 8]};
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      if (n / 2 > warp) break;
      const int i = n * 8 + lane % 4 * 2;
      const float begins[2] = {logs[i], logs[i + 1]};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int t = row + half * 8;
        float masked[2], of[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float by = fast_exp2(ends[half] - begins[e]);
          masked[e] = i + e <= t ? by * of_q[n][2 * half + e] : 0.0f;
          of[e] = i + e < t ? betas[half] * by * of_k[n][2 * half + e] : 0.0f;
        }
        put_pair(to.masked, t, i, masked), put_pair(shared.triangle, t, i, of);
        if (n / 2 < warp) continue;
#pragma unroll
        for (int e = 0; e < 2; ++e) shared.diagonal[warp][i % kSide + e][t % kSide] = of[e];
      }
    }
  }
  using Triangle = bf16[2][kChunk][kChunk + 8];
  __device__ static void put_pair(Triangle& to, int t, int i, const float (&x)[2]) {
    const Split split(x[0], x[1]);
    *reinterpret_cast<uint32_t*>(&to[0][t][i]) = split.high;
    *reinterpret_cast<uint32_t*>(&to[1][t][i]) = split.low;
  }
  __device__ static void put_one(Triangle& to, int t, int i, float x) {
    const bf16 high = from_float<bf16>(x);
    to[0][t][i] = high, to[1][t][i] = from_float<bf16>(x - to_float(high));
  }
  // T in the blocks of the diagonal, where A was: a column by each thread of two warps.
  __device__ void invert() {
    const int block = threadIdx.x / kSide, column = threadIdx.x % kSide;
    float x[kSide];
#pragma unroll
    for (int r = 0; r < kSide; ++r) x[r] = r == column ? 1.0f : 0.0f;
#pragma unroll
    for (int r = 0; r < kSide - 1; ++r) {
      float of[kSide];
#pragma unroll
      for (int i = r / 4 * 4; i < kSide; i += 4)
        *reinterpret_cast<float4*>(of + i) = *reinterpret_cast<const float4*>(&shared.diagonal[block][r][i]);
#pragma unroll
      for (int i = r + 1; i < kSide; ++i) x[i] = __fmaf_rn(-of[i], x[r], x[i]);
    }
#pragma unroll
    for (int r = 0; r < kSide; ++r) put_one(shared.triangle, block * kSide + r, block * kSide + column, x[r]);
  }
  // Sixteen columns of T diag(beta), transposed: results of a product are the left operand of the next one as they are.
  template <int first>
  __device__ void solve(int shared_head) {
    const int row = lane / 4, pair = lane % 4 * 2;
    float solved[kBlocks][2][4];
    const auto multiply = [&](float (&to)[2][4], const float (&from)[2][4], int block, int earlier) {
      const Left left(from[0], from[1]);
      uint32_t right[4];
      ldmatrix(right, quarter(shared.triangle[0], block * kSide, earlier * kSide));
      mma<bf16>(to[0], left.high, right[0], right[1]), mma<bf16>(to[1], left.high, right[2], right[3]);
      mma<bf16>(to[0], left.low, right[0], right[1]), mma<bf16>(to[1], left.low, right[2], right[3]);
      ldmatrix(right, quarter(shared.triangle[1], block * kSide, earlier * kSide));
      mma<bf16>(to[0], left.high, right[0], right[1]), mma<bf16>(to[1], left.high, right[2], right[3]);
    };
    const auto token = [&](int block, int half, int e) { return block * kSide + half * 8 + pair + e % 2; };
    const auto column = [&](int e) { return first * kSide + row + e / 2 * 8; };
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto at = [&](int part) { return to_float(shared.triangle[part][token(first, i / 4, i % 4)][column(i % 4)]); };
      solved[first][i / 4][i % 4] = at(0) + at(1);
    }
#pragma unroll
    for (int block = first + 1; block < kBlocks; ++block) {
      float sums[2][4] = {};
#pragma unroll
      for (int earlier = first; earlier < block; ++earlier) multiply(sums, solved[earlier], block, earlier);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = -sums[i / 4][i % 4], solved[block][i / 4][i % 4] = 0.0f;
      multiply(solved[block], sums, block, block);
    }
    HeadTile& to = c.heads[tile * a.heads + key_head * sharing() + shared_head];
    const float betas[2] = {shared.betas[shared_head][column(0)], shared.betas[shared_head][column(2)]};
#pragma unroll
    for (int block = first; block < kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        put_one(to.solved, token(block, i / 4, i % 4), column(i % 4), solved[block][i / 4][i % 4] * betas[i % 4 / 2]);
  }
  // The first columns take as many products as the others together, and more.
  __device__ void solve_all(int shared_head) {
    invert();
    barrier_sync(kInverted, 32 * kSolvers);
    if (warp == 0) solve<0>(shared_head);
    else solve<1>(shared_head), solve<2>(shared_head), solve<3>(shared_head);
  }
  // Values of a head, by column.
  __device__ void make_values(int shared_head) {
    const int head = key_head * sharing() + shared_head, channel = values_at(head) + lane * kKey;
    const int others = warp - kSolvers;
    const int begin = others < 0 ? warp * kSolversGroups : kSolvers * kSolversGroups + others * kOthersGroups;
    const int end = kGroup * (begin + (others < 0 ? kSolversGroups : kOthersGroups));
    ValueTile& to = c.values[tile * a.heads + head];
    Inputs now, next;
    read(kGroup * begin, channel, next);
    for (int t = kGroup * begin; t < end; t += kGroup) {
#pragma unroll
      for (int i = 0; i < kLines; ++i) now[i] = next[i];
      if (t + kGroup < end) read(t + kGroup, channel, next);
      float x[kGroup][kKey];
      convolved(now, t, shared.value_weights[0] + lane * kKey, kHead, x);
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
    multiply(of_k, of_q);
    store_keys();
    for (int head = 0; head < sharing(); ++head) {
      decay(head, of_k, of_q);
      const int channel = values_at(key_head * sharing() + head) + lane * kKey;
      take_weights(channel, shared.value_weights[0] + lane * kKey, kHead, warp, kMakers);
      __syncthreads();
      if (warp < kSolvers) solve_all(head);
      make_values(head);
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
