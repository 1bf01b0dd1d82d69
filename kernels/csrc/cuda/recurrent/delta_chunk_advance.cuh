// A sequence's state from one chunk to the next, and the outputs of each. A warp has sixteen columns of a head's matrix, transposed, in
// registers: results of a product are the left operand of the next one as they are, and no warp waits for another.
#pragma once

#include "recurrent/delta_chunk.cuh"
#include "recurrent/stream.cuh"

namespace octavo {
namespace {

constexpr int kAdvancers = 2, kPieceColumns = 16 * kAdvancers, kPieces = kHead / kPieceColumns;  // of a head

struct ChunkStage {
  KeyTile keys;
  HeadTile head;
  float values[kPieceColumns][kChunk + 4];
};
struct AdvanceShared {
  ChunkStage stages[2];
  uint64_t full[2], empty[2];
};

#if OCTAVO_CLUSTERS

// A block's share of a part: columns of one head of a sequence.
struct Piece {
  const Stretch stretch;
  const int head, column;

  __device__ Piece(const ChunkArgs& c, const Part& part, int at)
      : stretch(c.plan, part, part.first + at / (c.delta.heads * kPieces)), head(at / kPieces % c.delta.heads),
        column(at % kPieces * kPieceColumns) {}
};
template <class F>
__device__ inline void for_pieces(const ChunkArgs& c, F&& f) {
  const Part part(c.plan);
  for (int at = blockIdx.x; at < part.sequences * c.delta.heads * kPieces; at += gridDim.x) f(Piece(c, part, at));
}

// One thread's.
__device__ inline void copy_chunks(const ChunkArgs& c, AdvanceShared& shared) {
  Turn<2> turn;
  for_pieces(c, [&](const Piece& piece) {
    const int key_head = piece.head / (c.delta.heads / c.delta.key_heads);
    for (int at = piece.stretch.begin; at < piece.stretch.end; ++at) {
      const int tile = at - c.plan.begin, head = tile * c.delta.heads + piece.head;
      ChunkStage& to = shared.stages[turn.at];
      const uint32_t done = shared_address(&shared.full[turn.at]);
      barrier_wait(shared_address(&shared.empty[turn.at]), turn.parity ^ 1);
      barrier_expect(done, sizeof(ChunkStage));
      copy_bulk(shared_address(&to.keys), c.keys + tile * c.delta.key_heads + key_head, sizeof(to.keys), done);
      copy_bulk(shared_address(&to.head), c.heads + head, sizeof(to.head), done);
      copy_bulk(shared_address(&to.values), c.values[head].at[piece.column], sizeof(to.values), done);
      turn.advance();
    }
  });
}

struct ChunkAdvancer {
  static constexpr int kDeep = kRows / 8, kTokens = kChunk / 8;  // tiles

  const ChunkArgs& c;
  AdvanceShared& shared;
  const int warp, row, pair;  // of a result: the first of its two rows, which are columns of the matrix, and of its columns
  float state[kDeep][4];      // [columns][rows]
  Turn<2> turn;

  __device__ ChunkAdvancer(const ChunkArgs& args, AdvanceShared& memory)
      : c(args), shared(memory), warp(threadIdx.x / 32), row(threadIdx.x % 32 / 4), pair(threadIdx.x % 4 * 2) {}

  // This lane's elements of a matrix, and where they lie from its first column on.
  template <class F>
  __device__ void for_elements(F&& f) {
#pragma unroll
    for (int n = 0; n < kDeep; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) f(state[n][e], (n * 8 + pair + e % 2) * kHead + warp * 16 + row + e / 2 * 8);
  }
  __device__ float* slot(const Piece& piece, int id) const {
    return static_cast<float*>(c.delta.matrices.data) + id * c.delta.matrices.stride + place(piece);
  }
  __device__ float* carried(const Piece& piece, int part) const {
    return c.carry + int64_t(part % 2) * c.delta.heads * kRows * kHead + place(piece);
  }
  __device__ static int64_t place(const Piece& piece) { return int64_t(piece.head) * kRows * kHead + piece.column; }
  __device__ void load(const float* from) {
    for_elements([&](float& x, int at) { x = from ? __ldcg(from + at) : 0.0f; });
  }
  __device__ void store(float* to) {
    for_elements([&](float& x, int at) { to[at] = x; });
  }

