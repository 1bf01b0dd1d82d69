// The warps of a block that make what tokens need (convolution, lengths of q and k, gates) and what becomes of their outputs.
#pragma once

#include "recurrent/delta.cuh"

namespace octavo {
namespace {

#if OCTAVO_CLUSTERS

// One of the warps that make what tokens need, and their norms.
template <class T, class C>
struct Helper {
  static constexpr int kOwn = C::kOwn, kPair = C::kPair, kHelpers = C::kHelpers, kTokens = C::kTokens;
  static constexpr int kTurn = kHelpers / 2;  // from the tokens that a warp makes keys of to those of its values
  static constexpr int kLines = kTaps + kPair - 1;
  struct Inputs {  // of the convolution, and of gates
    Words<T, kKey> q[kLines], k[kLines];
    Words<T, kOwn> v[kLines];
    T a, b;
  };
  using Own = Elements<float, kOwn>;  // values of a token that this lane has the norm of
  struct Outputs {
    Words<T, kOwn> z[kPair];
    float o[kPair][kOwn], squares[kPair];
  };

  const DeltaArgs& a;
  const Place<C>& place;
  const Sequence& sequence;
  Shared<C>& shared;
  const int base;  // stages of sequences before this one
  const int lane, warp, column;
  const Channels<C> channels;
  const Line<T> line;

  __device__ Helper(const DeltaArgs& args, const Place<C>& at, const Sequence& s, Shared<C>& memory, int stages_before = 0)
      : a(args), place(at), sequence(s), shared(memory), base(stages_before), lane(threadIdx.x % 32),
        warp(threadIdx.x / 32 % kHelpers),
        column(at.part * C::kColumns + lane * kOwn), channels(args, at.key_head, at.head), line(args.step, s, 0) {
    if (warp == 1 && lane == 0) shared.rate = a.rates[at.head], shared.dt_bias = a.dt_bias[at.head];
    if (warp == 0) *own(shared.norm) = *reinterpret_cast<const Own*>(a.norm.weight + at.head * C::kHead + column);
    const Convolution& c = a.step.convolution;
    for (int tap = warp; tap < kTaps; tap += kHelpers) take_weights(static_cast<const T*>(c.weight) + tap * c.channels, tap);
    if (c.bias && warp == 0) take_weights(c.bias, kTaps);
    meet();
  }
  // These warps among themselves.
  __device__ static void meet() { barrier_sync(kTaken + int(threadIdx.x) / (32 * kHelpers), 32 * kHelpers); }
  // Of a key's values a lane has some from `key` on. Lanes behind them load what the last one does, and are zeros in sums.
  static constexpr int kLast = C::kRows / kKey - 1;
  __device__ int key() const { return (kLast == 31 || lane < kLast ? lane : kLast) * kKey; }
  __device__ void take_weights(const void* from, int tap) {
    float* to = shared.weights[tap];
    widen_weights<T, kKey>(from, channels.q + key(), to + lane * kKey);
    widen_weights<T, kKey>(from, channels.k + key(), to + kRows + lane * kKey);
    widen_weights<T, kOwn>(from, channels.v + column, to + 2 * kRows + lane * kOwn);
  }

  __device__ Own* own(float* of) const { return reinterpret_cast<Own*>(of + lane * kOwn); }
  __device__ bool biased() const { return a.step.convolution.bias; }
  __device__ const T* row(int t) const { return line.rows + int64_t(t) * line.stride; }
  // The first of the two tokens of a stage that this warp makes keys of, and that it makes values of.
  __device__ int first(int stage, int turn = 0) const { return stage * kTokens + (warp + turn) % kHelpers * kPair; }

  __device__ Inputs fetch(int stage) const {
    Inputs in;
    const int last = sequence.tokens - 1;
    // First what not all warps use: a load waits for the one before into its register.
    const int t = min(stage * kTokens + lane % kTokens, last);
    in.a = load_fresh<T, 1>(row(t) + channels.a).at[0], in.b = load_fresh<T, 1>(row(t) + channels.b).at[0];
    line.run(first(stage) - kTaps + 1, last, channels.q + key(), in.q);
    line.run(first(stage) - kTaps + 1, last, channels.k + key(), in.k);
    line.run(first(stage, kTurn) - kTaps + 1, last, channels.v + column, in.v);
    return in;
  }

