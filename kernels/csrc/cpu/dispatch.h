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

}  // namespace
}  // namespace octavo
