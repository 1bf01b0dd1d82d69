// A sequence's state from one chunk to the next, and the outputs of each. A warp has sixteen columns of a head's matrix, transposed, in
// registers: results of a product are the left operand of the next one as they are.
//
// A warp alone on its scheduler waits for its own products and loads, so a chunk takes as long however many blocks there are. Where
// blocks are enough for all columns twice, two warps have the same columns: one meets them with keys, and tells the other what the
// chunk adds; that one makes outputs meanwhile. Else no warp waits for another. Bits are the same.
#pragma once

#include "recurrent/delta_chunk.cuh"
#include "recurrent/stream.cuh"

namespace octavo {
namespace {

constexpr int kAdvancers = 4, kMostColumns = 16 * kAdvancers;  // warps of a block, columns of a head that these have

// The cut of a head if so many warps have the same columns.
template <int sharing>
struct PieceCut {
  static constexpr int kSharing = sharing, kColumns = kMostColumns / sharing, kPieces = kHead / kColumns;
};
using Apart = PieceCut<1>;
using InPairs = PieceCut<2>;

struct ChunkStage {
  KeyTile keys;
  HeadTile head;
};
// Pairs of warps have half as many columns, and exchange what a chunk adds in the place of the others' values.
struct AdvanceShared {
  ChunkStage stages[2];
  float values[kMostColumns][kChunk + 4];
  uint64_t full[2], empty[2], values_full, values_empty, told[kAdvancers / 2], taken[kAdvancers / 2];

#if OCTAVO_CLUSTERS
  __device__ void set_up() {
    for (int i = 0; i < 2; ++i) barrier_init(shared_address(&full[i]), 1), barrier_init(shared_address(&empty[i]), kAdvancers);
    barrier_init(shared_address(&values_full), 1), barrier_init(shared_address(&values_empty), kAdvancers);
    for (int i = 0; i < kAdvancers / 2; ++i) barrier_init(shared_address(&told[i]), 1), barrier_init(shared_address(&taken[i]), 1);
  }
  __device__ float4* added(int pair) { return reinterpret_cast<float4*>(values[InPairs::kColumns]) + pair * kChunk / 8 * 32; }
#endif
};
static_assert(sizeof(AdvanceShared) <= 227 * 1024);
static_assert(InPairs::kColumns * (kChunk + 4) >= kAdvancers / 2 * kChunk / 8 * 32 * 4);

#if OCTAVO_CLUSTERS

// A block's share of a part: columns of one head of a sequence.
struct Piece {
  const Stretch stretch;
  const int head, column;
};
template <class Cut, class F>
__device__ inline void for_pieces(const ChunkArgs& c, F&& f) {
  const Part part(c.plan);
  for (int at = blockIdx.x; at < part.sequences * c.delta.heads * Cut::kPieces; at += gridDim.x) {
    const int whole = at / Cut::kPieces;
    f(Piece{Stretch(c.plan, part, part.first + whole / c.delta.heads), whole % c.delta.heads, at % Cut::kPieces * Cut::kColumns});
  }
}

// One thread's. Values have one buffer, which is used up in the middle of a chunk.
template <class Cut>
__device__ inline void copy_chunks(const ChunkArgs& c, AdvanceShared& shared) {
  constexpr uint32_t kValueBytes = Cut::kColumns * sizeof(shared.values[0]);
  Turn<2> turn;
  for_pieces<Cut>(c, [&](const Piece& piece) {
    const int key_head = piece.head / (c.delta.heads / c.delta.key_heads);
    for (int at = piece.stretch.begin; at < piece.stretch.end; ++at) {
      const int tile = at - c.plan.begin, head = tile * c.delta.heads + piece.head;
      ChunkStage& to = shared.stages[turn.at];
      const uint32_t done = shared_address(&shared.full[turn.at]);
      barrier_wait(shared_address(&shared.empty[turn.at]), turn.parity ^ 1);
      barrier_expect(done, sizeof(ChunkStage));
      copy_bulk(shared_address(&to.keys), c.keys + tile * c.delta.key_heads + key_head, sizeof(to.keys), done);
      copy_bulk(shared_address(&to.head), c.heads + head, sizeof(to.head), done);
      barrier_wait(shared_address(&shared.values_empty), turn.at ^ 1);
      barrier_expect(shared_address(&shared.values_full), kValueBytes);
      copy_bulk(shared_address(shared.values), c.values[head].at[piece.column], kValueBytes, shared_address(&shared.values_full));
      turn.advance();
    }
  });
}

// A warp that meets its columns with keys, with queries, or with both.
template <class Cut, bool kKeys, bool kQueries>
struct ChunkAdvancer {
  static constexpr int kDeep = kRows / 8, kTokens = kChunk / 8;  // tiles

  const ChunkArgs& c;
  AdvanceShared& shared;
  const int own, row, pair;  // its sixteen columns; of a result: the first of its two rows, which are columns of the matrix, and columns
  float state[kDeep][4];     // [columns][rows]
  Turn<2> turn;              // where there is one buffer for all chunks, its parity is which of both this is

  __device__ ChunkAdvancer(const ChunkArgs& args, AdvanceShared& memory)
      : c(args), shared(memory), own(threadIdx.x / 32 / Cut::kSharing), row(threadIdx.x % 32 / 4), pair(threadIdx.x % 4 * 2) {}

