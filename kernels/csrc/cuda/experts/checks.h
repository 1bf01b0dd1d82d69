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

}  // namespace octavo
