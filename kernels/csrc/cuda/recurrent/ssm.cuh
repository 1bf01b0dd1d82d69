// How Mamba2 is cut into blocks, and their warps: those that make what tokens need, and those that have the state.
#pragma once

#include "recurrent/chunk_cut.cuh"

namespace octavo {
namespace {

constexpr int kTaps = 4;
constexpr int kSpan = 128;        // values of B, and of C, that a warp makes at once
constexpr int kKey = kSpan / 32;  // that a lane makes
constexpr int kTaken = 1;         // barrier: the weights are there

// How heads are cut: rows of a state, columns of a lane, warps that make inputs, tokens of a stage that each of these has, blocks of a
// multiprocessor, and warps that have the state.
template <int rows, int wide, int helpers, int pair, int blocks, int advancers = 4>
struct Cut {
  static constexpr int kRows = rows, kSpans = rows / kSpan;
  static constexpr int kWide = wide, kHelpers = helpers, kPair = pair, kBlocks = blocks;
  static constexpr int kTokens = kHelpers * kPair, kAdvancers = advancers;
  static constexpr int kColumns = kAdvancers * kLaneColumns * kWide, kOwn = kColumns / 32;
  static constexpr int kWeights = 2 * kRows + kColumns;
  static constexpr int kThreads = 32 * (kHelpers + kAdvancers);

  // Columns of a head, where a block may have some of them.
  __device__ static int head_dim(const SsmArgs& a) { return a.head_dim; }
};
template <class C>
struct Stage {
  float2 gates[C::kTokens];  // decay, dt
  alignas(16) float b[C::kTokens][C::kRows], c[C::kTokens][C::kRows], x[C::kTokens][C::kColumns];
};
template <class C>
struct alignas(16) Shared {
  Stage<C> stages[2];
  float weights[kTaps + 1][C::kWeights];  // of the convolution: B, C, x; the bias at the end
  float rate, dt_bias;
  Handover handover;
};

#if OCTAVO_CLUSTERS

// The place in a launch of a block, or of what a block of several would have been, and where its values of a row begin; the convolution's channels begin behind the gate.
template <class C>
struct Place {
  int sequence, head, first, gate, x, b, c, dt;

  __device__ Place(const SsmArgs& a, int block) {
    const int parts = C::head_dim(a) / C::kColumns, inner = a.heads * C::head_dim(a), group = block / parts % a.heads / (a.heads / a.groups);
    first = block % parts * C::kColumns, head = block / parts % a.heads, sequence = in_order(a.step.moves, block / (parts * a.heads));
    gate = inner, x = head * C::head_dim(a) + first, b = inner + group * C::kRows, c = b + a.groups * C::kRows;
    dt = inner + a.step.convolution.channels + head;
  }
};

// One of the warps that make what tokens need.
template <class T, class C>
struct Helper {
  static constexpr int kOwn = C::kOwn, kPair = C::kPair, kHelpers = C::kHelpers, kTokens = C::kTokens;
  static constexpr int kLines = kTaps + kPair - 1;
  struct Inputs {  // of the convolution, and of the step's width
    Words<T, kKey> b[C::kSpans][kLines], c[C::kSpans][kLines];
    Words<T, kOwn> x[kLines];
    T dt;
  };

  const SsmArgs& a;
  const Place<C>& place;
  const Sequence& sequence;
  Shared<C>& shared;
  const int base;  // stages of sequences before this one
  const int lane, warp;
  const Line<T> line;

