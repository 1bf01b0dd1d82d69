// The arithmetic of chunk.cuh for cells in eight bits. Products run in float16, which holds every code exactly; scores
// are multiplied with the scales of K, weights with those of V.
#pragma once

#include "chunk.cuh"

namespace octavo {
namespace {

// The largest power of two that is not above x, and its inverse. Zero gives zero and a finite inverse, what is not finite
// an inverse of zero.
__device__ inline float power_below(float x) {
  return __uint_as_float(min(__float_as_uint(fabsf(x)) & 0x7f800000u, 254u << 23));
}
__device__ inline float inverse_power(float power) { return __uint_as_float((254u << 23) - __float_as_uint(power)); }

// Two products of float16.
__device__ inline uint32_t multiply(uint32_t a, uint32_t b) {
  const __half2 product = __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&product);
}

__device__ inline float2 shared_pair(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}

// Query rows of a warp in float16, as tensor-core fragments: in registers, or in shared memory where those are full.
// Rows of bfloat16 are divided by a power of two, `factor`, so that they fit.
template <int D>
struct HalfQueries {
  using Bits = Queries<f16, D>;  // which reads bfloat16 as well, as bits
  static constexpr bool kHeld = Bits::kHeld;
  static constexpr int kBytes = kHeld ? 0 : D / 16 * 32 * int(sizeof(uint4));  // of shared memory, for one warp
  uint32_t held[kHeld ? D / 16 : 1][4];
  uint4* own;
  float factor[2] = {1.0f, 1.0f};  // of rows lane / 4 and lane / 4 + 8

  template <class F>
  __device__ HalfQueries(const AttentionArgs& a, int head, int count, F&& locate, void* memory)
      : own(static_cast<uint4*>(memory) + threadIdx.x % 32) {
    const Bits rows(a, head, count, locate);
    const bool wide = a.dtype == Dtype::bf16;
    float inverse[2] = {1.0f, 1.0f};
    if (wide) {
      float most[2] = {};
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        uint32_t x[4];
        rows.fragment(k, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = floats(x[i]);
          most[i % 2] = fmaxf(most[i % 2], fmaxf(fabsf(pair.x), fabsf(pair.y)));
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) factor[r] = power_below(quad_max(most[r])), inverse[r] = inverse_power(factor[r]);
    }
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t x[4];
      rows.fragment(k, x);
      if (wide) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = floats(x[i]);
          x[i] = pack<f16>(pair.x * inverse[i % 2], pair.y * inverse[i % 2]);
        }
      }
      if constexpr (kHeld) held[k][0] = x[0], held[k][1] = x[1], held[k][2] = x[2], held[k][3] = x[3];
      else own[k * 32] = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
  __device__ void fragment(int k, uint32_t (&out)[4]) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = held[k][i];
    } else {
      const uint4 x = own[k * 32];
      out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
    }
  }

 private:
  __device__ static float2 floats(uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  }
};

// How many slices a warp takes at once: in eight bits they are too short to hide latencies one by one.
template <int D>
constexpr int slices_at_once = D <= 64 ? 4 : D <= 128 ? 2 : 1;

// State of a warp over cells; its columns stand for `unit` times their value.
template <int D, int R>
struct ScaledState : State<D, R> {
  float unit;

  __device__ void clear() {
    State<D, R>::clear();
    unit = 0.0f;
  }
  // Makes room for values of scales up to `most`: weights below 2^8 times scales stay inside float16.
  __device__ void admit(float most) {
    if (most <= 32.0f * unit) return;
    const float power = power_below(most), factor = unit * inverse_power(power);
#pragma unroll
    for (int r = 0; r < R; ++r) this->scale(r, factor);
    unit = power;
  }
  __device__ void finish() {
#pragma unroll
    for (int r = 0; r < R; ++r) this->scale(r, unit);
  }
};

// Products of the query rows with N slices of 16 keys, times the keys' scales.
template <class C, int D, int N>
__device__ void score_cells(const HalfQueries<D>& queries, const uint32_t (&keys)[N], float (&s)[N][2][4]) {
  const int lane = threadIdx.x % 32, row = lane & 15;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int j = 0; j < 8; ++j) s[n][j / 4][j % 4] = 0.0f;
#pragma unroll
  for (int k = 0; k < D / 16; k += 2) {
    uint32_t q[2][4];
    queries.fragment(k, q[0]), queries.fragment(k + 1, q[1]);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      uint32_t cells[4], low, high;
      ldmatrix(cells, keys[n] + row * D + swizzle_units(D / 16, row, k + (lane >> 4)) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        widen<false>(C{}, cells[i], low, high);
        mma<f16>(s[n][i % 2], q[i / 2], low, high);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 scale = shared_pair(keys[n] + kSlice * D + (half * 8 + lane % 4 * 2) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        s[n][half][2 * r] *= scale.x * queries.factor[r];
        s[n][half][2 * r + 1] *= scale.y * queries.factor[r];
      }
    }
}

// Adds N slices of 16 keys, of which the scores are known, to the state.
template <class C, int D, int R, int N>
__device__ void absorb_cells(const float (&s)[N][2][4], float unit, const uint32_t (&values)[N],
                             ScaledState<D, R>& st) {
  const int lane = threadIdx.x % 32, row = lane & 15;
  Weights<R, N> weights;
  soften<f16>(s, unit, st.m, st.l, weights);
  float2 scale[N][2];
  float most = 0.0f;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scale[n][half] = shared_pair(values[n] + kSlice * D + (half * 8 + lane % 4 * 2) * 4);
      most = fmaxf(most, fmaxf(scale[n][half].x, scale[n][half].y));
    }
  st.admit(quad_max(most));
  const float inverse = inverse_power(st.unit);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (weights.rescaled[n]) {
#pragma unroll
      for (int r = 0; r < R; ++r) st.scale(r, weights.factor[n][r]);
    }
    uint32_t(&packed)[4] = weights.at[n];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t by = pack<f16>(scale[n][half].x * inverse, scale[n][half].y * inverse);
      packed[2 * half] = multiply(packed[2 * half], by);
      if (R > 1) packed[2 * half + 1] = multiply(packed[2 * half + 1], by);
    }
#pragma unroll
    for (int k = 0; k < D / 16; k += 2) {
      uint32_t cells[4];
      ldmatrix_transposed(cells, values[n] + row * D + swizzle_units(D / 16, row, k + (lane >> 4)) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t first[2], second[2];  // of tokens 0 to 7 and 8 to 15: columns g, columns g + 8
#pragma unroll
        for (int half = 0; half < 2; ++half) widen<true>(C{}, cells[2 * i + half], first[half], second[half]);
        mma<f16>(st.o[2 * (k + i)], packed, first[0], first[1]);
        mma<f16>(st.o[2 * (k + i) + 1], packed, second[0], second[1]);
      }
    }
  }
}

// Zeroes cells and scales of V of the tokens outside [low, high) of a slice: their weight is zero, 0 * NaN would be NaN.
template <int D>
__device__ inline void clear_cells(uint32_t values, int low, int high) {
  clear_values<D / 2>(values, kSlice, low, high, threadIdx.x % 32, 32);
  const int token = threadIdx.x % 32;
  if (token < kSlice && (token < low || token >= high))
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(values + kSlice * D + token * 4), "r"(0) : "memory");
#if OCTAVO_BULK_COPY
  fence_bulk();
#endif
}

}  // namespace
}  // namespace octavo