  // Inputs of a stage's tokens.
  __device__ void make(int stage, Inputs& in) {
    auto& to = shared.stages[(base + stage) % 2];
    line.clear(first(stage) - kTaps + 1, in.q), line.clear(first(stage) - kTaps + 1, in.k);
    line.clear(first(stage, kTurn) - kTaps + 1, in.v);
    make_keys(in, to, sequence.tokens - first(stage));
    float v[kPair][kOwn];
    convolve<kTaps, kPair>(in.v, &shared.weights[0][2 * kRows + lane * kOwn], C::kWeights, biased(), v);
#pragma unroll
    for (int i = 0; i < kPair; ++i)
      *own(to.v[(warp + kTurn) % kHelpers * kPair + i]) = reinterpret_cast<const Own&>(v[i]);
    if (warp == 1 && lane < kTokens) {
      const float step = softplus(__fadd_rn(to_float(in.a), shared.dt_bias));
      to.gates[lane].x = expf(__fmul_rn(shared.rate, step));
      to.gates[lane].y = __fmul_rn(a.beta_scale, 1.0f / __fadd_rn(1.0f, expf(-to_float(in.b))));
    }
    Handover::tell(shared.handover.made, base + stage);
  }
  // k and q of unit length, q times the root of its own.
  __device__ void make_keys(const Inputs& in, Stage<C>& to, int count) {
    if (count <= 0) return;
    float q[kPair][kKey], k[kPair][kKey];
    convolve<kTaps, kPair>(in.q, &shared.weights[0][lane * kKey], C::kWeights, biased(), q);
    convolve<kTaps, kPair>(in.k, &shared.weights[0][kRows + lane * kKey], C::kWeights, biased(), k);
    const auto sum = [](const float(&x)[kKey], const float(&y)[kKey]) {
      float products[kKey];
#pragma unroll
      for (int j = 0; j < kKey; ++j) products[j] = __fmul_rn(x[j], y[j]);
      return sum_in_pairs(products);
    };
    float sums[3 * kPair];  // of q q, k k, k q
#pragma unroll
    for (int i = 0; i < kPair; ++i) sums[3 * i] = sum(q[i], q[i]), sums[3 * i + 1] = sum(k[i], k[i]), sums[3 * i + 2] = sum(k[i], q[i]);
    if (kLast < 31 && lane > kLast) {
#pragma unroll
      for (float& each : sums) each = 0.0f;
    }
    sum_over_lanes(sums, 1, 32);
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      const int t = warp * kPair + i;
      const float of_q = __fmul_rn(inverse_root(__fadd_rn(sums[3 * i], kLeastSquares)), C::kRoot);
      const float of_k = inverse_root(__fadd_rn(sums[3 * i + 1], kLeastSquares)), both = sums[3 * i + 2];
#pragma unroll
      for (int j = 0; j < kKey; ++j) q[i][j] = __fmul_rn(q[i][j], of_q), k[i][j] = __fmul_rn(k[i][j], of_k);
      *reinterpret_cast<Elements<float, kKey>*>(to.q[t] + lane * kKey) = reinterpret_cast<const Elements<float, kKey>&>(q[i]);
      *reinterpret_cast<Elements<float, kKey>*>(to.k[t] + lane * kKey) = reinterpret_cast<const Elements<float, kKey>&>(k[i]);
      if (lane == 0) to.gates[t].z = __fmul_rn(both, __fmul_rn(of_q, of_k));
    }
  }

