// The entry points of attention_kernel.h, after any specialisations.
#pragma once

#include "attention_kernel.h"

namespace octavo {
namespace {

int attention_rows(const AttentionArgs& a) {
  int rows = 0;
  with_dtype(a.dtype, [&](auto tag) { rows = Attend<decltype(tag)>::rows(a); });
  return rows;
}
size_t attention_scratch(const AttentionArgs& a, int tokens) {
  size_t floats = 0;
  with_dtype(a.dtype, [&](auto tag) { floats = Attend<decltype(tag)>::scratch(Shape(a, tokens)); });
  return floats;
}
size_t attention_partial(const AttentionArgs& a, int tokens) {
  return size_t(round_up(int64_t(Shape(a, tokens).state()), 16));
}
void attention(const AttentionArgs& a, const AttentionItem& it, const AttentionItem* next, float* scratch) {
  with_dtype(a.dtype, [&](auto tag) {
    [[maybe_unused]] const typename Attend<decltype(tag)>::Mode mode;
    Attend<decltype(tag)>::run(a, it, next, Shape(a, it.tokens), scratch);
  });
}

void attention_merge(const AttentionArgs& a, const AttentionItem& it, const float* const* partials, float* scratch) {
  const Shape s(a, it.tokens);
  State total = state_at(scratch, s);
  with_dtype(a.dtype, [&](auto tag) {
    [[maybe_unused]] const typename Attend<decltype(tag)>::Mode mode;
    clear(total, s);
    for (int chunk = it.chunk; chunk < it.chunk_end; ++chunk)
      fold(total, state_at(const_cast<float*>(partials[chunk - it.chunk]), s), s);
    finish<decltype(tag)>(a, it, total, s);
  });
}

}  // namespace
}  // namespace octavo
