// The entry points of attention_kernel.h, after any specialisations.
#pragma once

#include "attention_kernel.h"

namespace octavo {
namespace {

template <class F>
inline void with_attend(const AttentionArgs& a, F&& f) {
  with_cells(a.dtype, a.cache.cells, [&](auto tag, auto cell) { f(Attend<decltype(tag), decltype(cell)>{}); });
}

int attention_rows(const AttentionArgs& a) {
  int rows = 0;
  with_attend(a, [&](auto attend) { rows = attend.rows(a); });
  return rows;
}
size_t attention_scratch(const AttentionArgs& a, int tokens) {
  size_t floats = 0;
  with_attend(a, [&](auto attend) { floats = attend.scratch(Shape(a, tokens)); });
  return floats;
}
size_t attention_partial(const AttentionArgs& a, int tokens) {
  return size_t(round_up(int64_t(Shape(a, tokens).state()), 16));
}
void attention(const AttentionArgs& a, const AttentionItem& it, const AttentionItem* next, float* scratch) {
  with_attend(a, [&](auto attend) {
    [[maybe_unused]] const typename decltype(attend)::Mode mode;
    attend.run(a, it, next, Shape(a, it.tokens), scratch);
  });
}

void attention_merge(const AttentionArgs& a, const AttentionItem& it, const float* const* partials, float* scratch) {
  const Shape s(a, it.tokens);
  State total = state_at(scratch, s);
  with_attend(a, [&](auto attend) {
    [[maybe_unused]] const typename decltype(attend)::Mode mode;
    clear(total, s);
    for (int chunk = it.chunk; chunk < it.chunk_end; ++chunk)
      fold(total, state_at(const_cast<float*>(partials[chunk - it.chunk]), s), s);
    finish<typename decltype(attend)::Out>(a, it, total, s);
  });
}

}  // namespace
}  // namespace octavo
