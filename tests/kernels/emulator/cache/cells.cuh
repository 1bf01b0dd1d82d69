// Floats of eight bits as pairs of float16, for the host.
#pragma once

#include <cuda_fp8.h>

#include "device/common.cuh"

namespace octavo {

struct f8 {};
template <bool by_turns>
void widen(f8, uint32_t cells, uint32_t& low, uint32_t& high) {
  static_assert(!by_turns);
  const auto pair = [](uint32_t codes) {
    const __half2_raw both = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(codes), __NV_E4M3);
    return uint32_t(both.x) | uint32_t(both.y) << 16;
  };
  low = pair(cells & 0xffff), high = pair(cells >> 16);
}

}  // namespace octavo
