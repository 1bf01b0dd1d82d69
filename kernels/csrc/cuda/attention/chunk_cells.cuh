// The arithmetic of chunk.cuh for cells in eight bits. Products run in float16, which holds every code exactly; scores
// are multiplied with the scales of K, weights with those of V.
//
// Here keys, and columns of V, are the 16 rows of a tensor-core tile and the query rows its 8 columns: with few query
// heads to a KV head that takes half the products and half the registers. A thread holds the query rows 2t and 2t + 1 of
// each tile, where t = lane % 4, and the keys (or columns) g and g + 8, where g = lane / 4.
#pragma once

#include "attention/chunk_few.cuh"

namespace octavo {
namespace {

// The largest power of two that is not above x, and its inverse. Zero gives zero and a finite inverse, what is not finite
// an inverse of zero.
__device__ inline float power_below(float x) {
  return __uint_as_float(min(__float_as_uint(fabsf(x)) & 0x7f800000u, 254u << 23));
}
__device__ inline float inverse_power(float power) { return __uint_as_float((254u << 23) - __float_as_uint(power)); }

__device__ inline float shared_float(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

// Largest of all lanes; none of x is negative.
__device__ inline float warp_max(float x) { return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x))); }
// Largest of the lanes that hold the same query rows.
__device__ inline float keys_max(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ inline float keys_sum(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// At most 8 * R query rows of a warp in float16, as tensor-core fragments: in registers, or in shared memory where those
// are full. Rows of bfloat16 are divided by a power of two, `factor`, so that they fit.
template <int D, int R>
struct HalfQueries {
  static constexpr bool kHeld = R * D <= 256;
  static constexpr int kBytes = kHeld ? 0 : R * D / 16 * 32 * int(sizeof(uint2));  // of shared memory, for one warp
  uint32_t held[kHeld ? R : 1][D / 16][2];
  float factor[R][2];
  uint32_t own;

  // `locate` as for Queries.
  template <class F>
  __device__ HalfQueries(const AttentionArgs& a, int head, int count, F&& locate, uint32_t memory)
      : own(memory + threadIdx.x % 32 * 8) {
    const int lane = threadIdx.x % 32, group = a.heads / a.kv_heads;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int row = 8 * r + lane / 4;
      const uint32_t* from = nullptr;  // null: padding
      if (row < count) {
        const QueryRow at = locate(row);
        from = static_cast<const uint32_t*>(a.q) + (int64_t(at.token) * a.q_stride + (head * group + at.row % group) * D) / 2;
      }
      uint32_t(&values)[D / 16][2] = held[kHeld ? r : 0];
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) values[k][i] = from ? from[k * 8 + i * 4 + lane % 4] : 0;
      const float by = a.dtype == Dtype::bf16 ? narrow(values) : 1.0f;
#pragma unroll
      for (int i = 0; i < 2; ++i) factor[r][i] = __shfl_sync(~0u, by, (lane % 4 * 2 + i) * 4);
      if constexpr (!kHeld) {
#pragma unroll
        for (int k = 0; k < D / 16; ++k)
          asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(own + (r * (D / 16) + k) * 256), "r"(values[k][0]),
                       "r"(values[k][1])
                       : "memory");
        __syncwarp();  // one row after the other: registers are short
      }
    }
  }
  __device__ uint2 fragment(int r, int k) const {
    if constexpr (kHeld) return make_uint2(held[r][k][0], held[r][k][1]);
    uint2 x;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(own + (r * (D / 16) + k) * 256) : "memory");
    return x;
  }

 private:
  // Turns a row from bfloat16 into float16 and returns what it was divided by.
  __device__ static float narrow(uint32_t (&row)[D / 16][2]) {
    float most = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) most = fmaxf(most, fmaxf(fabsf(floats(row[k][i]).x), fabsf(floats(row[k][i]).y)));
    const float power = power_below(quad_max(most)), by = power > 0.0f ? power : 1.0f, inverse = inverse_power(by);
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 x = floats(row[k][i]);
        row[k][i] = pack<f16>(x.x * inverse, x.y * inverse);
      }
    return by;
  }
  __device__ static float2 floats(uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  }
};

// How many slices a warp takes at once: in eight bits they are too short to hide latencies one by one.
template <int D>
constexpr int slices_at_once = D <= 64 ? 4 : D <= 128 ? 2 : 1;

// Softmax state of a warp over cells. `m` is in the log2 domain; until `finish`, `o` stands for `unit` times its value
// and `l` for a part of the sum.
template <int D, int R>
struct CellState {
  float m[R][2], l[R][2];
  float o[R][D / 16][4];  // columns 16 k + g and 16 k + g + 8, of two query rows each
  float unit;

