// Element types, and where a row's units lie.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "operands.h"

namespace octavo {

using bf16 = __nv_bfloat16;
using f16 = __half;

inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr float kNoScore = -1e30f;  // running maximum of a row that has seen no key

// Calls f with a value of the 16-bit element type.
template <class F>
inline cudaError_t with_half(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::bf16: return f(bf16{});
    case Dtype::f16: return f(f16{});
    default: return cudaErrorInvalidValue;
  }
}
// Calls f with the head dim as a type, where the tensor-core kernels take it.
template <class F>
inline cudaError_t with_head_dim(int head_dim, F&& f) {
  switch (head_dim) {
    case 32: return f(std::integral_constant<int, 32>{});
    case 64: return f(std::integral_constant<int, 64>{});
    case 96: return f(std::integral_constant<int, 96>{});
    case 128: return f(std::integral_constant<int, 128>{});
    case 256: return f(std::integral_constant<int, 256>{});
    default: return cudaErrorInvalidValue;
  }
}
// Types that are common, for kernels of which there are many kinds.
template <class F>
inline cudaError_t with_common_head_dim(int head_dim, F&& f) {
  switch (head_dim) {
    case 64: return f(std::integral_constant<int, 64>{});
    case 128: return f(std::integral_constant<int, 128>{});
    case 256: return f(std::integral_constant<int, 256>{});
    default: return cudaErrorInvalidValue;
  }
}
template <class F>
inline cudaError_t with_dtype(Dtype dtype, F&& f) {
  if (dtype == Dtype::f32) return f(float{});
  return with_half(dtype, f);
}

// Where the 16-byte unit `unit` of a token's row of `units` lies: eight consecutive rows put the same unit into eight
// different bank groups where the length of a row allows it. `token` counts inside the block. Spelled so that the
// compiler sees which bits stay: fewer offsets in registers.
__host__ __device__ constexpr int swizzle_units(int units, int token, int unit) {
  return units % 8 == 0   ? (unit & ~7) + ((unit ^ token) & 7)
         : units % 4 == 0 ? (unit & ~3) + ((unit ^ token >> 1) & 3)
         : units % 2 == 0 ? (unit & ~1) + ((unit ^ token >> 2) & 1)
                          : unit;
}
// The same for a row of `head_dim` elements of 16 bits.
__host__ __device__ constexpr int swizzle(int head_dim, int token, int unit) {
  return swizzle_units(head_dim / 8, token, unit);
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(f16 x) { return __half2float(x); }
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline f16 from_float<f16>(float x) {
  return __float2half_rn(x);
}

// N consecutive elements, loaded and stored with the widest access their size allows.
template <class T, int N>
struct alignas(N * sizeof(T) % 16 == 0 ? 16 : N * sizeof(T) % 8 == 0 ? 8 : N * sizeof(T) % 4 == 0 ? 4 : sizeof(T))
    Elements {
  T at[N];
};

}  // namespace octavo
