// Attention's output times an activation of its gate: of each value, or of each head.
#include "device/common.cuh"
#include "linear/args.h"

namespace octavo {
namespace {

constexpr int kThreads = 256;

__device__ inline float factor(bool softplus, float x) {
  if (softplus) return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
  return 1.0f / (1.0f + expf(-x));
}

// A thread has 16 bytes of a row, which are one head's.
template <class T>
__global__ void __launch_bounds__(kThreads) head_gate_kernel(const __grid_constant__ HeadGateArgs a) {
  constexpr int N = 16 / sizeof(T);
  using Vector = Elements<T, N>;
  wait_for_previous_kernel();
  launch_next_kernel();
  const int vectors = a.heads * a.head_dim / N;
  const int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x, row = index / vectors;
  const int at = int(index % vectors);
  if (row >= a.rows) return;
  const T* logits = static_cast<const T*>(a.logits) + row * a.logits_stride;
  Vector* const x = reinterpret_cast<Vector*>(static_cast<T*>(a.x) + row * a.x_stride) + at;
  Vector values = *x, gate{};
  if (a.by_head) gate.at[0] = logits[at * N / a.head_dim];
  else gate = reinterpret_cast<const Vector*>(logits)[at];
  const float shared = a.by_head ? factor(a.softplus, to_float(gate.at[0])) : 0.0f;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float own = a.by_head ? shared : factor(a.softplus, to_float(gate.at[j]));
    values.at[j] = from_float<T>(to_float(values.at[j]) * own);
  }
  *x = values;
}

}  // namespace

cudaError_t head_gate(const HeadGateArgs& a, cudaStream_t stream) {
  return with_dtype(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = 16 / sizeof(T);
    if (a.head_dim % N) return cudaErrorInvalidValue;
    const int64_t vectors = a.rows * a.heads * (a.head_dim / N);
    if (vectors == 0) return cudaSuccess;
    return launch_after(head_gate_kernel<T>, {dim3(unsigned((vectors + kThreads - 1) / kThreads)), kThreads}, stream, a);
  });
}

}  // namespace octavo