  // Outputs of a stage's tokens, when they are done: their squares go to the other parts of the head.
  __device__ void begin_norm(int stage, Outputs& out) {
#pragma unroll
    for (int i = 0; i < kPair; ++i)
      out.z[i] = load_words<T, kOwn>(row(min(first(stage) + i, sequence.tokens - 1)) + channels.z + column);
    const Stage<C>& made = shared.stages[(base + stage) % 2];
    Handover::wait_for(shared.handover.used, base + stage);
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      float squares[kOwn];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        out.o[i][j] = first(stage) + i < sequence.tokens ? made.o[warp * kPair + i][lane * kOwn + j] : 0.0f;
        squares[j] = __fmul_rn(out.o[i][j], out.o[i][j]);
      }
      out.squares[i] = sum_in_pairs(squares);
    }
    sum_over_lanes(out.squares, 1, 32);
    if constexpr (C::kParts > 1) send(stage, out.squares);
  }
  // The gated norm of these. Squares of the other parts arrive while the inputs of the stage after the next are made.
  __device__ void end_norm(int stage, Outputs& out) {
    if constexpr (C::kParts > 1) receive(stage, out.squares);
    const Own weight = *own(shared.norm);
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      if (first(stage) + i >= sequence.tokens) break;
      const float inverse = inverse_root(__fadd_rn(__fmul_rn(out.squares[i], 1.0f / C::kHead), a.norm.eps));
      float z[kOwn];
      widen(out.z[i], z);
      Elements<T, kOwn> put;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const float normed = __fmul_rn(__fmul_rn(out.o[i][j], inverse), weight.at[j]);
        put.at[j] = from_float<T>(__fmul_rn(normed, silu_of(z[j])));
      }
      T* to = static_cast<T*>(a.step.out) + int64_t(sequence.begin + first(stage) + i) * a.step.out_stride;
      *reinterpret_cast<Elements<T, kOwn>*>(to + place.head * C::kHead + column) = put;
    }
  }
  // Sums over this part's columns, to the warps of the other parts that have the same tokens. They have read those of two stages before:
  // this warp would not have got the last stage's otherwise.
  __device__ void send(int stage, const float (&sums)[kPair]) {
    auto& squares = shared.squares[stage % 2];
    const uint32_t told = shared_address(&shared.told[stage % 2][warp]);
    float* to = &squares[place.part][warp * kPair];
    if (lane == 0) barrier_expect(told, (C::kParts - 1) * kPair * sizeof(float));
    if (lane < C::kParts && lane != place.part) send_words(shared_address(to), told, place.rank - place.part + lane, sums);
    if (lane == place.part) {
#pragma unroll
      for (int i = 0; i < kPair; ++i) to[i] = sums[i];
    }
    __syncwarp();
  }
  // Sums over the columns of all parts.
  __device__ void receive(int stage, float (&sums)[kPair]) {
    barrier_wait(shared_address(&shared.told[stage % 2][warp]), stage / 2 & 1);
    const auto& squares = shared.squares[stage % 2];
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      const int t = warp * kPair + i;
      sums[i] = __fadd_rn(squares[0][t], squares[1][t]);
      if constexpr (C::kParts == 3) sums[i] = __fadd_rn(sums[i], squares[2][t]);
      if constexpr (C::kParts == 4) sums[i] = __fadd_rn(sums[i], __fadd_rn(squares[2][t], squares[3][t]));
    }
    __syncwarp();
  }

  // Columns of the convolution that this thread moves: those of v are this block's alone, those of q and k are moved with the last
  // of the heads that share them.
  static constexpr int kQuads = C::kRows / 4, kQuadTurns = (2 * kQuads + 32 * kHelpers - 1) / (32 * kHelpers);
  struct Columns {
    Words<T, 4> v[kTaps - 1], keys[kQuadTurns][kTaps - 1];
  };
  __device__ int thread() const { return warp * 32 + lane; }
  __device__ bool has_keys() const { return place.last(a) && thread() < 2 * kQuads; }
  __device__ int value_channel() const { return channels.v + place.part * C::kColumns + thread() * 4; }
  __device__ int key_channel(int turn) const {
    const int quad = turn * 32 * kHelpers + thread();
    return quad < kQuads ? channels.q + quad * 4 : channels.k + (quad - kQuads) * 4;
  }
  __device__ Columns take(int tokens) const {
    Columns latest;
    if (thread() < C::kColumns / 4) line.take(tokens, value_channel(), latest.v);
    if (!has_keys()) return latest;
#pragma unroll
    for (int i = 0; i < kQuadTurns; ++i) line.take(tokens, key_channel(i), latest.keys[i]);
    return latest;
  }
  __device__ void clear(int tokens, Columns& latest) const {
    line.clear(tokens - kTaps + 1, latest.v);
#pragma unroll
    for (int i = 0; i < kQuadTurns; ++i) line.clear(tokens - kTaps + 1, latest.keys[i]);
  }
  __device__ void put(int slot, int tokens, Columns latest) const {
    if (slot == 0) return;
    clear(tokens, latest);
    if (thread() < C::kColumns / 4) put_columns<T>(a.step, slot, value_channel(), latest.v);
    if (!has_keys()) return;
#pragma unroll
    for (int i = 0; i < kQuadTurns; ++i) put_columns<T>(a.step, slot, key_channel(i), latest.keys[i]);
  }

  // The meeting behind which columns that others have read may be written in place.
  __device__ void meet_readers() const {
    if constexpr (C::kClustered) tell_cluster(), wait_for_cluster();
    else meet();
  }
  __device__ void run() {
    const int stages = (sequence.tokens + kTokens - 1) / kTokens;
    Outputs out;
    Inputs in;
    if constexpr (C::kHolds)
      if (stages > 0) in = fetch(0);
    if (stages == 0) meet_readers();
    for (int stage = 0; stage < stages; ++stage) {
      if constexpr (!C::kHolds) in = fetch(stage);
      make(stage, in);
      if constexpr (C::kHolds)
        if (stage + 1 < stages) in = fetch(stage + 1);
      if (stage == 0) meet_readers();
      if (stage > 1) end_norm(stage - 2, out);
      if (stage > 0) begin_norm(stage - 1, out);
    }
    for (int k = sequence.keep; k < sequence.keeps; ++k)
      if (const int after = a.step.moves.keep_after[k]; after <= sequence.tokens) put(a.step.moves.keep_slot[k], after, take(after));
    const Columns latest = take(sequence.tokens);
    if (stages > 1) end_norm(stages - 2, out);
    if (stages > 0) begin_norm(stages - 1, out), end_norm(stages - 1, out);
    put(sequence.write, sequence.tokens, latest);
  }
};

#endif

}  // namespace
}  // namespace octavo
