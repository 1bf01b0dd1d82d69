// What becomes of the outputs of chunks: their gated norm; and the columns of the convolution, which no chunk reads any more.
#pragma once

#include "recurrent/delta_chunk.cuh"

namespace octavo {
namespace {

constexpr int kFinishers = 8, kAhead = 4;  // warps of a block, tokens whose gates a warp reads at a time

#if OCTAVO_CLUSTERS

// The gated norm of a head's outputs of one chunk, a token by each warp.
template <class T>
__device__ inline void finish_chunk(const ChunkArgs& c, ValueTile& shared, int at, int head) {
  const DeltaArgs& a = c.delta;
  const Chunk chunk = chunk_at(c.plan, at);
  const Sequence sequence = sequence_at(c.plan, chunk.order);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, gate = 2 * a.key_heads * kRows + a.heads * kHead;
  // Gates of the tokens that come next, asked for before others are computed.
  T gates[kAhead][kHead / 32];
  const auto row_of = [&](int t) { return int64_t(sequence.begin + chunk.first + min(t, chunk.count - 1)); };
  const auto read = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead * kHead / 32; ++i) {
      const int64_t row = row_of(first + i / (kHead / 32) * kFinishers);
      const T* z = static_cast<const T*>(a.step.x) + row * a.step.x_stride + gate + head * kHead;
      gates[i / (kHead / 32)][i % (kHead / 32)] = load_fresh<T, 1>(z + i % (kHead / 32) * 32 + lane).at[0];
    }
  };
  read(warp);
  const auto* from = reinterpret_cast<const uint4*>(c.values + (at - c.plan.begin) * a.heads + head);
  for (int i = threadIdx.x; i < int(sizeof(ValueTile) / sizeof(uint4)); i += 32 * kFinishers)
    reinterpret_cast<uint4*>(&shared)[i] = __ldcg(from + i);
  __syncthreads();
  for (int first = warp; first < chunk.count; first += kAhead * kFinishers) {
    if (first > warp) read(first);
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int t = first + ahead * kFinishers;
      if (t >= chunk.count) break;
      T* out = static_cast<T*>(a.step.out) + row_of(t) * a.step.out_stride + head * kHead;
      float x[kHead / 32], sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kHead / 32; ++i) x[i] = shared.at[32 * i + lane][t], sum = __fmaf_rn(x[i], x[i], sum);
      const float inverse = inverse_root(warp_sum(sum) * (1.0f / kHead) + a.norm.eps);
#pragma unroll
      for (int i = 0; i < kHead / 32; ++i) {
        const int column = 32 * i + lane;
        const float normed = x[i] * inverse * a.norm.weight[head * kHead + column];
        out[column] = from_float<T>(normed * silu_of(to_float(gates[ahead][i])));
      }
    }
  }
  __syncthreads();
}

#endif

template <class T>
__global__ void __launch_bounds__(32 * kFinishers, 4) finish_chunks(const __grid_constant__ ChunkArgs c) {
#if OCTAVO_CLUSTERS
  __shared__ ValueTile shared;
  wait_for_previous_kernel();
  launch_next_kernel();
  const Part part(c.plan);
  const int heads = c.delta.heads;
  for (int at = blockIdx.x; at < (part.end - part.begin) * heads; at += gridDim.x)
    finish_chunk<T>(c, shared, part.begin + at / heads, at % heads);
  if (!c.plan.last) return;
  const int quads = (c.delta.step.convolution.channels / 4 + 32 * kFinishers - 1) / (32 * kFinishers);
  for (int at = blockIdx.x; at < __ldcg(c.plan.counts + 1) * quads; at += gridDim.x)
    move_columns<T, kTaps>(c.delta.step, sequence_at(c.plan, at / quads), 0, (at % quads * 32 * kFinishers + int(threadIdx.x)) * 4);
#endif
}

}  // namespace
}  // namespace octavo
