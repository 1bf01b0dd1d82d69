// What is made of chunks of the gated delta rule, and where it lies.
#pragma once

#include "recurrent/chunk.h"
#include "recurrent/rule.cuh"

namespace octavo {

namespace {

// A chunk: tokens of the sequence at place `order` among those in chunks.
struct Chunk {
  int first, count, order, unused;
};
// Two parts of a number as bf16: its own rounding, and what that leaves. Rows are longer than they need be, so that eight of them lie
// in different banks.
struct KeyTile {
  bf16 k[2][kChunk][kRows + 8], q[2][kChunk][kRows + 8];
};
struct HeadTile {
  bf16 solved[2][kChunk][kChunk + 8];  // (I + A)^-1 diag(beta), by token and earlier token
  bf16 masked[2][kChunk][kChunk + 8];  // q . k, decayed from the latter on
  float into[kChunk], left[kChunk];    // decay up to a token, and from it to the end
};
// Values of a head by column, and in their place its outputs.
struct ValueTile {
  float at[kHead][kChunk + 4];
};
static_assert(sizeof(KeyTile) % 16 == 0 && sizeof(HeadTile) % 16 == 0 && sizeof(ValueTile) % 16 == 0);

// One part of a step: `tiles` chunks from `begin` on. A state goes from one part to the next through `carry[2][heads]`.
struct ChunkArgs {
  DeltaArgs delta;
  int* counts;  // chunks, and sequences in chunks
  Chunk* chunks;
  int2* order;  // sequences in chunks, and the first chunk of each
  float* carry;
  KeyTile* keys;
  HeadTile* heads;
  ValueTile* values;
  int begin, tiles, part;
  bool last;
};

#if OCTAVO_CLUSTERS

// The chunks of a part that there are, and their sequences.
struct Part {
  int begin, end, first, sequences;

  __device__ Part(const ChunkArgs& c)
      : begin(c.begin), end(min(__ldcg(c.counts), c.begin + c.tiles)), first(0), sequences(0) {
    if (begin >= end) end = begin;
    else first = order(c, begin), sequences = order(c, end - 1) - first + 1;
  }
  __device__ static int order(const ChunkArgs& c, int chunk) { return __ldcg(&c.chunks[chunk].order); }
};
__device__ inline Chunk chunk_at(const ChunkArgs& c, int chunk) {
  const int4 words = __ldcg(reinterpret_cast<const int4*>(c.chunks + chunk));
  return {words.x, words.y, words.z, words.w};
}
__device__ inline Sequence sequence_at(const ChunkArgs& c, int order) {
  return {c.delta.step.moves, __ldcg(&c.order[order].x)};
}
// The first chunk of a sequence, and the one behind its last.
__device__ inline int2 chunks_at(const ChunkArgs& c, int order) {
  const bool back = order + 1 == __ldcg(c.counts + 1);
  return make_int2(__ldcg(&c.order[order].y), __ldcg(back ? c.counts : &c.order[order + 1].y));
}

// Two floats as pairs of bf16.
struct Split {
  uint32_t high, low;

  __device__ Split(float a, float b) : high(pack<bf16>(a, b)) {
    const float2 rounded = unpack<bf16>(high);
    low = pack<bf16>(a - rounded.x, b - rounded.y);
  }
};
// The left operand of a product from two neighbouring tiles of results: pairs of columns stay pairs.
struct Left {
  uint32_t high[4], low[4];

  __device__ Left(const float (&a)[4], const float (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Split split = i < 2 ? Split(a[2 * i], a[2 * i + 1]) : Split(b[2 * i - 4], b[2 * i - 3]);
      high[i] = split.high, low[i] = split.low;
    }
  }
};
// Where a lane's row of four matrices begins, which lie side by side in pairs, one pair below the other.
template <int kWidth>
__device__ inline uint32_t quarter(const bf16 (&rows)[kChunk][kWidth], int row, int column) {
  const int lane = threadIdx.x % 32;
  return shared_address(&rows[row + lane % 8 + lane / 16 * 8][column + lane / 8 % 2 * 8]);
}

#endif

}  // namespace
}  // namespace octavo
