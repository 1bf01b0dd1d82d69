// What becomes of the outputs of chunks: their gated norm; and the columns of the convolution, which no chunk reads any more.
#pragma once

#include "recurrent/delta_chunk.cuh"

namespace octavo {
namespace {

constexpr int kFinishers = 8;  // warps of a block

#if OCTAVO_CLUSTERS

// The gated norm of a head's outputs of one chunk, a token by each warp.
template <class T>
__device__ inline void finish_chunk(const ChunkArgs& c, ValueTile& shared, int at, int head) {
  const DeltaArgs& a = c.delta;
  const Chunk chunk = chunk_at(c.plan, at);
  const Sequence sequence = sequence_at(c.plan, chunk.order);
  const auto* from = reinterpret_cast<const uint4*>(c.values + (at - c.plan.begin) * a.heads + head);
  for (int i = threadIdx.x; i < int(sizeof(ValueTile) / sizeof(uint4)); i += 32 * kFinishers)
    reinterpret_cast<uint4*>(&shared)[i] = __ldcg(from + i);
  __syncthreads();
  const int lane = threadIdx.x % 32, gate = 2 * a.key_heads * kRows + a.heads * kHead;
  for (int t = threadIdx.x / 32; t < chunk.count; t += kFinishers) {
    const int64_t row = sequence.begin + chunk.first + t;
    const T* z = static_cast<const T*>(a.step.x) + row * a.step.x_stride + gate + head * kHead;
    T* out = static_cast<T*>(a.step.out) + row * a.step.out_stride + head * kHead;
    float x[kHead / 32], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kHead / 32; ++i) x[i] = shared.at[32 * i + lane][t], sum = __fmaf_rn(x[i], x[i], sum);
    const float inverse = inverse_root(warp_sum(sum) * (1.0f / kHead) + a.norm.eps);
#pragma unroll
    for (int i = 0; i < kHead / 32; ++i) {
      const int column = 32 * i + lane;
      const float normed = x[i] * inverse * a.norm.weight[head * kHead + column];
      out[column] = from_float<T>(normed * silu_of(to_float(load_fresh<T, 1>(z + column).at[0])));
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
