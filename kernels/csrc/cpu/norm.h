// Row normalisation. The order of the sums depends on the row's width only.
#pragma once

#include "cache.h"

namespace octavo {
namespace {

// Calls f(offset, n) for whole vectors and a possibly shorter last one.
template <class F>
inline void for_vectors(int64_t width, F&& f) {
  int64_t i = 0;
  for (; i + W <= width; i += W) f(i, W);
  if (i < width) f(i, int(width - i));
}

template <class T>
inline Vec load_some(const T* p, int n) {
  return n == W ? vload(p) : vload_n(p, n);
}
template <class T>
inline void store_some(T* p, Vec x, int n) {
  if (n == W)
    vstore(p, x);
  else
    vstore_n(p, x, n);
}

// Adds x to the residual, rounds the sum to T as it is stored, and returns the row to normalise.
template <class T>
inline const T* add_residual(const NormArgs& a, int64_t row) {
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
  if (!a.residual) return x;
  T* residual = static_cast<T*>(a.residual) + row * a.residual_stride;
  for_vectors(a.width, [&](int64_t i, int n) {
    store_some(residual + i, load_some(residual + i, n) + load_some(x + i, n), n);
  });
  return residual;
}

template <class T>
void rms_norm_typed(const NormArgs& a, int64_t begin, int64_t end) {
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = add_residual<T>(a, row);
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    Vec sum = vset(0.0f);
    for_vectors(a.width, [&](int64_t i, int n) {
      Vec v = load_some(x + i, n);
      sum = vfma(v, v, sum);
    });
    Vec inverse = vset(1.0f / __builtin_sqrtf(vsum(sum) / float(a.width) + a.eps)), offset = vset(a.offset);
    for_vectors(a.width, [&](int64_t i, int n) {
      store_some(out + i, load_some(x + i, n) * inverse * (load_some(weight + i, n) + offset), n);
    });
  }
}

template <class T>
void layer_norm_typed(const NormArgs& a, int64_t begin, int64_t end) {
  const T *weight = static_cast<const T*>(a.weight), *bias = static_cast<const T*>(a.bias);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = add_residual<T>(a, row);
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    Vec sum = vset(0.0f);
    for_vectors(a.width, [&](int64_t i, int n) { sum = sum + load_some(x + i, n); });
    Vec mean = vset(vsum(sum) / float(a.width)), squares = vset(0.0f), iota = viota();
    for_vectors(a.width, [&](int64_t i, int n) {
      Vec d = load_some(x + i, n) - mean;
      if (n < W) d = vselect(vlt(iota, vset(float(n))), d, vset(0.0f));
      squares = vfma(d, d, squares);
    });
    Vec inverse = vset(1.0f / __builtin_sqrtf(vsum(squares) / float(a.width) + a.eps));
    for_vectors(a.width, [&](int64_t i, int n) {
      Vec y = (load_some(x + i, n) - mean) * inverse * load_some(weight + i, n);
      if (bias) y = y + load_some(bias + i, n);
      store_some(out + i, y, n);
    });
  }
}

template <class T>
void sum_typed(const SumArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* residual = a.residual ? static_cast<const T*>(a.residual) + row * a.residual_stride : nullptr;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    for_vectors(a.width, [&](int64_t i, int n) {
      Vec sum = vset(0.0f);
      for (int rank = 0; rank < a.ranks; ++rank)
        sum = sum + load_some(reinterpret_cast<const T*>(a.parts + rank * a.part_bytes) + row * a.width + i, n);
      if (residual) sum = sum + load_some(residual + i, n);
      store_some(out + i, sum, n);
    });
  }
}

void sum(const SumArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { sum_typed<decltype(tag)>(a, begin, end); });
}
void rms_norm(const NormArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { rms_norm_typed<decltype(tag)>(a, begin, end); });
}
void layer_norm(const NormArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { layer_norm_typed<decltype(tag)>(a, begin, end); });
}

}  // namespace
}  // namespace octavo
