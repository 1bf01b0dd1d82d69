// Which sequences of a step go by chunks, and how many these are: the same for every kind of layer.
#pragma once

#include "recurrent/recurrence.cuh"

namespace octavo {

constexpr int kChunk = 64;  // tokens; a walk takes as long over them as the launches of chunks do over one
constexpr int kDense = 2;   // most chunks of a sequence, for each that its tokens alone would be

#if OCTAVO_CLUSTERS

// The number of chunks that the tokens of a sequence are cut into: they end where a state is kept.
__device__ inline int chunks_of(const Moves& m, const Sequence& s) {
  int chunks = 0, at = 0;
  for (int k = s.keep; k < s.keeps; ++k) {
    const int after = m.keep_after[k];
    if (m.keep_slot[k] && after > at && after < s.tokens) chunks += (after - at + kChunk - 1) / kChunk, at = after;
  }
  return chunks + (s.tokens - at + kChunk - 1) / kChunk;
}
__device__ inline bool in_chunks(const Moves& m, const Sequence& s) {
  return s.tokens >= kChunk && chunks_of(m, s) <= kDense * ((s.tokens + kChunk - 1) / kChunk);
}
// A sequence of a layer's step as it is walked: empty, and without moves, if it is computed in chunks.
template <class Args>
__device__ inline Sequence walked(const Args& a, int s) {
  Sequence sequence(a.step.moves, s);
  if (a.room.data && in_chunks(a.step.moves, sequence))
    sequence.tokens = sequence.read = sequence.write = 0, sequence.keeps = sequence.keep;
  return sequence;
}

#endif

}  // namespace octavo