  // This lane's elements of a matrix, and where they lie from the first of them on.
  template <class F>
  __device__ void for_elements(F&& f) {
#pragma unroll
    for (int n = 0; n < kDeep; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) f(state[n][e], (n * 8 + e % 2) * kHead + e / 2 * 8);
  }
  __device__ float* slot(const Piece& piece, int id) const {
    return static_cast<float*>(c.delta.matrices.data) + id * c.delta.matrices.stride + place(piece);
  }
  __device__ float* carried(const Piece& piece, int part) const {
    return c.carry + int64_t(part % 2) * c.delta.heads * kRows * kHead + place(piece);
  }
  __device__ int64_t place(const Piece& piece) const {
    return int64_t(piece.head) * kRows * kHead + piece.column + own * 16 + row + pair * kHead;
  }
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
  // A chunk's part of the state, from the warp that makes it to the one that has the same columns.
  __device__ void tell(const Tokens& added) {
    barrier_wait(shared_address(&shared.taken[own]), turn.at ^ 1);
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
      shared.added(own)[t * 32 + threadIdx.x % 32] = make_float4(added[t][0], added[t][1], added[t][2], added[t][3]);
    arrive(shared.told[own]);
  }
  __device__ void hear(Tokens& added) {
    barrier_wait(shared_address(&shared.told[own]), turn.at);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float4 got = shared.added(own)[t * 32 + threadIdx.x % 32];
      added[t][0] = got.x, added[t][1] = got.y, added[t][2] = got.z, added[t][3] = got.w;
    }
    arrive(shared.taken[own]);
  }
  __device__ static void arrive(uint64_t& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive_once(shared_address(&barrier));
  }
  // The values of a chunk, or what the state leaves of them. A warp that needs none waits for them as well: its arrival for the next
  // chunk would count as that of a warp that has not taken these.
  __device__ void leave_values() {
    barrier_wait(shared_address(&shared.values_full), turn.at);
    arrive(shared.values_empty);
  }
  __device__ void take_values(const HeadTile& head, Tokens& rest) {
    barrier_wait(shared_address(&shared.values_full), turn.at);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float2 into = *reinterpret_cast<const float2*>(head.into + t * 8 + pair);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 v = *reinterpret_cast<const float2*>(&shared.values[own * 16 + row + half * 8][t * 8 + pair]);
        float* x = rest[t] + 2 * half;
        x[0] = __fmaf_rn(-into.x, x[0], v.x), x[1] = __fmaf_rn(-into.y, x[1], v.y);
      }
    }
    arrive(shared.values_empty);
  }
  // Results of each token times its factor.
  __device__ void scale(const float (&factors)[kChunk], Tokens& x) const {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float2 by = *reinterpret_cast<const float2*>(factors + t * 8 + pair);
      x[t][0] *= by.x, x[t][1] *= by.y, x[t][2] *= by.x, x[t][3] *= by.y;
    }
  }
  __device__ void store_outputs(const Tokens& outputs, float* out) const {
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(out + (own * 16 + row + half * 8) * (kChunk + 4) + t * 8 + pair) =
            make_float2(outputs[t][2 * half], outputs[t][2 * half + 1]);
  }
  // A chunk; its outputs go where its values were.
  __device__ void advance(const ChunkStage& stage, float* out) {
    Tokens rest, outputs, added;
    clear(rest), clear(outputs), clear(added);
#pragma unroll
    for (int depth = 0; depth < kDeep / 2; ++depth) {
      const Left left(state[2 * depth], state[2 * depth + 1]);
      if (kKeys) ask(stage.keys.k, left, depth, rest);
      if (kQueries) ask(stage.keys.q, left, depth, outputs);
    }
    if (kQueries) scale(stage.head.into, outputs);
    if (kKeys) take_values(stage.head, rest), mix(stage.head.solved, rest, added);
    if (!kQueries) tell(added);
    if (!kKeys) leave_values(), hear(added);
    if (kQueries) mix(stage.head.masked, added, outputs);
    const float decay = stage.head.into[kChunk - 1];
#pragma unroll
    for (int n = 0; n < kDeep; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[n][e] *= decay;
    scale(stage.head.left, added);
    add(stage.keys.k, added);
    if (kQueries) store_outputs(outputs, out);
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
      arrive(shared.empty[turn.at]);
      turn.advance();
      if (!kKeys) continue;
      const int tokens = chunk.first + chunk.count;
      keeps.pass(tokens);
      keeps.at(tokens, [&](int kept) { store(slot(piece, kept)); });
    }
    if (!kKeys) return;
    if (!stretch.last) store(carried(piece, c.plan.part + 1));
    else if (s.write) store(slot(piece, s.write));
  }
};

template <class Cut, bool kKeys, bool kQueries>
__device__ inline void advance_pieces(const ChunkArgs& c, AdvanceShared& shared) {
  ChunkAdvancer<Cut, kKeys, kQueries> advancer(c, shared);
  for_pieces<Cut>(c, [&](const Piece& piece) { advancer.advance(piece); });
}

#endif

__global__ void __launch_bounds__(32 * (kAdvancers + 1), 1) advance_chunks(const __grid_constant__ ChunkArgs c) {
#if OCTAVO_CLUSTERS
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<AdvanceShared*>(memory);
  if (threadIdx.x == 0) shared.set_up();
  __syncthreads();
  wait_for_previous_kernel();
  launch_next_kernel();
  const bool apart = Part(c.plan).sequences * c.delta.heads * InPairs::kPieces > int(gridDim.x);
  const int warp = threadIdx.x / 32;
  if (warp == kAdvancers) {
    if (threadIdx.x % 32 > 0) return;
    if (apart) copy_chunks<Apart>(c, shared);
    else copy_chunks<InPairs>(c, shared);
  } else if (apart) {
    advance_pieces<Apart, true, true>(c, shared);
  } else if (warp % 2 == 0) {
    advance_pieces<InPairs, true, false>(c, shared);
  } else {
    advance_pieces<InPairs, false, true>(c, shared);
  }
#endif
}

}  // namespace
}  // namespace octavo