  __device__ Helper(const SsmArgs& args, const Place<C>& at, const Sequence& s, Shared<C>& memory, int stages_before = 0)
      : a(args), place(at), sequence(s), shared(memory), base(stages_before), lane(threadIdx.x % 32),
        warp(threadIdx.x / 32 % kHelpers), line(args.step, s, at.gate) {
    if (warp == kHelpers - 1 && lane == 0) shared.rate = a.rates[at.head], shared.dt_bias = a.dt_bias[at.head];
    const Convolution& c = a.step.convolution;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap)
      if (tap % kHelpers == warp) take_weights(static_cast<const T*>(c.weight) + tap * c.channels, tap);
    if (c.bias && warp == 0) take_weights(c.bias, kTaps);
    meet();
  }
  // These warps among themselves.
  __device__ static void meet() { barrier_sync(kTaken + int(threadIdx.x) / (32 * kHelpers), 32 * kHelpers); }
  __device__ void take_weights(const void* from, int tap) {
    float* to = shared.weights[tap];
#pragma unroll
    for (int s = 0; s < C::kSpans; ++s) {
      widen_weights<T, kKey>(from, place.b + own(s), to + own(s));
      widen_weights<T, kKey>(from, place.c + own(s), to + C::kRows + own(s));
    }
    widen_weights<T, kOwn>(from, place.x + lane * kOwn, to + 2 * C::kRows + lane * kOwn);
  }
  __device__ bool biased() const { return a.step.convolution.bias; }
  // The first of this lane's values of a span.
  __device__ int own(int span) const { return span * kSpan + lane * kKey; }
  __device__ int first(int stage) const { return stage * kTokens + warp * kPair; }

  __device__ Inputs fetch(int stage) const {
    Inputs in;
    const int last = sequence.tokens - 1;
    // First what not all warps use: a load waits for the one before into its register.
    const int t = min(stage * kTokens + lane % kTokens, last);
    in.dt = load_fresh<T, 1>(static_cast<const T*>(a.step.x) + int64_t(sequence.begin + t) * a.step.x_stride + place.dt).at[0];
#pragma unroll
    for (int s = 0; s < C::kSpans; ++s) {
      line.run(first(stage) - kTaps + 1, last, place.b + own(s), in.b[s]);
      line.run(first(stage) - kTaps + 1, last, place.c + own(s), in.c[s]);
    }
    line.run(first(stage) - kTaps + 1, last, place.x + lane * kOwn, in.x);
    return in;
  }
  template <int N>
  __device__ void convolved(const Words<T, N> (&line)[kLines], int weights, float* to, int width) const {
    float made[kPair][N];
    convolve<kTaps, kPair>(line, &shared.weights[0][weights], C::kWeights, biased(), made);
#pragma unroll
    for (int i = 0; i < kPair; ++i)
      *reinterpret_cast<Elements<float, N>*>(to + (warp * kPair + i) * width) = reinterpret_cast<const Elements<float, N>&>(made[i]);
  }
  __device__ void make(int stage, Inputs& in) {
    auto& to = shared.stages[(base + stage) % 2];
    const int begin = first(stage) - kTaps + 1;
    line.clear(begin, in.x);
#pragma unroll
    for (int s = 0; s < C::kSpans; ++s) line.clear(begin, in.b[s]), line.clear(begin, in.c[s]);
    if (first(stage) < sequence.tokens) {
#pragma unroll
      for (int s = 0; s < C::kSpans; ++s) {
        convolved(in.b[s], own(s), to.b[0] + own(s), C::kRows);
        convolved(in.c[s], C::kRows + own(s), to.c[0] + own(s), C::kRows);
      }
      convolved(in.x, 2 * C::kRows + lane * kOwn, to.x[0] + lane * kOwn, C::kColumns);
    }
    if (warp == kHelpers - 1 && lane < kTokens) {
      const float dt = fminf(fmaxf(softplus(__fadd_rn(to_float(in.dt), shared.dt_bias)), a.least), a.most);
      to.gates[lane] = make_float2(expf(__fmul_rn(shared.rate, dt)), dt);
    }
    Handover::tell(shared.handover.made, base + stage);
  }

