// HIP's float16, by the host compiler's.
#pragma once

#include <cstdint>

#include "hip/hip_runtime.h"

struct __half_raw {
  uint16_t x;
};
struct __half {
  _Float16 value;
  __half() = default;
  __half(_Float16 x) : value(x) {}
  __half(const __half_raw& raw) { __builtin_memcpy(&value, &raw, 2); }
  operator __half_raw() const {
    __half_raw raw;
    __builtin_memcpy(&raw, &value, 2);
    return raw;
  }
};
struct __half2 {
  __half x, y;
};
inline __half __float2half_rn(float x) { return _Float16(x); }
inline float __half2float(__half x) { return float(x.value); }
inline float2 __half22float2(__half2 x) { return {float(x.x.value), float(x.y.value)}; }
inline __half2 __hsub2(__half2 a, __half2 b) { return {_Float16(a.x.value - b.x.value), _Float16(a.y.value - b.y.value)}; }
inline __half2 __hmul2(__half2 a, __half2 b) { return {_Float16(a.x.value * b.x.value), _Float16(a.y.value * b.y.value)}; }
