// What recurrent layers have in common: a sequence's rows and slots, its convolution, columns of a state in registers, and gates.
// Sums have one order, whatever a launch is cut into: nothing here is left to the compiler to contract.
#pragma once

#include "device/meetings.cuh"
#include "recurrent/args.h"

namespace octavo {

constexpr int kRows = 128;           // of a state: a key's values
constexpr int kLanes = 8;            // that share a column, each with every eighth four of its rows
constexpr int kLaneColumns = 32 / kLanes;

// Where four neighbouring elements of a row, a slot or a vector can be loaded at once.
template <class T>
inline bool in_words(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0 && stride % 4 == 0;
}

// Stages of inputs, of which warps make one while others use the one before: told by the lane that comes last of a warp.
struct Handover {
  uint64_t made[2], used[2];
#if OCTAVO_CLUSTERS
  __device__ void set_up(int makers, int users) {
    for (int i = 0; i < 2; ++i) barrier_init(shared_address(&made[i]), makers), barrier_init(shared_address(&used[i]), users);
  }
  __device__ static void tell(uint64_t (&what)[2], int stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive_once(shared_address(&what[stage % 2]));
  }
  __device__ static void wait_for(uint64_t (&what)[2], int stage) {
    barrier_wait(shared_address(&what[stage % 2]), stage / 2 & 1);
  }
#endif
};

// x / (1 + exp(-x)), within a few units in the last place.
__device__ inline float silu_of(float x) { return __fmul_rn(x, fast_inverse(__fadd_rn(1.0f, fast_exp2(__fmul_rn(-kLog2e, x))))); }
__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
__device__ inline float inverse_root(float x) { return rsqrtf(x); }

// A sequence of a step.
struct Sequence {
  int begin, tokens, read, write, keep, keeps;

  __device__ Sequence(const Moves& m, int s)
      : begin(m.query_start[s]), tokens(m.query_start[s + 1] - begin), read(m.read[s]), write(m.write[s]), keep(m.keep_start[s]),
        keeps(m.keep_start[s + 1]) {}
};

// The sequence that comes at this place in a launch. Prompts stand behind decodes in a step, and take longer: they begin first.
__device__ inline int in_order(const Moves& m, int place) { return m.sequences - 1 - place; }

// Consecutive elements that another kernel has written.
template <class T, int N>
__device__ inline Elements<T, N> load_fresh(const T* from) {
  constexpr int kBytes = N * sizeof(T);
  using Word = std::conditional_t<
      kBytes == 2, unsigned short,
      std::conditional_t<kBytes == 4, unsigned, std::conditional_t<kBytes == 8, uint2, uint4>>>;
  static_assert(sizeof(Word) == kBytes);
  const Word word = __ldcg(reinterpret_cast<const Word*>(from));
  return reinterpret_cast<const Elements<T, N>&>(word);
}
template <class T, int N>
__device__ inline Elements<T, N> no_elements() {
  Elements<T, N> none;
#pragma unroll
  for (int i = 0; i < N; ++i) none.at[i] = from_float<T>(0.0f);
  return none;
}

// Consecutive elements as they are loaded. Of elements of 16 bits the compiler would make registers of their own where a branch ends,
// and so wait there for loads that are for later.
template <class T, int N>
struct alignas(N * sizeof(T) < 4 ? 4 : N * sizeof(T)) Words {
  uint32_t at[(N * sizeof(T) + 3) / 4];
};
template <class T, int N>
__device__ inline Words<T, N> load_words(const T* from) {
  constexpr int kBytes = N * sizeof(T);
  Words<T, N> words;
  if constexpr (kBytes == 2) {
    words.at[0] = __ldcg(reinterpret_cast<const unsigned short*>(from));
  } else {
    using Word = std::conditional_t<kBytes == 4, unsigned, std::conditional_t<kBytes == 8, uint2, uint4>>;
    static_assert(sizeof(Word) == kBytes);
    reinterpret_cast<Word&>(words) = __ldcg(reinterpret_cast<const Word*>(from));
  }
  return words;
}
template <class T, int N>
__device__ inline void widen(const Words<T, N>& words, float (&to)[N]) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = __uint_as_float(words.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const float2 pair = unpack<T>(words.at[i / 2]);
      to[i] = pair.x;
      if (i + 1 < N) to[i + 1] = pair.y;
    }
  }
}

