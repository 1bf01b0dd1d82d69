// Rows that a layer with latent attention keeps, and the rotated part of its queries: one warp a token and head, and one for
// the row that is kept.
#pragma once

#include "cache/cells.cuh"
#include "latent/args.h"

namespace octavo {

constexpr int kLatentWarps = 8;  // of a block

inline int64_t latent_blocks(const LatentRowsArgs& a) { return (a.tokens * (a.heads + 1) + kLatentWarps - 1) / kLatentWarps; }

// A warp's row: the rotated part of a query, or what is kept of a token. It is bound by the latency of its loads: what is older
// than the previous kernel is loaded before that has ended, and the rest at once.
template <class T, class C>
struct LatentRow {
  static constexpr int kHeld = 16;  // values of the latent that a lane has in registers
  const LatentRowsArgs& a;
  const int lane, rows, half;
  const int64_t token;
  const int head;  // behind the last one: what is kept
  const bool there;
  const float* cosine = nullptr;
  int64_t slot = -1;
  float turn[2];  // the cosine and the sine of the lane's first column
  T weights[kHeld], values[kHeld];

  // Of the `block`-th eight.
  __device__ LatentRow(const LatentRowsArgs& args, int64_t block)
      : a(args), lane(threadIdx.x % 32), rows(args.heads + 1), half(args.rotated / 2),
        token((block * kLatentWarps + threadIdx.x / 32) / rows), head(int((block * kLatentWarps + threadIdx.x / 32) % rows)),
        there(token < args.tokens) {
    if (!there) return;
    cosine = a.cos_sin + a.positions[token] * a.cos_sin_stride;
    if (lane < half) turn[0] = cosine[lane], turn[1] = cosine[half + lane];
    if (head < a.heads) return;
    slot = a.slots[token];
    for_held([&](int j, int i) { weights[j] = weight()[i]; });
  }

  __device__ const T* weight() const { return static_cast<const T*>(a.norm); }
  template <class F>
  __device__ void for_held(F&& f) const {
#pragma unroll
    for (int j = 0; j < kHeld; ++j)
      if (const int i = j * 32 + lane; i < a.rank) f(j, i);
  }
  // Calls f(column, value, weight of the norm) with the lane's columns of the latent.
  template <class F>
  __device__ void for_latent(const T* kept, F&& f) const {
    for_held([&](int j, int i) { f(i, to_float(values[j]), to_float(weights[j])); });
    for (int i = kHeld * 32 + lane; i < a.rank; i += 32) f(i, to_float(kept[i]), to_float(weight()[i]));
  }
  // Rotates a row in halves: calls put(column, value) for each.
  template <class F>
  __device__ void rotate(const T* x, F&& put) const {
    for (int i = lane; i < half; i += 32) {
      const float c = i < 32 ? turn[0] : cosine[i], s = i < 32 ? turn[1] : cosine[half + i];
      const float first = to_float(x[i]), second = to_float(x[half + i]);
      put(i, __fmaf_rn(first, c, -__fmul_rn(second, s))), put(half + i, __fmaf_rn(first, s, __fmul_rn(second, c)));
    }
  }

  __device__ void keep() {
    if (!there) return;
    if (head < a.heads) return rotate_query();
    if (slot < 0) return;
    const T* const kept = static_cast<const T*>(a.kept) + token * a.kept_stride;
    for_held([&](int j, int i) { values[j] = kept[i]; });
    float squares = 0.0f;
    for_latent(kept, [&](int, float x, float) { squares = __fmaf_rn(x, x, squares); });
    const float inverse = rsqrtf(warp_sum(squares) / float(a.rank) + a.eps);
    const auto for_normed = [&](auto&& f) {
      for_latent(kept, [&](int i, float x, float by) { f(i, from_float<T>(x * inverse * (a.norm_offset + by))); });
    };
    const int within = int(slot % a.cache.block_size), width = a.rank + a.rotated;
    C* const cells = static_cast<C*>(a.cache.data) + slot / a.cache.block_size * a.cache.block_stride;
    if constexpr (is_scaled<C>) {
      encode(cells, within, for_normed);
      T* const exact = exact_of<T>(cells, a.rank, a.cache.block_size) + within * a.rotated;
      rotate(kept + a.rank, [&](int column, float x) { exact[column] = from_float<T>(x); });
    } else {
      T* const row = cells + int64_t(within) * width;
      const auto put = [&](int column, T x) { row[cell_place<T>(width, within, column, false)] = x; };
      for_normed([&](int i, T x) { put(i, x); });
      rotate(kept + a.rank, [&](int column, float x) { put(a.rank + column, from_float<T>(x)); });
    }
  }

 private:
  __device__ void rotate_query() const {
    T* const out = static_cast<T*>(a.q_out) + token * a.q_out_stride + head * (a.rank + a.rotated) + a.rank;
    const T* const q = static_cast<const T*>(a.q) + token * a.q_stride + head * a.q_head_stride;
    rotate(q, [&](int column, float x) { out[column] = from_float<T>(x); });
  }
  // Codes of a latent, and their scale, in a block's cells. What is not finite makes the scale NaN.
  template <class F>
  __device__ void encode(C* cells, int within, F&& for_normed) const {
    float most = 0.0f, broken = 0.0f;
    for_normed([&](int, T x) { most = fmaxf(most, fabsf(to_float(x))), broken += to_float(x) * 0.0f; });
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    broken = warp_sum(broken);
    const bool none = most < 1e-30f;  // the inverse of a subnormal would be infinite
    const float factor = none ? 0.0f : C::largest / most;
    if (lane == 0) scales_of(cells, a.rank, a.cache.block_size)[within] = (none ? 0.0f : most / C::largest) + broken;
    for_normed([&](int i, T x) { cells[within * a.rank + cell_place<C>(a.rank, within, i, false)] = C::encode(to_float(x) * factor); });
  }
};

// Calls f with a value of the type of the cache's cells, for rows of type T.
template <class T, class F>
cudaError_t with_latent_cells(T row, Cells cells, F&& f) {
  if (cells == Cells::i8) return f(i8{});
  if (cells == Cells::f8) return f(f8{});
  return f(row);
}

}  // namespace octavo
