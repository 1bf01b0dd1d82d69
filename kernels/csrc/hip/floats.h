// bfloat16 and FP8 (e4m3fn) by whole numbers, because HIP's own are missing in old versions, or of another format. The same
// on the host, where the tests compare them with others'.
#pragma once

#include <cstdint>

#if defined(__HIPCC__) || defined(__CUDACC__)
#define OCTAVO_ANYWHERE __host__ __device__ inline
#else
#define OCTAVO_ANYWHERE inline
#endif

namespace octavo {

OCTAVO_ANYWHERE uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}
OCTAVO_ANYWHERE float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

// To nearest, ties to even; what is not a number becomes 0x7fff, as on NVIDIA.
OCTAVO_ANYWHERE uint16_t bf16_bits(float x) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
OCTAVO_ANYWHERE float float_of_bf16(uint16_t bits) { return float_of(uint32_t(bits) << 16); }

// To nearest, ties to even. What is too large becomes the largest, 448, what is not a number 0x7f.
OCTAVO_ANYWHERE uint8_t f8_code(float x) {
  const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e00000u) return uint8_t(sign | 0x7e);
  if (magnitude < 0x3c800000u) {  // below 2^-6 in steps of 2^-9, which is what the last bit of the sum is worth
    const float sum = float_of(magnitude) + 16384.0f;
    return uint8_t(sign | (bits_of(sum) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1);
  return uint8_t(sign | ((rounded >> 20) - (120u << 3)));
}
OCTAVO_ANYWHERE float float_of_f8(uint8_t code) {
  const uint32_t sign = uint32_t(code & 0x80) << 24, exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 0x7f) == 0x7f) return float_of(sign | 0x7fc00000u);
  const float size = exponent == 0 ? float(fraction) * 0x1p-9f : float_of((exponent + 120) << 23 | fraction << 20);
  return float_of(bits_of(size) | sign);
}

}  // namespace octavo