// A sequence's inputs of the convolution: those of earlier steps lie in its slot, the last `taps - 1` of them. Loads are no branches,
// so that they do not wait for each other; what was loaded in the place of zeros is cleared when it has come.
template <class T>
struct Line {
  const T *rows, *before;
  bool zeros;  // before the step's tokens
  int stride, earlier, channels;

  __device__ Line(const RecurrentArgs& a, const Sequence& s, int first_channel)
      : rows(static_cast<const T*>(a.x) + int64_t(s.begin) * a.x_stride + first_channel),
        before(static_cast<const T*>(a.columns.data) + s.read * a.columns.stride), zeros(s.read == 0), stride(int(a.x_stride)),
        earlier(a.convolution.taps - 1), channels(a.convolution.channels) {}
  // Of the step's token t, or of one before it.
  template <int N>
  __device__ Words<T, N> at(int t, int channel) const {
    const int64_t row = t >= 0 ? int64_t(t) * stride : int64_t(earlier + t) * channels;
    return load_words<T, N>((t >= 0 ? rows : before) + row + channel);
  }
  // Results of `at` for tokens from t on: zeros in front of a sequence.
  template <int N, int kCount>
  __device__ void clear(int t, Words<T, N> (&line)[kCount]) const {
    if (!zeros || t >= 0) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (t + i < 0) line[i] = {};
  }
  // Of tokens from t on, the last of them instead of any behind it.
  template <int N, int kCount>
  __device__ void run(int t, int last, int channel, Words<T, N> (&line)[kCount]) const {
    if (t >= 0 && t + kCount - 1 <= last) {
      const T* from = rows + int64_t(t) * stride + channel;
#pragma unroll
      for (int i = 0; i < kCount; ++i) line[i] = load_words<T, N>(from + int64_t(i) * stride);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) line[i] = at<N>(min(t + i, last), channel);
    }
  }
  // The inputs of N channels that the sequence leaves behind after `tokens` of the step's, the oldest first.
  template <int N, int kEarlier>
  __device__ void take(int tokens, int channel, Words<T, N> (&latest)[kEarlier]) const {
#pragma unroll
    for (int j = 0; j < kEarlier; ++j) latest[j] = at<N>(tokens - kEarlier + j, channel);
  }
};

// A tap's weights of N neighbouring channels, or their bias, as floats.
template <class T, int N>
__device__ inline void widen_weights(const void* from, int channel, float* to) {
  const Elements<T, N> weights = load_fresh<T, N>(static_cast<const T*>(from) + channel);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_float(weights.at[i]);
}
// SiLU of the convolutions of N neighbouring channels that end with each of kLines inputs behind the first kTaps - 1. A tap's
// weights lie `width` floats behind those of the tap before, and the bias behind the last.
template <int kTaps, int kLines, class T, int N>
__device__ inline void convolve(const Words<T, N> (&line)[kTaps + kLines - 1], const float* weights, int width, bool biased,
                                float (&out)[kLines][N]) {
  float x[kTaps + kLines - 1][N];
#pragma unroll
  for (int l = 0; l < kTaps + kLines - 1; ++l) widen(line[l], x[l]);
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    const auto weight = *reinterpret_cast<const Elements<float, N>*>(weights + j * width);
#pragma unroll
    for (int l = 0; l < kLines; ++l)
#pragma unroll
      for (int i = 0; i < N; ++i) out[l][i] = __fmaf_rn(weight.at[i], x[l + j][i], j == 0 ? 0.0f : out[l][i]);
  }
  if (biased) {
    const auto bias = *reinterpret_cast<const Elements<float, N>*>(weights + kTaps * width);
#pragma unroll
    for (int l = 0; l < kLines; ++l)
#pragma unroll
      for (int i = 0; i < N; ++i) out[l][i] = __fadd_rn(out[l][i], bias.at[i]);
  }
#pragma unroll
  for (int l = 0; l < kLines; ++l)
#pragma unroll
    for (int i = 0; i < N; ++i) out[l][i] = silu_of(out[l][i]);
}

// Puts what `Line::take` took into a slot.
template <class T, class Put, int kEarlier>
__device__ inline void put_columns(const RecurrentArgs& a, int slot, int channel, const Put (&latest)[kEarlier]) {
  T* to = static_cast<T*>(a.columns.data) + slot * a.columns.stride + channel;
#pragma unroll
  for (int j = 0; j < kEarlier; ++j) *reinterpret_cast<Put*>(to + j * a.convolution.channels) = latest[j];
}

