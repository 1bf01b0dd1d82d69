// What follows a recurrence whose heads share too much for one launch: gate and norm of rows, and the convolution's columns.
#include "recurrent/finish.h"
#include "recurrent/recurrence.cuh"

namespace octavo {
namespace {

constexpr int kTaps = 4, kThreads = 256, kQuad = 4;
constexpr int kNarrow = 1024;  // values of a group that a warp has by itself

#if OCTAVO_CLUSTERS

// The norm of one group by kTogether threads: its sums have an order of their own, whatever other groups there are. What a thread
// has of the group is loaded at once, as far as its registers go: a row alone is bound by one load's latency.
template <class T, int kTogether>
struct Group {
  static constexpr int kHeldQuads = sizeof(T) == 2 ? 8 : 4;         // that a thread has in registers
  static constexpr int kSpan = kTogether * kQuad * kHeldQuads;  // of the group, that the threads have at a time
  const SsmArgs& a;
  const float* y;
  const T* z;
  const float* weight;
  T* out;
  const int thread;
  Words<T, kQuad> gates[kHeldQuads];
  Words<float, kQuad> weights[kHeldQuads], made[kHeldQuads];

  __device__ Group(const SsmArgs& args, int row, int first, int who)
      : a(args), y(args.y + int64_t(row) * args.heads * args.head_dim + first),
        z(static_cast<const T*>(args.step.x) + row * args.step.x_stride + first), weight(args.norm.weight + first),
        out(static_cast<T*>(args.step.out) + row * args.step.out_stride + first), thread(who) {}

  __device__ int place(int begin, int i) const { return begin + (i * kTogether + thread) * kQuad; }
  // Loads of what is older than the previous kernel.
  __device__ void load_gates(int begin) {
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      if (const int at = place(begin, i); at < a.norm.group) {
        gates[i] = load_words<T, kQuad>(z + at);
        if (a.norm.weight) weights[i] = load_words<float, kQuad>(weight + at);
      }
    }
  }
  __device__ void load_made(int begin) {
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i)
      if (const int at = place(begin, i); at < a.norm.group) made[i] = load_words<float, kQuad>(y + at);
  }
  // Four values, times their gates where these come first.
  __device__ void value(int i, float (&x)[kQuad], float (&by)[kQuad]) const {
    widen<float>(made[i], x), widen<T>(gates[i], by);
#pragma unroll
    for (int n = 0; n < kQuad; ++n) {
      by[n] = silu_of(by[n]);
      if (a.norm.gate_first) x[n] = __fmul_rn(x[n], by[n]);
    }
  }
  // Of values from `begin` on.
  __device__ void add_squares(int begin, float& sum) const {
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      if (place(begin, i) >= a.norm.group) continue;
      float x[kQuad], by[kQuad];
      value(i, x, by);
#pragma unroll
      for (float own : x) sum = __fmaf_rn(own, own, sum);
    }
  }
  __device__ float squares(float* scratch) {
    float sum = 0.0f;
    for (int begin = 0; begin < a.norm.group; begin += kSpan) {
      if (begin > 0) load_gates(begin), load_made(begin);
      add_squares(begin, sum);
    }
    sum = warp_sum(sum);
    if constexpr (kTogether > 32) {
      __syncthreads();
      if (thread % 32 == 0) scratch[thread / 32] = sum;
      __syncthreads();
      sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kTogether / 32; ++i) sum = __fadd_rn(sum, scratch[i]);
    }
    return sum;
  }
  __device__ void write(int begin, float inverse) const {
#pragma unroll
    for (int i = 0; i < kHeldQuads; ++i) {
      const int at = place(begin, i);
      if (at >= a.norm.group) continue;
      float x[kQuad], by[kQuad], scale[kQuad];
      value(i, x, by), widen<float>(weights[i], scale);
      Elements<T, kQuad> put;
#pragma unroll
      for (int n = 0; n < kQuad; ++n) {
        const float normed = a.norm.weight ? __fmul_rn(__fmul_rn(x[n], inverse), scale[n]) : x[n];
        put.at[n] = from_float<T>(a.norm.gate_first ? normed : __fmul_rn(normed, by[n]));
      }
      *reinterpret_cast<Elements<T, kQuad>*>(out + at) = put;
    }
  }
  // With gates and made values from 0 on in registers.
  __device__ void finish(float* scratch) {
    const float inverse =
        a.norm.weight ? inverse_root(__fadd_rn(squares(scratch) / float(a.norm.group), a.norm.eps)) : 1.0f;
    for (int begin = 0; begin < a.norm.group; begin += kSpan) {
      if (a.norm.group > kSpan) load_gates(begin), load_made(begin);
      write(begin, inverse);
    }
  }
};

#endif

// A block has a row, and behind the rows as many channels of a sequence as it has threads for.
template <class T, int kTogether>
__global__ void __launch_bounds__(kThreads, 2) finish_kernel(const __grid_constant__ SsmArgs a) {
#if OCTAVO_CLUSTERS
  __shared__ float scratch[kThreads / 32];
  const int rows = a.step.rows, block = blockIdx.x;
  if (block >= rows) {
    wait_for_previous_kernel();
    launch_next_kernel();
    const int tiles = (a.step.convolution.channels + kThreads * kQuad - 1) / (kThreads * kQuad);
    const Sequence sequence(a.step.moves, (block - rows) / tiles);
    const int channel = ((block - rows) % tiles * kThreads + int(threadIdx.x)) * kQuad;
    return move_columns<T, kTaps>(a.step, sequence, a.heads * a.head_dim, channel);
  }
  const int groups = a.heads * a.head_dim / a.norm.group;
  bool is_first = true;
  for (int g = threadIdx.x / kTogether; g < groups; g += kThreads / kTogether) {
    Group<T, kTogether> group(a, block, g * a.norm.group, threadIdx.x % kTogether);
    group.load_gates(0);
    if (is_first) wait_for_previous_kernel(), launch_next_kernel();
    is_first = false;
    group.load_made(0);
    group.finish(scratch);
  }
#endif
}

}  // namespace

cudaError_t finish_rows(const SsmArgs& a, cudaStream_t stream) {
  if (a.norm.group % kQuad || (a.norm.weight && !in_words<float>(a.norm.weight, 0))) return cudaErrorInvalidValue;
  const int tiles = (a.step.convolution.channels + kThreads * kQuad - 1) / (kThreads * kQuad);
  const Launch how{dim3(unsigned(a.step.rows + a.step.moves.sequences * tiles)), kThreads};
  return with_dtype(a.step.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.norm.group <= kNarrow) return launch_after(finish_kernel<T, 32>, how, stream, a);
    return launch_after(finish_kernel<T, kThreads>, how, stream, a);
  });
}

}  // namespace octavo
