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

// An element that another kernel has written.
template <class T>
__device__ inline float load_half(const void* data, int64_t at) {
  const unsigned short raw = __ldcg(static_cast<const unsigned short*>(data) + at);
  return to_float(reinterpret_cast<const T&>(raw));
}

}  // namespace octavo
