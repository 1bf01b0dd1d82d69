// QK-norm, rotary embedding and the write into the paged cache, one token at a time.
#pragma once

#include "codes.h"
#include "dispatch.h"

namespace octavo {
namespace {

template <class T>
inline void widen_row(const T* p, float* out, int n) {
  int i = 0;
  for (; i + W <= n; i += W) vstore(out + i, vload(p + i));
  if (i < n) vstore_n(out + i, vload_n(p + i, n - i), n - i);
}

template <class T>
inline void narrow_row(const float* p, T* out, int n) {
  int i = 0;
  for (; i + W <= n; i += W) vstore(out + i, vload(p + i));
  if (i < n) vstore_n(out + i, vload_n(p + i, n - i), n - i);
}

template <class T>
inline void head_norm(float* x, const T* weight, int n, float eps, float offset) {
  Vec sum = vset(0.0f);
  int i = 0;
  for (; i + W <= n; i += W) sum = vfma(vload(x + i), vload(x + i), sum);
  if (i < n) {
    Vec v = vload_n(x + i, n - i);
    sum = vfma(v, v, sum);
  }
  float inverse = 1.0f / __builtin_sqrtf(vsum(sum) / float(n) + eps);
  for (i = 0; i + W <= n; i += W)
    vstore(x + i, vload(x + i) * vset(inverse) * (vload(weight + i) + vset(offset)));
  if (i < n) {
    Vec v = vload_n(x + i, n - i) * vset(inverse) * (vload_n(weight + i, n - i) + vset(offset));
    vstore_n(x + i, v, n - i);
  }
}

inline void rotate(float* x, const float* cos_sin, int rotary_dim) {
  const int half = rotary_dim / 2;
  const float *cos = cos_sin, *sin = cos_sin + half;
  int i = 0;
  for (; i + W <= half; i += W) {
    Vec a = vload(x + i), b = vload(x + half + i), c = vload(cos + i), s = vload(sin + i);
    vstore(x + i, a * c - b * s);
    vstore(x + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

// A head's values, normalised and rotated where that is asked for.
template <class T>
inline void prepare_row(const WriteArgs& a, const T* x, const void* norm, const float* cos_sin, float* row) {
  widen_row(x, row, a.head_dim);
  if (norm) head_norm(row, static_cast<const T*>(norm), a.head_dim, a.eps, a.norm_offset);
  if (cos_sin) rotate(row + (a.cache.kv_stride ? 0 : a.head_dim - a.rotary_dim), cos_sin, a.rotary_dim);
}

template <class T, class C>
void write_typed(const WriteArgs& a, int64_t begin, int64_t end) {
  const int D = a.head_dim, bs = a.cache.block_size;
  alignas(64) float row[kMaxLatentDim];
  alignas(64) C cells[kMaxLatentDim];
  alignas(64) [[maybe_unused]] T exact[kMaxLatentDim];
  for (int64_t t = begin; t < end; ++t) {
    const float* cos_sin = a.cos_sin ? a.cos_sin + a.positions[t] * a.cos_sin_stride : nullptr;
    if (a.q) {
      const T* q = static_cast<const T*>(a.q) + t * a.q_stride;
      T* out = static_cast<T*>(a.q_out) + t * a.q_out_stride;
      for (int h = 0; h < a.heads; ++h) {
        prepare_row(a, q + h * D, a.q_norm, cos_sin, row);
        narrow_row(row, out + h * D, D);
      }
    }
    const int64_t slot = a.slots[t];
    if (slot < 0) continue;
    C* block = static_cast<C*>(a.cache.data) + slot / bs * a.cache.block_stride;
    const int64_t offset = slot % bs;
    const T* k = static_cast<const T*>(a.k) + t * a.k_stride;
    const T* v = static_cast<const T*>(a.v) + t * a.v_stride;
    for (int h = 0; h < a.kv_heads; ++h) {
      C *keys = block + h * a.cache.head_stride, *values = keys + a.cache.kv_stride;
      prepare_row(a, k + h * D, a.k_norm, cos_sin, row);
      const int coded = kScaled<C> && !a.cache.kv_stride ? D - a.rotary_dim : D;
      if constexpr (kScaled<C>) {
        if (coded < D) narrow_row(row + coded, exact, D - coded);
        for (int d = coded; d < D; ++d) exact_of<T>(keys, coded, bs)[(d - coded) * bs + offset] = exact[d - coded];
        scales_of(keys, coded, bs)[offset] = encode_row(row, coded, cells);
      } else {
        narrow_row(row, cells, D);
      }
      for (int d = 0; d < coded; ++d) keys[d * bs + offset] = cells[d];
      if (!a.cache.kv_stride) continue;
      if constexpr (kScaled<C>) {
        widen_row(v + h * D, row, D);
        scales_of(values, D, bs)[offset] = encode_row(row, D, values + offset * D);
      } else {
        __builtin_memcpy(values + offset * D, v + h * D, D * sizeof(T));
      }
    }
  }
}

void write(const WriteArgs& a, int64_t begin, int64_t end) {
  with_cells(a.dtype, a.cache.cells,
             [&](auto tag, auto cell) { write_typed<decltype(tag), decltype(cell)>(a, begin, end); });
}

}  // namespace
}  // namespace octavo
