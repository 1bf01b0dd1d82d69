// The arithmetic of codes of eight bits, for the kernels that must agree on it bit for bit. Nothing here may be contracted
// into fused operations, which one kernel would have and another one not.
#pragma once

#include <cuda_fp8.h>

#include "linear/activation.cuh"
#include "w8a8/w8a8.h"

namespace octavo {

// Whole numbers, whose sums are exact; floats (e4m3fn). `Sum` is what products add up to. `encode` rounds four numbers to
// nearest, ties to even.
struct Int8 {
  using Sum = int;
  static constexpr float largest = 127.0f;
  __device__ static uint32_t encode(const float (&x)[4]) {
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) codes |= (uint32_t(__float2int_rn(x[i])) & 255u) << 8 * i;
    return codes;
  }
};
struct Fp8 {
  using Sum = float;
  static constexpr float largest = 448.0f;
  __device__ static uint32_t encode(const float (&x)[4]) {
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
  }
};

// Calls f with a value of the kind of the codes.
template <class F>
inline cudaError_t with_codes(Cells cells, F&& f) {
  switch (cells) {
    case Cells::i8: return f(Int8{});
    case Cells::f8: return f(Fp8{});
    default: return cudaErrorInvalidValue;
  }
}

// Factor of a number on its way to a code, and of the code on its way back. `most`: the bits of the largest
// magnitude, in whose order numbers, infinities and NaNs follow each other. As octavo_kernels.reference.quantise; what is
// not finite makes the scale NaN.
struct RowScale {
  float forth, back;
};
template <class C>
__device__ inline RowScale row_scale(uint32_t most) {
  if (most >= 0x7f800000u) return {0.0f, __uint_as_float(0x7fc00000u)};
  const float magnitude = __uint_as_float(most);
  if (magnitude < 1e-30f) return {0.0f, 0.0f};
  return {__fdiv_rn(C::largest, magnitude), __fdiv_rn(magnitude, C::largest)};
}

// The bits of the largest magnitude of some numbers; the largest bits of so many lanes beside each other.
template <int N>
__device__ inline uint32_t largest_of(const float (&x)[N]) {
  uint32_t most = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) most = max(most, __float_as_uint(x[j]) & 0x7fffffffu);
  return most;
}

template <int kLanes>
__device__ inline uint32_t lanes_max(uint32_t x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Value of a sum of products of codes.
__device__ inline float scaled(float sum, float x_scale, float weight_scale) {
  return __fmul_rn(sum, __fmul_rn(x_scale, weight_scale));
}
__device__ inline float scaled(int sum, float x_scale, float weight_scale) {
  return scaled(__int2float_rn(sum), x_scale, weight_scale);
}

// Both projections are rounded as if they had been stored.
template <class T>
__device__ inline float gated(Activation kind, float gate, float up) {
  return __fmul_rn(activated(kind, to_float(from_float<T>(gate))), to_float(from_float<T>(up)));
}

template <class T>
__device__ inline float element(const void* data, int64_t at) {
  return to_float(static_cast<const T*>(data)[at]);
}

cudaError_t w8a8_plain(const W8A8Args&, cudaStream_t);
// In builds for 90a, on Hopper.
cudaError_t w8a8_wide(const W8A8Args&, const W8A8Launch&, const Device&, cudaStream_t);

inline bool begins_aligned(const void* data, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}
// True if everything begins at multiples of 16 bytes, and the weight's rows come in eights.
inline bool in_eights(const W8A8Args& a) {
  return a.depth > 0 && a.columns % (a.gated ? 16 : 8) == 0 && begins_aligned(a.x.codes, a.x.stride) &&
         begins_aligned(a.weight.codes, a.weight.stride) && begins_aligned(a.bias, 0) &&
         begins_aligned(a.residual, a.residual_stride * 2) && begins_aligned(a.out, a.out_stride * 2) &&
         begins_aligned(a.x.scales, a.x.scales_stride * 4) && begins_aligned(a.weight.scales, a.weight.scales_stride * 4);
}

}  // namespace octavo
