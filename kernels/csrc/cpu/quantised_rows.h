// Rows of x as products with quantised weights want them: in the order of the codes, zeros where no code is.
#pragma once

#include "cache.h"
#include "panel_codes.h"

namespace octavo {
namespace {

// Float32 in the order of the codes. `memory` has room for both orders and whole vectors.
template <class T>
inline float* widen_ordered(const QuantisedArgs& a, int64_t t, float* memory) {
  widen_row(static_cast<const T*>(a.x) + t * a.x_stride, memory, int(a.x_depth));
  if (!a.order) {
    for (int64_t k = a.x_depth; k < a.depth; ++k) memory[k] = 0.0f;
    return memory;
  }
  float* ordered = memory + round_up(a.x_depth, W);
  for (int64_t k = 0; k < a.depth; ++k) ordered[k] = a.order[k] < 0 ? 0.0f : memory[a.order[k]];
  return ordered;
}

// A row of int8: codes, then the scales of x and each group's sum of codes.
struct IntegerRow {
  float* scales;
  int32_t* sums;
};
inline int64_t x_scales(const QuantisedArgs& a) { return (a.x_depth + a.x_group - 1) / a.x_group; }
inline size_t integer_row_tail(const QuantisedArgs& a) { return size_t(round_up(4 * (x_scales(a) + a.groups), 64)); }
inline IntegerRow integer_row(const QuantisedArgs& a, void* tail) {
  float* scales = static_cast<float*>(tail);
  return {scales, reinterpret_cast<int32_t*>(scales + x_scales(a))};
}

// The codes in their order. Groups are encoded from the last to the first: encoding overwrites what follows up to a whole
// vector.
template <class T>
inline const int8_t* encode_integers(const QuantisedArgs& a, int64_t t, const IntegerRow& row, float* memory) {
  widen_row(static_cast<const T*>(a.x) + t * a.x_stride, memory, int(a.x_depth));
  i8* codes = reinterpret_cast<i8*>(memory + round_up(a.x_depth, W));
  for (int64_t i = x_scales(a); i-- > 0;) {
    const int64_t begin = i * a.x_group, n = a.x_depth - begin < a.x_group ? a.x_depth - begin : a.x_group;
    row.scales[i] = encode_row(memory + begin, int(n), codes + begin);
  }
  for (int64_t k = a.x_depth; k < a.depth; ++k) codes[k] = i8{0};
  int8_t* ordered = reinterpret_cast<int8_t*>(codes);
  if (a.order) {
    ordered += a.depth;
    for (int64_t k = 0; k < a.depth; ++k) ordered[k] = a.order[k] < 0 ? int8_t(0) : codes[a.order[k]].code;
  }
  for (int64_t g = 0; g < a.groups; ++g) {
    const int64_t begin = g * a.group, end = begin + a.group < a.depth ? begin + a.group : a.depth;
    int32_t sum = 0;
    for (int64_t k = begin; k < end; ++k) sum += ordered[k];
    row.sums[g] = sum;
  }
  return ordered;
}

}  // namespace
}  // namespace octavo