  __device__ void clear() {
    unit = 0.0f;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      m[r][0] = m[r][1] = kNoScore, l[r][0] = l[r][1] = 0.0f;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) o[r][k][0] = o[r][k][1] = o[r][k][2] = o[r][k][3] = 0.0f;
    }
  }
  __device__ void scale(int r, float first, float second) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) o[r][k][0] *= first, o[r][k][1] *= second, o[r][k][2] *= first, o[r][k][3] *= second;
  }
  // Makes room for values of scales up to `most`: weights below 2^8 times scales stay inside float16.
  __device__ void admit(float most) {
    if (most <= 32.0f * unit) return;
    const float power = power_below(most), factor = unit * inverse_power(power);
#pragma unroll
    for (int r = 0; r < R; ++r) scale(r, factor, factor);
    unit = power;
  }
  __device__ void finish() {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      scale(r, unit, unit);
#pragma unroll
      for (int i = 0; i < 2; ++i) l[r][i] = keys_sum(l[r][i]);
    }
  }
};

// Products of N slices of 16 keys with the query rows, times the keys' scales; those of queries are still missing.
template <class C, int D, int R, int N>
__device__ void score_cells(const HalfQueries<D, R>& queries, const uint32_t (&keys)[N], float (&s)[N][R][4]) {
  const int lane = threadIdx.x % 32, row = lane & 15;
  float sums[2][N][R][4] = {};  // side by side: a product waits for its sum
#pragma unroll
  for (int k = 0; k < D / 16; k += 2)
#pragma unroll
    for (int n = 0; n < N; ++n) {
      uint32_t cells[4];
      ldmatrix(cells, keys[n] + row * D + swizzle_units(D / 16, row, k + (lane >> 4)) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t tile[4];
        widen<false>(C{}, cells[2 * i], tile[0], tile[2]);
        widen<false>(C{}, cells[2 * i + 1], tile[1], tile[3]);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const uint2 q = queries.fragment(r, k + i);
          mma<f16>(sums[i][n][r], tile, q.x, q.y);
        }
      }
    }
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = shared_float(keys[n] + kSlice * D + (half * 8 + lane / 4) * 4);
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) s[n][r][i] = scale * (sums[0][n][r][i] + sums[1][n][r][i]);
    }
}

// Adds N slices of 16 keys to the state; their scores stand for s * by in the log2 domain.
template <class C, int D, int R, int N>
__device__ void absorb_cells(float (&s)[N][R][4], const float (&by)[R][2], const uint32_t (&values)[N],
                             CellState<D, R>& st) {
  const int lane = threadIdx.x % 32, row = lane & 15;
  float high[R][2];
  bool rises = false;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      high[r][i] = s[0][r][i];
#pragma unroll
      for (int n = 0; n < N; ++n) high[r][i] = fmaxf(high[r][i], fmaxf(s[n][r][i], s[n][r][2 + i]));
      rises |= high[r][i] * by[r][i] > st.m[r][i] + kSlack;
    }
  if (__any_sync(~0u, rises)) {  // rare; each row decides for itself
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float top = keys_max(high[r][i]) * by[r][i];
        const bool mine = top > st.m[r][i] + kSlack;
        factor[i] = mine ? fast_exp2(st.m[r][i] - top) : 1.0f;
        st.m[r][i] = mine ? top : st.m[r][i], st.l[r][i] *= factor[i];
      }
      st.scale(r, factor[0], factor[1]);
    }
  }
  float scale[N][2], most = 0.0f;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scale[n][half] = shared_float(values[n] + kSlice * D + (half * 8 + lane / 4) * 4);
      most = __uint_as_float(max(__float_as_uint(most), __float_as_uint(scale[n][half])));  // so that NaN is seen
    }
  st.admit(warp_max(most));
  const float inverse = inverse_power(st.unit);
  uint32_t weights[N][R][2];
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float times = scale[n][half] * inverse;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float p[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          p[i] = fast_exp2(__fmaf_rn(s[n][r][2 * half + i], by[r][i], -st.m[r][i]));
          st.l[r][i] += p[i];
        }
        weights[n][r][half] = transpose(pack<f16>(p[0] * times, p[1] * times));
      }
    }
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int k = 0; k < D / 16; k += 2) {
      uint32_t cells[4];
      ldmatrix_transposed(cells, values[n] + row * D + swizzle_units(D / 16, row, k + (lane >> 4)) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t tile[4];  // columns g and g + 8, of tokens 0 to 7, then of tokens 8 to 15
        widen<true>(C{}, cells[2 * i], tile[0], tile[1]);
        widen<true>(C{}, cells[2 * i + 1], tile[2], tile[3]);
#pragma unroll
        for (int r = 0; r < R; ++r) mma<f16>(st.o[r][k + i], tile, weights[n][r][0], weights[n][r][1]);
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
