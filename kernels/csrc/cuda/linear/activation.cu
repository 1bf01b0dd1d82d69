// out = activation(gate) * up for x = [gate | up], or activation(x).
#include "linear/activation.cuh"

namespace octavo {
namespace {

constexpr int kThreads = 256;

// A thread makes 16 bytes of a row.
template <class T, Activation kind>
__global__ void __launch_bounds__(kThreads) activation_kernel(const __grid_constant__ ActivationArgs a) {
  constexpr int N = 16 / sizeof(T);
  using Vector = Elements<T, N>;
  wait_for_previous_kernel();
  launch_next_kernel();
  const int at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= a.width / N) return;
  const T* x = static_cast<const T*>(a.x) + int64_t(blockIdx.y) * a.x_stride;
  const Vector gate = reinterpret_cast<const Vector*>(x)[at];
  Vector up{}, y;
  if (a.gated) up = reinterpret_cast<const Vector*>(x + a.width)[at];
#pragma unroll
  for (int j = 0; j < N; ++j)
    y.at[j] = from_float<T>(activate<kind>(to_float(gate.at[j])) * (a.gated ? to_float(up.at[j]) : 1.0f));
  reinterpret_cast<Vector*>(static_cast<T*>(a.out) + int64_t(blockIdx.y) * a.out_stride)[at] = y;
}

template <class T, Activation kind>
cudaError_t launch(const ActivationArgs& args, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T), span = kThreads * N;
  constexpr int64_t most = 65535;
  if (args.width % N != 0) return cudaErrorInvalidValue;
  ActivationArgs a = args;
  for (; a.rows > 0; a.rows -= most) {
    const dim3 grid{unsigned((a.width + span - 1) / span), unsigned(a.rows < most ? a.rows : most), 1};
    const cudaError_t error = launch_after(activation_kernel<T, kind>, {grid, kThreads}, stream, a);
    if (error != cudaSuccess) return error;
    a.x = static_cast<const T*>(a.x) + most * a.x_stride;
    a.out = static_cast<T*>(a.out) + most * a.out_stride;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t activation(const ActivationArgs& a, cudaStream_t stream) {
  return with_dtype(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.kind) {
      case Activation::silu: return launch<T, Activation::silu>(a, stream);
      case Activation::gelu: return launch<T, Activation::gelu>(a, stream);
      case Activation::gelu_tanh: return launch<T, Activation::gelu_tanh>(a, stream);
      case Activation::relu: return launch<T, Activation::relu>(a, stream);
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace octavo
