// Gated short convolutions between a layer's two products (arXiv 2511.23404, section 2).
//
// Rows are independent of each other but for a sequence's first, which read its columns. These are computed, and columns written, by
// the block in whose rows the sequence begins: in place nothing is read after it is written.
#include "recurrent/recurrence.cuh"

namespace octavo {
namespace {

constexpr int kQuad = 4;      // channels of a thread
constexpr int kThreads = 128;
constexpr int kTile = 8;      // rows of a block, but where most sequences have one: these follow each other in a block
constexpr int kAtOnce = 4;    // rows whose inputs are loaded together

// A row's inputs: B | C | x.
template <class T>
struct Inputs {
  Elements<T, kQuad> b, c, x;
};

template <class T, int kTaps>
struct Channels {
  const RecurrentArgs& a;
  const int channel, channels;
  float weight[kTaps][kQuad], bias[kQuad];

  __device__ Channels(const RecurrentArgs& args, int first) : a(args), channel(first), channels(args.convolution.channels) {
    const T *from = static_cast<const T*>(a.convolution.weight), *added = static_cast<const T*>(a.convolution.bias);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      bias[i] = added ? to_float(added[channel + i]) : 0.0f;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) weight[j][i] = to_float(from[j * channels + channel + i]);
    }
  }

  __device__ Elements<T, kQuad> load(int row, int part) const {
    return load_fresh<T, kQuad>(static_cast<const T*>(a.x) + row * a.x_stride + part * channels + channel);
  }
  // An input of the convolution: a product in the type of x.
  __device__ static Elements<T, kQuad> product(const Elements<T, kQuad>& b, const Elements<T, kQuad>& x) {
    Elements<T, kQuad> made;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) made.at[i] = from_float<T>(__fmul_rn(to_float(b.at[i]), to_float(x.at[i])));
    return made;
  }
  // Of token t, or of one before the step's.
  __device__ Elements<T, kQuad> at(const Sequence& s, int t) const {
    if (t >= 0) return product(load(s.begin + t, 0), load(s.begin + t, 2));
    if (s.read == 0) return no_elements<T, kQuad>();
    const T* columns = static_cast<const T*>(a.columns.data) + s.read * a.columns.stride;
    return load_fresh<T, kQuad>(columns + (kTaps - 1 + t) * channels + channel);
  }

  // Tokens from `first` to `end`.
  __device__ void compute(const Sequence& s, int first, int end) const {
    Elements<T, kQuad> line[kTaps];
#pragma unroll
    for (int j = 1; j < kTaps; ++j) line[j] = at(s, first - kTaps + j);
    for (int t = first; t < end; t += kAtOnce) {
      Inputs<T> in[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = s.begin + min(t + i, end - 1);
        in[i] = {load(row, 0), load(row, 1), load(row, 2)};
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (t + i >= end) break;
#pragma unroll
        for (int j = 1; j < kTaps; ++j) line[j - 1] = line[j];
        line[kTaps - 1] = product(in[i].b, in[i].x);
        write(s.begin + t + i, line, in[i].c);
      }
    }
  }
  __device__ void write(int row, const Elements<T, kQuad> (&line)[kTaps], const Elements<T, kQuad>& c) const {
    Elements<T, kQuad> out;
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) sum = __fmaf_rn(weight[j][i], to_float(line[j].at[i]), sum);
      if (a.convolution.bias) sum = __fadd_rn(sum, bias[i]);
      out.at[i] = from_float<T>(__fmul_rn(to_float(c.at[i]), sum));
    }
    *reinterpret_cast<Elements<T, kQuad>*>(static_cast<T*>(a.out) + row * a.out_stride + channel) = out;
  }
  __device__ void leave(const Sequence& s) const {
    for (int k = s.keep; k < s.keeps; ++k)
      if (const int after = a.moves.keep_after[k]; after <= s.tokens) leave(s, a.moves.keep_slot[k], after);
    leave(s, s.write, s.tokens);
  }
  __device__ void leave(const Sequence& s, int slot, int tokens) const {
    if (slot == 0) return;
    Elements<T, kQuad> latest[kTaps - 1];
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) latest[j] = at(s, tokens - kTaps + 1 + j);
    put_columns<T>(a, slot, channel, latest);
  }
};

// The first sequence that ends behind a row.
__device__ inline int first_behind(const Moves& m, int row) {
  int low = 0, high = m.sequences;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (m.query_start[middle + 1] > row) high = middle;
    else low = middle + 1;
  }
  return low;
}

template <class T, int kTaps>
__global__ void __launch_bounds__(kThreads) short_conv_kernel(const __grid_constant__ RecurrentArgs a, int tile) {
  const int cuts = (a.convolution.channels + kThreads * kQuad - 1) / (kThreads * kQuad);
  const int channel = (int(blockIdx.x) % cuts * kThreads + int(threadIdx.x)) * kQuad;
  const int from = int(blockIdx.x) / cuts * tile, to = from + tile;
  const bool beyond = channel >= a.convolution.channels;
  const Channels<T, kTaps> channels(a, beyond ? 0 : channel);
  const int first = first_behind(a.moves, from);
  wait_for_previous_kernel();
  launch_next_kernel();
  if (beyond) return;
  for (int s = first; s < a.moves.sequences && a.moves.query_start[s] < to; ++s) {
    const Sequence sequence(a.moves, s);
    const int skipped = from - sequence.begin;  // tokens in front of this block's rows
    const int begin = skipped > 0 ? max(skipped, kTaps - 1) : 0;
    const int end = min(sequence.tokens, skipped > 0 ? to - sequence.begin : max(to - sequence.begin, kTaps - 1));
    if (begin < end) channels.compute(sequence, begin, end);
  }
  // Sequences that begin here; empty ones may lie in front of the first that does not.
  int s = first;
  while (s > 0 && a.moves.query_start[s - 1] >= from) --s;
  for (; s < a.moves.sequences && a.moves.query_start[s] < to; ++s)
    if (a.moves.query_start[s] >= from) channels.leave(Sequence(a.moves, s));
}

template <class T, int kTaps>
cudaError_t launch(const RecurrentArgs& a, cudaStream_t stream) {
  const int cuts = (a.convolution.channels + kThreads * kQuad - 1) / (kThreads * kQuad);
  const int tile = a.rows <= 2 * a.moves.sequences ? 1 : kTile;
  const unsigned tiles = unsigned(a.rows / tile + 1);  // an empty sequence may begin behind the last row
  return launch_after(short_conv_kernel<T, kTaps>, {dim3(tiles * cuts), kThreads}, stream, a, tile);
}

}  // namespace

cudaError_t conv_step(const RecurrentArgs& a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major != 9) return cudaErrorInvalidValue;
  if (a.moves.sequences == 0) return cudaSuccess;
  return with_dtype(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.convolution.channels % kQuad || !in_words<T>(a.x, a.x_stride) || !in_words<T>(a.columns.data, a.columns.stride) ||
        !in_words<T>(a.out, a.out_stride))
      return cudaErrorInvalidValue;
    switch (a.convolution.taps) {
      case 2: return launch<T, 2>(a, stream);
      case 3: return launch<T, 3>(a, stream);
      case 4: return launch<T, 4>(a, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

}  // namespace octavo
