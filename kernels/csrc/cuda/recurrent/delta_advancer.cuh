// The warps of a block that have a head's state, and advance it by one token after the other.
#pragma once

#include "recurrent/delta.cuh"

namespace octavo {
namespace {

#if OCTAVO_CLUSTERS

// One of the warps that have the state.
template <class T, class C>
struct Advancer {
  using Own = State<C::kWide, C::kRows>;
  static constexpr int kWide = C::kWide, kTokens = C::kTokens, kHeld = Own::kHeld;

  const DeltaArgs& a;
  const Sequence& sequence;
  Shared<C>& shared;
  const int lane, column, place;  // the first of its columns of the block; its place among the four of a column
  const int64_t offset;           // of its columns in a slot
  Own state;

  // `warp`: its number among those that have the state.
  __device__ Advancer(const DeltaArgs& args, const Place<C>& at, const Sequence& s, Shared<C>& memory, int warp)
      : a(args), sequence(s), shared(memory), lane(threadIdx.x % 32),
        column(warp * kLaneColumns * kWide + lane % kLaneColumns * kWide), place(lane / kLaneColumns),
        offset(int64_t(at.head) * C::kRows * C::kHead + at.part * C::kColumns + column) {}

  __device__ float* slot(int id) const { return static_cast<float*>(a.matrices.data) + id * a.matrices.stride + offset; }

  __device__ void advance(Stage<C>& stage, int t) {
    const float4 gates = stage.gates[t];
    float of_k[kWide][2] = {}, of_q[kWide][2] = {};
    Elements<float, 4> k[kHeld / 4];
    const auto four = [&](const float* of, int j) {
      return *reinterpret_cast<const Elements<float, 4>*>(of + Own::row(place, 4 * j));
    };
#pragma unroll
    for (int j = 0; j < kHeld / 4; ++j) {
      k[j] = four(stage.k[t], j);
      const auto q = four(stage.q[t], j);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int w = 0; w < kWide; ++w) {
          of_k[w][e / 2] = __fmaf_rn(state.at[w][4 * j + e], k[j].at[e], of_k[w][e / 2]);
          of_q[w][e / 2] = __fmaf_rn(state.at[w][4 * j + e], q.at[e], of_q[w][e / 2]);
        }
    }
    const auto v = *reinterpret_cast<const Elements<float, kWide>*>(stage.v[t] + column);
    Elements<float, kWide> o;
    float d[kWide], along[2 * kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w)
      along[2 * w] = __fadd_rn(of_k[w][0], of_k[w][1]), along[2 * w + 1] = __fadd_rn(of_q[w][0], of_q[w][1]);
#pragma unroll
    for (int w = 0; w < kWide; ++w)
#pragma unroll
      for (int i = 0; i < kHeld; ++i) state.at[w][i] = __fmul_rn(gates.x, state.at[w][i]);
    sum_columns(along);
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      d[w] = __fmul_rn(gates.y, __fmaf_rn(-gates.x, along[2 * w], v.at[w]));
      o.at[w] = __fmaf_rn(gates.z, d[w], __fmul_rn(gates.x, along[2 * w + 1]));
    }
    if (place == 0) *reinterpret_cast<Elements<float, kWide>*>(stage.o[t] + column) = o;
#pragma unroll
    for (int j = 0; j < kHeld / 4; ++j) {
      const auto again = C::kHolds ? k[j] : four(stage.k[t], j);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int w = 0; w < kWide; ++w)
          state.at[w][4 * j + e] = __fmaf_rn(again.at[e], d[w], state.at[w][4 * j + e]);
    }
  }

  // All tokens of the sequence, whose stages are counted from `base` on; its slots have the state then.
  __device__ void advance_all(int base) {
    Keeps keeps(a.step.moves, sequence);
    for (int first = 0; first < sequence.tokens; first += kTokens) {
      const int stage = base + first / kTokens;
      Handover::wait_for(shared.handover.made, stage);
      const int count = min(kTokens, sequence.tokens - first);
      for (int t = 0; t < count; ++t) {
        advance(shared.stages[stage % 2], t);
        keeps.at(first + t + 1, [&](int kept) { state.store(slot(kept), C::kHead, place); });
      }
      Handover::tell(shared.handover.used, stage);
    }
    if (sequence.write && (sequence.tokens > 0 || sequence.write != sequence.read)) state.store(slot(sequence.write), C::kHead, place);
  }
  __device__ void run() {
    tell_cluster();
    state.load(sequence.read ? slot(sequence.read) : nullptr, C::kHead, place);
    advance_all(0);
    wait_for_cluster();
  }
};

#endif

}  // namespace
}  // namespace octavo