// Four channels of a sequence's columns by each thread: to the slots of its keeps, then to the one that it writes.
template <class T, int kTaps>
__device__ inline void move_columns(const RecurrentArgs& a, const Sequence& s, int first_channel, int channel) {
  if (channel >= a.convolution.channels) return;
  const Line<T> line(a, s, first_channel);
  Words<T, 4> latest[kTaps - 1];
  const auto move = [&](int slot, int tokens) {
    if (slot == 0) return;
    line.take(tokens, channel, latest);
    line.clear(tokens - kTaps + 1, latest);
    put_columns<T>(a, slot, channel, latest);
  };
  for (int k = s.keep; k < s.keeps; ++k)
    if (const int after = a.moves.keep_after[k]; after <= s.tokens) move(a.moves.keep_slot[k], after);
  move(s.write, s.tokens);
}

// Neighbours in pairs, then pairs of those: a lane's values, which lanes then go on with.
template <int N>
__device__ inline float sum_in_pairs(const float (&x)[N]) {
  float part[N];
#pragma unroll
  for (int i = 0; i < N; ++i) part[i] = x[i];
#pragma unroll
  for (int step = 1; step < N; step *= 2)
#pragma unroll
    for (int i = 0; i < N; i += 2 * step) part[i] = __fadd_rn(part[i], part[i + step]);
  return part[0];
}
// The sums of several values over lanes, side by side: a shuffle waits for those before it.
template <int M>
__device__ inline void sum_over_lanes(float (&sums)[M], int from, int to) {
#pragma unroll
  for (int step = from; step < to; step *= 2)
#pragma unroll
    for (int i = 0; i < M; ++i) sums[i] = __fadd_rn(sums[i], __shfl_xor_sync(~0u, sums[i], step));
}

// kWide columns of a head's matrix [rows][columns], of which a lane has the rows 32 j + 4 p + e: p is its place among eight.
template <int kWide, int rows = kRows>
struct State {
  static constexpr int kHeld = rows / kLanes;
  float at[kWide][kHeld];

  __device__ static int row(int place, int i) { return i / 4 * 4 * kLanes + place * 4 + i % 4; }
  __device__ void load(const float* from, int columns, int place) {
    if (!from) return clear();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const Elements<float, kWide> got = load_fresh<float, kWide>(from + row(place, i) * columns);
#pragma unroll
      for (int w = 0; w < kWide; ++w) at[w][i] = got.at[w];
    }
  }
  // Of a matrix in shared memory.
  __device__ void take(const float* from, int columns, int place) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const auto got = *reinterpret_cast<const Elements<float, kWide>*>(from + row(place, i) * columns);
#pragma unroll
      for (int w = 0; w < kWide; ++w) at[w][i] = got.at[w];
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kHeld * kWide; ++i) at[i / kHeld][i % kHeld] = 0.0f;
  }
  __device__ void store(float* to, int columns, int place) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      Elements<float, kWide> put;
#pragma unroll
      for (int w = 0; w < kWide; ++w) put.at[w] = at[w][i];
      *reinterpret_cast<Elements<float, kWide>*>(to + row(place, i) * columns) = put;
    }
  }
};
// Keeps of a sequence, in the order of its tokens.
struct Keeps {
  const Moves& moves;
  int keep, end, next;  // after how many tokens; 0: never again

  __device__ Keeps(const Moves& m, const Sequence& s) : moves(m), keep(s.keep), end(s.keeps) { look(); }
  __device__ void look() { next = keep < end ? moves.keep_after[keep] : 0; }
  // Leaves out those before this many tokens.
  __device__ void pass(int tokens) {
    while (next && next < tokens) ++keep, look();
  }
  // Slots that get the state after this many tokens.
  template <class F>
  __device__ void at(int tokens, F&& store) {
    for (; next == tokens; ++keep, look())
      if (const int slot = moves.keep_slot[keep]) store(slot);
  }
};

// The sums over columns of what the lanes of each have.
template <int M>
__device__ inline void sum_columns(float (&sums)[M]) {
  sum_over_lanes(sums, kLaneColumns, 32);
}

}  // namespace octavo
