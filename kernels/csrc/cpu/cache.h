// QK-norm, rotary embedding and the write into the paged cache, one token at a time.
#pragma once

#include "dispatch.h"
#include "math.h"

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

inline void rotate(float* x, const float* cos_sin, int rotary_dim, bool interleaved) {
  const int half = rotary_dim / 2;
  const float *cos = cos_sin, *sin = cos_sin + half;
  if (interleaved) {
    for (int i = 0; i < half; ++i) {
      float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
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

template <class T>
void write_typed(const WriteArgs& a, int64_t begin, int64_t end) {
  const int D = a.head_dim, bs = a.cache.block_size;
  alignas(64) float row[kMaxHeadDim];
  alignas(64) T narrow[kMaxHeadDim];
  for (int64_t t = begin; t < end; ++t) {
    const float* cos_sin = a.cos_sin ? a.cos_sin + a.positions[t] * a.cos_sin_stride : nullptr;
    if (a.q) {
      const T* q = static_cast<const T*>(a.q) + t * a.q_stride;
      T* out = static_cast<T*>(a.q_out) + t * a.q_out_stride;
      for (int h = 0; h < a.heads; ++h) {
        widen_row(q + h * D, row, D);
        if (a.q_norm) head_norm(row, static_cast<const T*>(a.q_norm), D, a.eps, a.norm_offset);
        if (cos_sin) rotate(row, cos_sin, a.rotary_dim, a.interleaved);
        narrow_row(row, out + h * D, D);
      }
    }
    const int64_t slot = a.slots[t];
    if (slot < 0) continue;
    T* block = static_cast<T*>(a.cache.data) + slot / bs * a.cache.block_stride;
    const int64_t offset = slot % bs;
    const T* k = static_cast<const T*>(a.k) + t * a.k_stride;
    const T* v = static_cast<const T*>(a.v) + t * a.v_stride;
    for (int h = 0; h < a.kv_heads; ++h) {
      T* head = block + h * a.cache.head_stride;
      const T* key = k + h * D;
      if (a.k_norm || cos_sin) {
        widen_row(key, row, D);
        if (a.k_norm) head_norm(row, static_cast<const T*>(a.k_norm), D, a.eps, a.norm_offset);
        if (cos_sin) rotate(row, cos_sin, a.rotary_dim, a.interleaved);
        narrow_row(row, narrow, D);
        key = narrow;
      }
      for (int d = 0; d < D; ++d) head[d * bs + offset] = key[d];
      __builtin_memcpy(head + a.cache.kv_stride + offset * D, v + h * D, D * sizeof(T));
    }
  }
}

void write(const WriteArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { write_typed<decltype(tag)>(a, begin, end); });
}

}  // namespace
}  // namespace octavo