  __device__ void run() {
    const int stages = (sequence.tokens + kTokens - 1) / kTokens;
    if (stages == 0) return;
    Inputs in = fetch(0);
    for (int stage = 0; stage < stages; ++stage) {
      if (base + stage > 1) Handover::wait_for(shared.handover.used, base + stage - 2);
      make(stage, in);
      if (stage + 1 < stages) in = fetch(stage + 1);
    }
  }
};

// One of the warps that have the state.
template <class T, class C>
struct Advancer {
  static constexpr int kWide = C::kWide, kTokens = C::kTokens;
  using Own = State<kWide, C::kRows>;

  const SsmArgs& a;
  const Sequence& sequence;
  Shared<C>& shared;
  const int column, place;  // the first of its columns of the block; its place among the eight of a column
  const int64_t offset;     // of its columns in a slot
  float* const y;           // of the sequence's first token
  const float skip;
  Own state;

  // `warp`: its number among those that have the state.
  __device__ Advancer(const SsmArgs& args, const Place<C>& at, const Sequence& s, Shared<C>& memory, int warp)
      : a(args), sequence(s), shared(memory), column(warp * kLaneColumns * kWide + threadIdx.x % kLaneColumns * kWide),
        place(threadIdx.x % 32 / kLaneColumns), offset(int64_t(at.head) * C::kRows * C::head_dim(args) + at.first + column),
        y(args.y + int64_t(s.begin) * args.heads * C::head_dim(args) + at.x + column), skip(args.skip[at.head]) {}

  __device__ float* slot(int id) const { return static_cast<float*>(a.matrices.data) + id * a.matrices.stride + offset; }

  __device__ void advance(const Stage<C>& stage, int t, float* to) {
    const float2 gates = stage.gates[t];
    const auto x = *reinterpret_cast<const Elements<float, kWide>*>(stage.x[t] + column);
    float of_c[kWide][2] = {}, d[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w) d[w] = __fmul_rn(gates.y, x.at[w]);
#pragma unroll
    for (int j = 0; j < Own::kHeld / 4; ++j) {
      const auto b = *reinterpret_cast<const Elements<float, 4>*>(stage.b[t] + Own::row(place, 4 * j));
      const auto c = *reinterpret_cast<const Elements<float, 4>*>(stage.c[t] + Own::row(place, 4 * j));
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int w = 0; w < kWide; ++w) {
          float& s = state.at[w][4 * j + e];
          s = __fmaf_rn(b.at[e], d[w], __fmul_rn(gates.x, s));
          of_c[w][e / 2] = __fmaf_rn(s, c.at[e], of_c[w][e / 2]);
        }
    }
    Elements<float, kWide> out;
    float sums[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w) sums[w] = __fadd_rn(of_c[w][0], of_c[w][1]);
    sum_columns(sums);
#pragma unroll
    for (int w = 0; w < kWide; ++w) out.at[w] = __fmaf_rn(skip, x.at[w], sums[w]);
    if (place == 0) *reinterpret_cast<Elements<float, kWide>*>(to) = out;
  }

  // All tokens of the sequence, whose stages are counted from `base` on; its slots have the state then.
  __device__ void advance_all(int base) {
    Keeps keeps(a.step.moves, sequence);
    const int64_t width = int64_t(a.heads) * C::head_dim(a);
    for (int first = 0; first < sequence.tokens; first += kTokens) {
      const int stage = base + first / kTokens;
      Handover::wait_for(shared.handover.made, stage);
      const int count = min(kTokens, sequence.tokens - first);
      for (int t = 0; t < count; ++t) {
        advance(shared.stages[stage % 2], t, y + (first + t) * width);
        keeps.at(first + t + 1, [&](int kept) { state.store(slot(kept), C::head_dim(a), place); });
      }
      Handover::tell(shared.handover.used, stage);
    }
    if (sequence.write && (sequence.tokens > 0 || sequence.write != sequence.read))
      state.store(slot(sequence.write), C::head_dim(a), place);
  }
  __device__ void run() {
    state.load(sequence.read ? slot(sequence.read) : nullptr, C::head_dim(a), place);
    advance_all(0);
  }
};

#endif

}  // namespace
}  // namespace octavo
