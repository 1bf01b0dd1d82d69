#pragma once

#include <cuda.h>

#include "device/common.cuh"

namespace octavo {

enum class BoxRows { swizzled, dense };

// A description of a tensor of up to five dimensions; strides in bytes.
struct Map {
  const char* data;
  int64_t sizes[5], strides[5];
  int box[5], element;
  BoxRows rows;
  int bytes() const { return box[0] * box[1] * box[2] * box[3] * box[4] * element; }
};
inline int bytes_of(CUtensorMapDataType element) {
  if (element == CU_TENSOR_MAP_DATA_TYPE_UINT64) return 8;
  return element == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : element == CU_TENSOR_MAP_DATA_TYPE_UINT16 ? 2 : 4;
}
template <int kDimensions>
bool describe_tensor(CUtensorMap& map, const void* data, const cuuint64_t (&sizes)[kDimensions],
                     const cuuint64_t (&strides)[kDimensions - 1], const cuuint32_t (&box)[kDimensions],
                     CUtensorMapDataType element = CU_TENSOR_MAP_DATA_TYPE_UINT16, BoxRows rows = BoxRows::swizzled) {
  static_assert(kDimensions <= 5);
  Map m{static_cast<const char*>(data), {1, 1, 1, 1, 1}, {}, {1, 1, 1, 1, 1}, bytes_of(element), rows};
  if (reinterpret_cast<uintptr_t>(data) % 16) return false;
  for (int i = 0; i < kDimensions; ++i) {
    m.sizes[i] = int64_t(sizes[i]), m.box[i] = int(box[i]), m.strides[i] = i ? int64_t(strides[i - 1]) : m.element;
    if (box[i] < 1 || box[i] > 256 || sizes[i] < 1 || (i && m.strides[i] % 16)) return false;
  }
  const int row = m.box[0] * m.element;
  if (row % 16 || (rows == BoxRows::swizzled && row != 128)) return false;
  static_assert(sizeof(m) <= sizeof(map));
  std::memcpy(&map, &m, sizeof(m));
  return true;
}

}  // namespace octavo
