// Chooses the element type of a call.
#pragma once

#include "args.h"

namespace octavo {
namespace {

template <class F>
inline void with_dtype(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f32: return f(float{});
    case Dtype::bf16: return f(bf16{});
    case Dtype::f16: return f(f16{});
  }
}

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

template <class T>
inline float to_float(T x) {
  T buffer[W] = {};
  buffer[0] = x;
  alignas(64) float wide[W];
  vstore(wide, vload(buffer));
  return wide[0];
}
template <>
inline float to_float(float x) {
  return x;
}

template <class T>
inline T from_float(float x) {
  T narrow[W];
  vstore(narrow, vset(x));
  return narrow[0];
}
template <>
inline float from_float(float x) {
  return x;
}

}  // namespace
}  // namespace octavo
