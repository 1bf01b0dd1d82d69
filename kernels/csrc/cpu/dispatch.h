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

// Also chooses the type of the cache's cells.
template <class F>
inline void with_cells(Dtype dtype, Cells cells, F&& f) {
  with_dtype(dtype, [&](auto tag) {
    switch (cells) {
      case Cells::plain: return f(tag, tag);
      case Cells::i8: return f(tag, i8{});
      case Cells::f8: return f(tag, f8{});
    }
  });
}

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

}  // namespace
}  // namespace octavo
