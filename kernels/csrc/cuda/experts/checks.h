// What products of experts take.
#pragma once

#include "experts/choice.cuh"

namespace octavo {

inline bool in_units(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}
inline bool takes(const ExpertMatrix& m, int chosen, const void* x, int64_t x_stride) {
  return m.experts <= kMostExperts && chosen <= kMostChosen && m.depth > 0 && m.depth % 8 == 0 && in_units(m.weight, m.stride) &&
         in_units(x, x_stride);
}
// `x`: what the product takes.
inline bool takes_shared(const SharedProduct& p, const void* x, int64_t x_stride) {
  return !p.matrix.weight || takes(p.matrix, 1, x, x_stride);
}
// Of a few rows.
template <class Args>
inline bool takes_choice(const Args& a) {
  const Routing& how = a.choice.routing;
  return a.rows <= kFewRows && a.choice.logits && how.chosen == a.chosen && how.experts <= kMostExperts && how.groups <= kMostGroups;
}

// An element that another kernel has written.
template <class T>
__device__ inline float load_half(const void* data, int64_t at) {
  const unsigned short raw = __ldcg(static_cast<const unsigned short*>(data) + at);
  return to_float(reinterpret_cast<const T&>(raw));
}

// An element of the output: to a row's sum comes the shared expert's output, and to its multiple the residual.
template <class T>
__device__ inline T finished(const ExpertsDownArgs& a, int row, int column, float sum) {
  if (a.shared) {
    const float x = load_half<T>(a.shared, row * a.shared_stride + column);
    sum = a.gates ? __fmaf_rn(__ldcg(a.gates + row), x, sum) : sum + x;
  }
  return from_float<T>(__fmaf_rn(a.factor, sum, a.residual ? load_half<T>(a.residual, row * a.residual_stride + column) : 0.0f));
}

}  // namespace octavo