  using Tokens = float[kTokens][4];
  __device__ static void clear(Tokens& x) {
#pragma unroll
    for (int i = 0; i < 4 * kTokens; ++i) x[i / 4][i % 4] = 0.0f;
  }
  // A product of two parts of each factor, all of it but that of both low parts, with four pairs of tiles from `first` on. `get` loads a
  // part of a pair. One part after the other, so that eight products lie between two that wait for each other.
  template <class Get>
  __device__ static void multiply(float (*to)[4], const Left& left, int first, Get&& get) {
    uint32_t right[4][4];
    const auto each = [&](const uint32_t (&part)[4]) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i / 2 >= first) mma<bf16>(to[i], part, right[i / 2][i % 2 * 2], right[i / 2][i % 2 * 2 + 1]);
    };
    const auto load = [&](int part) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i >= first) get(right[i], part, i);
    };
    load(0), each(left.high), each(left.low);
    load(1), each(left.high);
  }
  // Products of the state with keys or queries.
  using Rows = bf16[2][kChunk][kRows + 8];
  __device__ static void ask(const Rows& rows, const Left& left, int depth, Tokens& to) {
    multiply(to, left, 0, [&](uint32_t (&right)[4], int part, int i) { ldmatrix(right, quarter(rows[part], 16 * i, 16 * depth)); });
  }
  // Products with a triangle of tokens and earlier ones.
  __device__ static void mix(const bf16 (&triangle)[2][kChunk][kChunk + 8], const Tokens& from, Tokens& to) {
#pragma unroll
    for (int earlier = 0; earlier < 4; ++earlier)
      multiply(to, Left(from[2 * earlier], from[2 * earlier + 1]), earlier, [&](uint32_t (&right)[4], int part, int i) {
        ldmatrix(right, quarter(triangle[part], 16 * i, 16 * earlier));
      });
  }
  // Adds keys with their values to the state.
  __device__ void add(const Rows& keys, const Tokens& added) {
#pragma unroll
    for (int t = 0; t < kTokens / 2; ++t) {
      const Left left(added[2 * t], added[2 * t + 1]);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        multiply(state + 8 * half, left, 0, [&](uint32_t (&right)[4], int part, int i) {
          uint32_t got[4];
          ldmatrix_transposed(got, quarter(keys[part], 16 * t, 64 * half + 16 * i));
          right[0] = got[0], right[1] = got[2], right[2] = got[1], right[3] = got[3];
        });
    }
  }
  // A chunk; its outputs go where its values were.
  __device__ void advance(const ChunkStage& stage, float* out) {
    Tokens rest, outputs, added;
    clear(rest), clear(outputs), clear(added);
#pragma unroll
    for (int depth = 0; depth < kDeep / 2; ++depth) {
      const Left left(state[2 * depth], state[2 * depth + 1]);
      ask(stage.keys.k, left, depth, rest), ask(stage.keys.q, left, depth, outputs);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float2 into = *reinterpret_cast<const float2*>(stage.head.into + t * 8 + pair);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 v = *reinterpret_cast<const float2*>(&stage.values[warp * 16 + row + half * 8][t * 8 + pair]);
        float *x = rest[t] + 2 * half, *o = outputs[t] + 2 * half;
        x[0] = __fmaf_rn(-into.x, x[0], v.x), x[1] = __fmaf_rn(-into.y, x[1], v.y);
        o[0] *= into.x, o[1] *= into.y;
      }
    }
    mix(stage.head.solved, rest, added);
    mix(stage.head.masked, added, outputs);
    const float decay = stage.head.into[kChunk - 1];
#pragma unroll
    for (int n = 0; n < kDeep; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[n][e] *= decay;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float2 left = *reinterpret_cast<const float2*>(stage.head.left + t * 8 + pair);
      added[t][0] *= left.x, added[t][1] *= left.y, added[t][2] *= left.x, added[t][3] *= left.y;
    }
    add(stage.keys.k, added);
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(out + (warp * 16 + row + half * 8) * (kChunk + 4) + t * 8 + pair) =
            make_float2(outputs[t][2 * half], outputs[t][2 * half + 1]);
  }
  __device__ void advance(const Piece& piece) {
    const Stretch& stretch = piece.stretch;
    const Sequence& s = stretch.sequence;
    load(!stretch.first ? carried(piece, c.plan.part) : s.read ? slot(piece, s.read) : nullptr);
    Keeps keeps(c.delta.step.moves, s);
    for (int at = stretch.begin; at < stretch.end; ++at) {
      const Chunk chunk = chunk_at(c.plan, at);
      barrier_wait(shared_address(&shared.full[turn.at]), turn.parity);
      advance(shared.stages[turn.at], c.values[(at - c.plan.begin) * c.delta.heads + piece.head].at[piece.column]);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive_once(shared_address(&shared.empty[turn.at]));
      turn.advance();
      const int tokens = chunk.first + chunk.count;
      keeps.pass(tokens);
      keeps.at(tokens, [&](int kept) { store(slot(piece, kept)); });
    }
    if (!stretch.last) store(carried(piece, c.plan.part + 1));
    else if (s.write) store(slot(piece, s.write));
  }
};

#endif

__global__ void __launch_bounds__(32 * (kAdvancers + 1), 1) advance_chunks(const __grid_constant__ ChunkArgs c) {
#if OCTAVO_CLUSTERS
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<AdvanceShared*>(memory);
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; ++i) barrier_init(shared_address(&shared.full[i]), 1), barrier_init(shared_address(&shared.empty[i]), kAdvancers);
  __syncthreads();
  wait_for_previous_kernel();
  launch_next_kernel();
  if (threadIdx.x < 32 * kAdvancers) {
    ChunkAdvancer advancer(c, shared);
    for_pieces(c, [&](const Piece& piece) { advancer.advance(piece); });
  } else if (threadIdx.x == 32 * kAdvancers) {
    copy_chunks(c, shared);
  }
#endif
}

}  // namespace
}  // namespace octavo
