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
    Elements<T, kKey> q[kLines], k[kLines];
    Elements<T, kOwn> v[kLines];
    T a, b;
  };
  using Own = Elements<float, kOwn>;  // values of a token that this lane has the norm of
  struct Gates {
    Elements<T, kOwn> z[kPair];
  };

  const DeltaArgs& a;
  const Place<C>& place;
  const Sequence& sequence;
  Shared<C>& shared;
  const int base;  // stages of sequences before this one
  const int lane, warp, column;
  const Channels channels;
  const Line<T> line;

  __device__ Helper(const DeltaArgs& args, const Place<C>& at, const Sequence& s, Shared<C>& memory, int stages_before = 0)
      : a(args), place(at), sequence(s), shared(memory), base(stages_before), lane(threadIdx.x % 32),
        warp(threadIdx.x / 32 % kHelpers),
        column(at.part * C::kColumns + lane * kOwn), channels(args, at.key_head, at.head), line(args.step, s, 0) {
    if (warp == 1 && lane == 0) shared.rate = a.rates[at.head], shared.dt_bias = a.dt_bias[at.head];
    if (warp == 0) *own(shared.norm) = *reinterpret_cast<const Own*>(a.norm.weight + at.head * kHead + column);
    const Convolution& c = a.step.convolution;
    for (int tap = warp; tap < kTaps; tap += kHelpers) take_weights(static_cast<const T*>(c.weight) + tap * c.channels, tap);
    if (c.bias && warp == 0) take_weights(c.bias, kTaps);
    meet();
  }
  // These warps among themselves.
  __device__ static void meet() { barrier_sync(kTaken + int(threadIdx.x) / (32 * kHelpers), 32 * kHelpers); }
  __device__ void take_weights(const void* from, int tap) {
    float* to = shared.weights[tap];
    widen_weights<T, kKey>(from, channels.q + lane * kKey, to + lane * kKey);
    widen_weights<T, kKey>(from, channels.k + lane * kKey, to + kRows + lane * kKey);
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
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int t = min(first(stage) + i - kTaps + 1, last), u = min(first(stage, kTurn) + i - kTaps + 1, last);
      in.q[i] = line.template at<kKey>(t, channels.q + lane * kKey);
      in.k[i] = line.template at<kKey>(t, channels.k + lane * kKey);
      in.v[i] = line.template at<kOwn>(u, channels.v + column);
    }
    const int t = min(stage * kTokens + lane % kTokens, last);
    in.a = load_fresh<T, 1>(row(t) + channels.a).at[0], in.b = load_fresh<T, 1>(row(t) + channels.b).at[0];
    return in;
  }

  __device__ Gates fetch_gates(int stage) const {
    Gates gates;
#pragma unroll
    for (int i = 0; i < kPair; ++i)
      gates.z[i] = load_fresh<T, kOwn>(row(min(first(stage) + i, sequence.tokens - 1)) + channels.z + column);
    return gates;
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
    sum_over_lanes(sums, 1, 32);
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      const int t = warp * kPair + i;
      const float of_q = __fmul_rn(inverse_root(__fadd_rn(sums[3 * i], kLeastSquares)), kRootOfRows);
      const float of_k = inverse_root(__fadd_rn(sums[3 * i + 1], kLeastSquares)), both = sums[3 * i + 2];
#pragma unroll
      for (int j = 0; j < kKey; ++j) q[i][j] = __fmul_rn(q[i][j], of_q), k[i][j] = __fmul_rn(k[i][j], of_k);
      *reinterpret_cast<Elements<float, kKey>*>(to.q[t] + lane * kKey) = reinterpret_cast<const Elements<float, kKey>&>(q[i]);
      *reinterpret_cast<Elements<float, kKey>*>(to.k[t] + lane * kKey) = reinterpret_cast<const Elements<float, kKey>&>(k[i]);
      if (lane == 0) to.gates[t].z = __fmul_rn(both, __fmul_rn(of_q, of_k));
    }
  }

  // The gated norm of a stage's tokens, when they are done.
  __device__ void finish(int stage, const Gates& gates) {
    const Stage<C>& made = shared.stages[(base + stage) % 2];
    Handover::wait_for(shared.handover.used, base + stage);
    const int count = min(sequence.tokens - first(stage), kPair);
    if (count <= 0) return;
    float o[kPair][kOwn], sums[kPair];
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      float squares[kOwn];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        o[i][j] = i < count ? made.o[warp * kPair + i][lane * kOwn + j] : 0.0f;
        squares[j] = __fmul_rn(o[i][j], o[i][j]);
      }
      sums[i] = sum_in_pairs(squares);
    }
    sum_over_lanes(sums, 1, 32);
    if constexpr (C::kParts > 1) share(stage, count, sums);
    const Own weight = *own(shared.norm);
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      if (i >= count) break;
      const float inverse = inverse_root(__fadd_rn(__fmul_rn(sums[i], 1.0f / kHead), a.norm.eps));
      Elements<T, kOwn> out;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const float normed = __fmul_rn(__fmul_rn(o[i][j], inverse), weight.at[j]);
        out.at[j] = from_float<T>(__fmul_rn(normed, silu_of(to_float(gates.z[i].at[j]))));
      }
      T* to = static_cast<T*>(a.step.out) + int64_t(sequence.begin + first(stage) + i) * a.step.out_stride;
      *reinterpret_cast<Elements<T, kOwn>*>(to + place.head * kHead + column) = out;
    }
  }
  // Sums over the columns of all parts.
  __device__ void share(int stage, int count, float (&sums)[kPair]) {
    auto& squares = shared.squares[stage % 2];
    const uint32_t told = shared_address(&shared.told[stage % 2][warp]);
    const int token = warp * kPair + lane / C::kParts, other = lane % C::kParts;
    float mine = sums[0];
#pragma unroll
    for (int i = 1; i < kPair; ++i)
      if (lane / C::kParts == i) mine = sums[i];
    if (lane < C::kParts * count) {
      if (other == place.part) squares[token][other] = mine;
      else send_word(shared_address(&squares[token][place.part]), told, place.rank - place.part + other, mine);
    }
    if (lane == 0) barrier_expect(told, (C::kParts - 1) * count * sizeof(float));
    __syncwarp();
    barrier_wait(told, stage / 2 & 1);
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      if (i >= count) break;
      const float* of = squares[warp * kPair + i];
      sums[i] = __fadd_rn(of[0], of[1]);
      if constexpr (C::kParts == 4) sums[i] = __fadd_rn(sums[i], __fadd_rn(of[2], of[3]));
    }
    __syncwarp();
  }

  // Columns of the convolution that this thread moves: those of v are this block's alone, those of q and k are moved with the last
  // of the heads that share them.
  static constexpr int kQuads = kRows / 4, kQuadTurns = (2 * kQuads + 32 * kHelpers - 1) / (32 * kHelpers);
  struct Columns {
    Elements<T, 4> v[kTaps - 1], keys[kQuadTurns][kTaps - 1];
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
    if (thread() < C::kColumns / 4) put_columns(a.step, slot, value_channel(), latest.v);
    if (!has_keys()) return;
#pragma unroll
    for (int i = 0; i < kQuadTurns; ++i) put_columns(a.step, slot, key_channel(i), latest.keys[i]);
  }

  // What others may write in place has been read.
  __device__ void meet_readers() const {
    if constexpr (C::kClustered) tell_cluster(), wait_for_cluster();
    else meet();
  }
  __device__ void run() {
    const int stages = (sequence.tokens + kTokens - 1) / kTokens;
    Gates gates{};
    if (stages > 0) {
      Inputs in;
      if constexpr (C::kHolds) in = fetch(0);
      gates = fetch_gates(0);
      for (int stage = 0; stage < stages; ++stage) {
        if constexpr (!C::kHolds) in = fetch(stage);
        make(stage, in);
        if constexpr (C::kHolds)
          if (stage + 1 < stages) in = fetch(stage + 1);
        if (stage == 0) meet_readers();
        else finish(stage - 1, gates), gates = fetch_gates(stage);
      }
    } else {
      meet_readers();
    }
    for (int k = sequence.keep; k < sequence.keeps; ++k)
      if (const int after = a.step.moves.keep_after[k]; after <= sequence.tokens) put(a.step.moves.keep_slot[k], after, take(after));
    const Columns latest = take(sequence.tokens);
    if (stages > 0) finish(stages - 1, gates);
    put(sequence.write, sequence.tokens, latest);
  }
};

#endif

}  // namespace
}  // namespace octavo
