// Partial loads and stores for levels without masked memory access, through a small buffer.
#pragma once

#include <cstring>

namespace octavo {
namespace {

template <class T>
inline Vec vload_n(const T* p, int n) {
  alignas(64) T buffer[W] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return vload(buffer);
}

template <class T>
inline void vstore_n(T* p, Vec x, int n) {
  alignas(64) T buffer[W];
  vstore(buffer, x);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}

}  // namespace
}  // namespace octavo
