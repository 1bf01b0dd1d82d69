// The arithmetic of chunk.cuh for at most eight query rows, bit for bit, the other way round: keys, and columns of V, are the 16
// rows of a tensor-core tile and the query rows its 8 columns, which takes half the products and half the registers. Below,
// g = lane / 4 and t = lane % 4.
#pragma once

#include "attention/chunk.cuh"

namespace octavo {
namespace {

// A thread holds `m` and `l` of row g, and of the outputs the columns 16 k + g and 16 k + g + 8 of the rows 2 t and 2 t + 1.
template <int C>
struct State<C, 1> {
  float m[1], l[1];
  float o[C / 16][4];

  __device__ void clear() {
    m[0] = kNoScore, l[0] = 0.0f;
#pragma unroll
    for (int k = 0; k < C / 16; ++k) o[k][0] = o[k][1] = o[k][2] = o[k][3] = 0.0f;
  }
  // For the two rows of the thread's outputs, what each thread knows of row g.
  __device__ static float2 of_outputs(float mine) {
    const int lane = threadIdx.x % 4 * 8;
    return make_float2(__shfl_sync(~0u, mine, lane), __shfl_sync(~0u, mine, lane + 4));
  }
  __device__ void scale(float factor) {
    const float2 by = of_outputs(factor);
#pragma unroll
    for (int k = 0; k < C / 16; ++k) o[k][0] *= by.x, o[k][1] *= by.y, o[k][2] *= by.x, o[k][3] *= by.y;
  }
  // Joins the keys of a later lane.
  __device__ void join(const State& later) {
    const float top = fmaxf(m[0], later.m[0]);
    const float old_weight = fast_exp2(__fsub_rn(m[0], top)), weight = fast_exp2(__fsub_rn(later.m[0], top));
    m[0] = top, l[0] = __fmaf_rn(later.l[0], weight, __fmul_rn(l[0], old_weight));
    const float2 old = of_outputs(old_weight), now = of_outputs(weight);
#pragma unroll
    for (int k = 0; k < C / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        o[k][i] = __fmaf_rn(later.o[k][i], i % 2 ? now.y : now.x, __fmul_rn(o[k][i], i % 2 ? old.y : old.x));
  }
};

// The k-th 16 dimensions of a slice's keys, or columns of its values, as the left operand of a tensor core instruction.
template <int D>
__device__ void read_keys(uint32_t keys, int k, uint32_t (&tile)[4]) {
  const int lane = threadIdx.x % 32, row = lane & 15;
  ldmatrix(tile, keys + row * (D * 2) + swizzle(D, row, 2 * k + (lane >> 4)) * 16);
}
template <int D>
__device__ void read_values(uint32_t values, int k, uint32_t (&tile)[4]) {
  const int lane = threadIdx.x % 32, row = (lane & 7) + (lane >> 4) * 8;
  ldmatrix_transposed(tile, values + row * (D * 2) + swizzle(D, row, 2 * k + (lane >> 3 & 1)) * 16);
}

// Keys and values of a slice as fragments: read at once and held, or where registers are full read when they are needed.
template <int D>
struct SliceTiles {
  static constexpr bool kHeld = D <= 128;
  uint32_t keys_at, values_at, held_keys[kHeld ? D / 16 : 1][4], held_values[kHeld ? D / 16 : 1][4];

