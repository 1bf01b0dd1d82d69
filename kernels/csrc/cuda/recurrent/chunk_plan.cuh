// The chunks of a step, in the order of its sequences.
#pragma once

#include "recurrent/chunk.cuh"

namespace octavo {
namespace {

constexpr int kPlanners = 256;  // threads

#if OCTAVO_CLUSTERS

// Sums of a value over the threads before this one, and over all of them.
__device__ inline int2 before_and_all(int value, int (&of_warps)[kPlanners / 32]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int from = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += from;
  }
  __syncthreads();
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  int before = sum - value, all = 0;
#pragma unroll
  for (int i = 0; i < kPlanners / 32; ++i) {
    if (i < warp) before += of_warps[i];
    all += of_warps[i];
  }
  return make_int2(before, all);
}
__device__ inline void write_chunks(const ChunkArgs& c, const Sequence& s, int at, int order) {
  const Moves& moves = c.delta.step.moves;
  int keep = s.keep;
  for (int first = 0; first < s.tokens; ++at) {
    int end = min(first + kChunk, s.tokens);
    while (keep < s.keeps && (moves.keep_slot[keep] == 0 || moves.keep_after[keep] <= first)) ++keep;
    if (keep < s.keeps) end = min(end, moves.keep_after[keep]);
    c.chunks[at] = {first, end - first, order, 0};
    first = end;
  }
}

#endif

__global__ void __launch_bounds__(kPlanners) plan_chunks(const __grid_constant__ ChunkArgs c) {
#if OCTAVO_CLUSTERS
  __shared__ int of_warps[kPlanners / 32];
  wait_for_previous_kernel();
  launch_next_kernel();
  const Moves& moves = c.delta.step.moves;
  int chunks = 0, sequences = 0;
  for (int first = 0; first < moves.sequences; first += kPlanners) {
    const int s = min(first + int(threadIdx.x), moves.sequences - 1);
    const Sequence sequence(moves, s);
    const bool taken = first + int(threadIdx.x) < moves.sequences && in_chunks(moves, sequence);
    const int2 at = before_and_all(taken ? chunks_of(moves, sequence) : 0, of_warps);
    const int2 order = before_and_all(taken, of_warps);
    if (taken) {
      c.order[sequences + order.x] = make_int2(s, chunks + at.x);
      write_chunks(c, sequence, chunks + at.x, sequences + order.x);
    }
    chunks += at.y, sequences += order.y;
  }
  if (threadIdx.x == 0) c.counts[0] = chunks, c.counts[1] = sequences;
#endif
}

}  // namespace
}  // namespace octavo
