// Rows that a layer with latent attention keeps, and the rotated part of its queries: one warp a token and head, and one for
// the row that is kept.
#pragma once

#include "cache/cells.cuh"
#include "latent/args.h"

namespace octavo {

constexpr int kLatentWarps = 8;  // of a block

inline int64_t latent_blocks(const LatentRowsArgs& a) { return (a.tokens * (a.heads + 1) + kLatentWarps - 1) / kLatentWarps; }

// Rotates `columns` values in halves: calls put(column, value) for each.
template <class T, class F>
__device__ void rotate(const T* x, int columns, const float* cosine, F&& put) {
  const int half = columns / 2;
  for (int i = threadIdx.x % 32; i < half; i += 32) {
    const float a = to_float(x[i]), b = to_float(x[half + i]), c = cosine[i], s = cosine[half + i];
    put(i, __fmaf_rn(a, c, -__fmul_rn(b, s))), put(half + i, __fmaf_rn(a, s, __fmul_rn(b, c)));
  }
}

// Codes of a latent, `normed(column)`, and their scale, in a block's cells. What is not finite makes the scale NaN.
template <class C, class F>
__device__ void encode(C* cells, int rank, int token, int block_size, F&& normed) {
  const int lane = threadIdx.x % 32;
  float most = 0.0f, broken = 0.0f;
  for (int i = lane; i < rank; i += 32) {
    const float x = normed(i);
    most = fmaxf(most, fabsf(x)), broken += x * 0.0f;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  broken = warp_sum(broken);
  const bool none = most < 1e-30f;  // the inverse of a subnormal would be infinite
  const float factor = none ? 0.0f : C::largest / most;
  if (lane == 0) scales_of(cells, rank, block_size)[token] = (none ? 0.0f : most / C::largest) + broken;
  for (int i = lane; i < rank; i += 32)
    cells[token * rank + cell_place<C>(rank, token, i, false)] = C::encode(normed(i) * factor);
}

// A warp's part of the `block`-th eight.
template <class T, class C>
__device__ void keep_latent(const LatentRowsArgs& a, int64_t block) {
  const int rows = a.heads + 1, lane = threadIdx.x % 32;
  const int64_t index = block * kLatentWarps + threadIdx.x / 32, token = index / rows;
  if (token >= a.tokens) return;
  const int head = int(index % rows), width = a.rank + a.rotated;
  const float* cosine = a.cos_sin + a.positions[token] * a.cos_sin_stride;
  if (head < a.heads) {
    T* out = static_cast<T*>(a.q_out) + token * a.q_out_stride + head * width + a.rank;
    const T* q = static_cast<const T*>(a.q) + token * a.q_stride + head * a.q_head_stride;
    rotate(q, a.rotated, cosine, [&](int column, float x) { out[column] = from_float<T>(x); });
    return;
  }
  const int64_t slot = a.slots[token];
  if (slot < 0) return;
  const T *kept = static_cast<const T*>(a.kept) + token * a.kept_stride, *weight = static_cast<const T*>(a.norm);
  const int within = int(slot % a.cache.block_size);
  C* const cells = static_cast<C*>(a.cache.data) + slot / a.cache.block_size * a.cache.block_stride;
  float squares = 0.0f;
  for (int i = lane; i < a.rank; i += 32) {
    const float x = to_float(kept[i]);
    squares = __fmaf_rn(x, x, squares);
  }
  const float inverse = rsqrtf(warp_sum(squares) / float(a.rank) + a.eps);
  const auto normed = [&](int i) { return from_float<T>(to_float(kept[i]) * inverse * (a.norm_offset + to_float(weight[i]))); };
  if constexpr (is_scaled<C>) {
    encode(cells, a.rank, within, a.cache.block_size, [&](int i) { return to_float(normed(i)); });
    T* const exact = exact_of<T>(cells, a.rank, a.cache.block_size) + within * a.rotated;
    rotate(kept + a.rank, a.rotated, cosine, [&](int column, float x) { exact[column] = from_float<T>(x); });
  } else {
    T* const row = cells + int64_t(within) * width;
    const auto put = [&](int column, T x) { row[cell_place<T>(width, within, column, false)] = x; };
    for (int i = lane; i < a.rank; i += 32) put(i, normed(i));
    rotate(kept + a.rank, a.rotated, cosine, [&](int column, float x) { put(a.rank + column, from_float<T>(x)); });
  }
}

// Calls f with a value of the type of the cache's cells, for rows of type T.
template <class T, class F>
cudaError_t with_latent_cells(T row, Cells cells, F&& f) {
  if (cells == Cells::i8) return f(i8{});
  if (cells == Cells::f8) return f(f8{});
  return f(row);
}

}  // namespace octavo
