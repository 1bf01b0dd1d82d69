// The chunks of a step, in the order of its sequences, and the parts in which they are computed: the same for every kind of layer.
#pragma once

#include "recurrent/chunk.h"
#include "recurrent/chunk_cut.cuh"

namespace octavo {

namespace {

constexpr int kPlanners = 256;  // threads

// A chunk: tokens of the sequence at place `order` among those in chunks.
struct Chunk {
  int first, count, order, unused;
};
// All chunks of a step, and one part of them: `tiles` chunks from `begin` on.
struct ChunkPlan {
  Moves moves;
  int* counts;  // chunks, and sequences in chunks
  Chunk* chunks;
  int2* order;  // sequences in chunks, and the first chunk of each
  int begin, tiles, part;
  bool last;
};

// Pieces of memory, one behind the other.
struct Room {
  char* at;
  int64_t used = 0;

  template <class P>
  P* take(int64_t count) {
    P* piece = reinterpret_cast<P*>(at + used);
    used += (count * int64_t(sizeof(P)) + 255) / 256 * 256;
    return piece;
  }
};
// The most chunks that a step can have.
inline int most_chunks(const RecurrentArgs& step) {
  const int whole = step.rows / kChunk;
  return kDense * (whole + min(step.moves.sequences, whole));
}
inline ChunkPlan plan_in(Room& room, const RecurrentArgs& step, int tiles) {
  const int most = most_chunks(step);
  ChunkPlan plan{};
  plan.moves = step.moves;
  plan.counts = room.take<int>(2), plan.chunks = room.take<Chunk>(most), plan.order = room.take<int2>(step.rows / kChunk);
  plan.tiles = min(tiles, most);
  return plan;
}

#if OCTAVO_CLUSTERS

__device__ inline Chunk chunk_at(const ChunkPlan& p, int chunk) {
  const int4 words = __ldcg(reinterpret_cast<const int4*>(p.chunks + chunk));
  return {words.x, words.y, words.z, words.w};
}
__device__ inline Sequence sequence_at(const ChunkPlan& p, int order) { return {p.moves, __ldcg(&p.order[order].x)}; }

// The chunks of a part that there are, and their sequences.
struct Part {
  int begin, end, first, sequences;

  __device__ Part(const ChunkPlan& p) : begin(p.begin), end(min(__ldcg(p.counts), p.begin + p.tiles)), first(0), sequences(0) {
    if (begin >= end) end = begin;
    else first = order(p, begin), sequences = order(p, end - 1) - first + 1;
  }
  __device__ static int order(const ChunkPlan& p, int chunk) { return __ldcg(&p.chunks[chunk].order); }
};
// The chunks of one sequence in a part, and whether these are its first and last.
struct Stretch {
  Sequence sequence;
  int begin, end;
  bool first, last;

  __device__ Stretch(const ChunkPlan& p, const Part& part, int order) : sequence(sequence_at(p, order)) {
    const bool back = order + 1 == __ldcg(p.counts + 1);
    const int from = __ldcg(&p.order[order].y), to = __ldcg(back ? p.counts : &p.order[order + 1].y);
    begin = max(part.begin, from), end = min(part.end, to);
    first = begin == from, last = end == to;
  }
};
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
__device__ inline void write_chunks(const ChunkPlan& p, const Sequence& s, int at, int order) {
  const Moves& moves = p.moves;
  int keep = s.keep;
  for (int first = 0; first < s.tokens; ++at) {
    int end = min(first + kChunk, s.tokens);
    while (keep < s.keeps && (moves.keep_slot[keep] == 0 || moves.keep_after[keep] <= first)) ++keep;
    if (keep < s.keeps) end = min(end, moves.keep_after[keep]);
    p.chunks[at] = {first, end - first, order, 0};
    first = end;
  }
}

#endif

__global__ void __launch_bounds__(kPlanners) plan_chunks(const __grid_constant__ ChunkPlan p) {
#if OCTAVO_CLUSTERS
  __shared__ int of_warps[kPlanners / 32];
  wait_for_previous_kernel();
  launch_next_kernel();
  const Moves& moves = p.moves;
  int chunks = 0, sequences = 0;
  for (int first = 0; first < moves.sequences; first += kPlanners) {
    const int s = min(first + int(threadIdx.x), moves.sequences - 1);
    const Sequence sequence(moves, s);
    const bool taken = first + int(threadIdx.x) < moves.sequences && in_chunks(moves, sequence);
    const int2 at = before_and_all(taken ? chunks_of(moves, sequence) : 0, of_warps);
    const int2 order = before_and_all(taken, of_warps);
    if (taken) {
      p.order[sequences + order.x] = make_int2(s, chunks + at.x);
      write_chunks(p, sequence, chunks + at.x, sequences + order.x);
    }
    chunks += at.y, sequences += order.y;
  }
  if (threadIdx.x == 0) p.counts[0] = chunks, p.counts[1] = sequences;
#endif
}

// Plans the chunks of a step of at most `most`, then launches what computes them, part after part.
template <class Args, class F>
cudaError_t for_parts(Args c, int most, cudaStream_t stream, F&& launch) {
  ChunkPlan& plan = c.plan;
  cudaError_t error = launch_after(plan_chunks, {dim3(1), kPlanners}, stream, plan);
  for (; plan.begin < most && error == cudaSuccess; plan.begin += plan.tiles, ++plan.part) {
    plan.last = plan.begin + plan.tiles >= most;
    error = launch(c);
  }
  return error;
}

}  // namespace
}  // namespace octavo