  __device__ SliceTiles(uint32_t keys, uint32_t values) : keys_at(keys), values_at(values) {
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) read_keys<D>(keys, k, held_keys[k]);
#pragma unroll
      for (int k = 0; k < D / 16; ++k) read_values<D>(values, k, held_values[k]);
    }
  }
  // Adds the products of all keys with 16 dimensions of the query rows, the k-th of so many.
  template <class T>
  __device__ void score(int k, uint32_t q0, uint32_t q1, float (&s)[4]) const {
    if constexpr (kHeld) return mma<T>(s, held_keys[k], q0, q1);
    uint32_t tile[4];
    read_keys<D>(keys_at, k, tile);
    mma<T>(s, tile, q0, q1);
  }
  // Adds the products of the k-th 16 columns of all values with the rows' weights.
  template <class T>
  __device__ void weigh(int k, const uint32_t (&weights)[2], float (&o)[4]) const {
    if constexpr (kHeld) return mma<T>(o, held_values[k], weights[0], weights[1]);
    uint32_t tile[4];
    read_values<D>(values_at, k, tile);
    mma<T>(o, tile, weights[0], weights[1]);
  }
};

// A tile of float32, of which a thread holds two of row g, transposed: half by half.
__device__ inline void transpose_floats(float& x, float& y) {
  const uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
  const uint32_t low = transpose(__byte_perm(a, b, 0x5410)), high = transpose(__byte_perm(a, b, 0x7632));
  x = __uint_as_float(__byte_perm(low, high, 0x5410)), y = __uint_as_float(__byte_perm(low, high, 0x7632));
}

// Scores of keys that are the rows of a tile, where they lie after `score` of chunk.cuh.
__device__ inline void turn_scores(float (&sums)[4], float (&s)[2][4]) {
  transpose_floats(sums[0], sums[1]), transpose_floats(sums[2], sums[3]);
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i / 2][i % 2] = sums[i], s[i / 2][2 + i % 2] = 0.0f;
}

// As `score` of chunk.cuh.
template <class T, int D>
__device__ void score(const Queries<T, D, 1>& queries, const SliceTiles<D>& tiles, float (&s)[2][4]) {
  float sums[4] = {};
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t q[4];
    queries.fragment(k, q);
    tiles.template score<T>(k, q[0], q[2], sums);
  }
  turn_scores(sums, s);
}

// `soften` of chunk.cuh in steps. The largest of a thread's scores, and whether it is far above the maximum.
__device__ inline float highest(const float (&s)[2][4]) { return fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1])); }
template <int D>
__device__ bool rises(float high, float unit, const State<D, 1>& st) {
  return __fmul_rn(high, unit) > __fadd_rn(st.m[0], kSlack);
}
// Raises the maxima of those rows where some thread's rises, and gives the factor of what was there. `first`: nothing has been
// added to the state yet, which is not read then.
template <int D, bool first>
__device__ float raise(float high, float unit, State<D, 1>& st) {
  const float top = __fmul_rn(quad_max(high), unit);
  float factor = 1.0f;
  if (top > __fadd_rn(st.m[0], kSlack)) factor = fast_exp2(__fsub_rn(st.m[0], top)), st.m[0] = top;
  if (!first) st.scale(factor);
  return factor;
}
template <class T, int D, bool first>
__device__ void weigh(const float (&s)[2][4], float unit, float factor, State<D, 1>& st, uint32_t (&weights)[2]) {
  float p[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) p[i] = fast_exp2(__fmaf_rn(s[i / 2][i % 2], unit, -st.m[0]));
  const float sum = __fadd_rn(__fadd_rn(p[0], p[1]), __fadd_rn(p[2], p[3]));
  st.l[0] = first ? sum : __fmaf_rn(st.l[0], factor, sum);
  weights[0] = pack<T>(p[0], p[1]), weights[1] = pack<T>(p[2], p[3]);
}
template <class T, int D, bool first>
__device__ void soften(const float (&s)[2][4], float unit, State<D, 1>& st, uint32_t (&weights)[2]) {
  const float high = highest(s);
  float factor = 1.0f;
  if (first) st.m[0] = kNoScore;
  if (first || __any_sync(~0u, rises(high, unit, st))) factor = raise<D, first>(high, unit, st);  // rare after the first slice
  weigh<T, D, first>(s, unit, factor, st, weights);
}

// Adds a slice whose scores are known to the state.
template <class T, int D, bool first>
__device__ void absorb(const float (&s)[2][4], float unit, const SliceTiles<D>& tiles, State<D, 1>& st) {
  uint32_t weights[2];
  soften<T, D, first>(s, unit, st, weights);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    if (first) st.o[k][0] = st.o[k][1] = st.o[k][2] = st.o[k][3] = 0.0f;
    tiles.template weigh<T>(k, weights, st.o[k]);
  }
}

}  // namespace
}  // namespace octavo
