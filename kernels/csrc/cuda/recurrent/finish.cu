// What follows a recurrence whose heads share too much for one launch: gate and norm of rows, and the convolution's columns.
#include "recurrent/finish.h"
#include "recurrent/recurrence.cuh"

namespace octavo {
namespace {

constexpr int kTaps = 4, kThreads = 256, kQuad = 4;
constexpr int kNarrow = 1024;  // values of a group that a warp has by itself

#if OCTAVO_CLUSTERS

// The norm of one group by kTogether threads: its sums have an order of their own, whatever other groups there are.
template <class T, int kTogether>
struct Group {
  const SsmArgs& a;
  const float* y;
  const T* z;
  const float* weight;
  T* out;
  const int thread;

  __device__ Group(const SsmArgs& args, int row, int first, int who)
      : a(args), y(args.y + int64_t(row) * args.heads * args.head_dim + first),
        z(static_cast<const T*>(args.step.x) + row * args.step.x_stride + first), weight(args.norm.weight + first),
        out(static_cast<T*>(args.step.out) + row * args.step.out_stride + first), thread(who) {}

  // Four values, times their gates where these come first.
  __device__ void value(int at, float (&x)[kQuad], float (&gates)[kQuad]) const {
    const auto made = load_fresh<float, kQuad>(y + at);
    const auto raw = load_fresh<T, kQuad>(z + at);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      gates[i] = silu_of(to_float(raw.at[i]));
      x[i] = a.norm.gate_first ? __fmul_rn(made.at[i], gates[i]) : made.at[i];
    }
  }
  __device__ float squares(float* scratch) const {
    float sum = 0.0f, x[kQuad], gates[kQuad];
    for (int at = thread * kQuad; at < a.norm.group; at += kTogether * kQuad) {
      value(at, x, gates);
#pragma unroll
      for (int i = 0; i < kQuad; ++i) sum = __fmaf_rn(x[i], x[i], sum);
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
  __device__ void write(float inverse) const {
    float x[kQuad], gates[kQuad];
    for (int at = thread * kQuad; at < a.norm.group; at += kTogether * kQuad) {
      value(at, x, gates);
      Elements<T, kQuad> put;
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        const float normed = a.norm.weight ? __fmul_rn(__fmul_rn(x[i], inverse), weight[at + i]) : x[i];
        put.at[i] = from_float<T>(a.norm.gate_first ? normed : __fmul_rn(normed, gates[i]));
      }
      *reinterpret_cast<Elements<T, kQuad>*>(out + at) = put;
    }
  }
};

#endif

// A block has a row, and behind the rows as many channels of a sequence as it has threads for.
template <class T, int kTogether>
__global__ void __launch_bounds__(kThreads, 4) finish_kernel(const __grid_constant__ SsmArgs a) {
#if OCTAVO_CLUSTERS
  __shared__ float scratch[kThreads / 32];
  wait_for_previous_kernel();
  launch_next_kernel();
  const int rows = a.step.rows, block = blockIdx.x;
  if (block >= rows) {
    const int tiles = (a.step.convolution.channels + kThreads * kQuad - 1) / (kThreads * kQuad);
    const Sequence sequence(a.step.moves, (block - rows) / tiles);
    const int channel = ((block - rows) % tiles * kThreads + int(threadIdx.x)) * kQuad;
    return move_columns<T, kTaps>(a.step, sequence, a.heads * a.head_dim, channel);
  }
  const int groups = a.heads * a.head_dim / a.norm.group;
  for (int g = threadIdx.x / kTogether; g < groups; g += kThreads / kTogether) {
    const Group<T, kTogether> group(a, block, g * a.norm.group, threadIdx.x % kTogether);
    const float squares = a.norm.weight ? group.squares(scratch) : 0.0f;
    group.write(inverse_root(__fadd_rn(squares / float(a.norm.group), a.norm.eps)));
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
