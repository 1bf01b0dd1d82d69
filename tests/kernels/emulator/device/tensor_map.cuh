#pragma once

#include <cuda.h>

#include "device/common.cuh"

namespace octavo {

// What a description of a matrix holds here.
struct Map {
  const char* data;
  int64_t columns, rows, stride;  // the latter in bytes
  int box_columns, box_rows;
};
template <int kDimensions>
bool describe_tensor(CUtensorMap& map, const void* data, const cuuint64_t (&sizes)[kDimensions],
                     const cuuint64_t (&strides)[kDimensions - 1], const cuuint32_t (&box)[kDimensions]) {
  static_assert(kDimensions == 2);
  if (reinterpret_cast<uintptr_t>(data) % 16 || strides[0] % 16 || box[1] > 256) return false;
  const Map m{static_cast<const char*>(data), int64_t(sizes[0]), int64_t(sizes[1]), int64_t(strides[0]), int(box[0]), int(box[1])};
  std::memcpy(&map, &m, sizeof(m));
  return true;
}

}  // namespace octavo
