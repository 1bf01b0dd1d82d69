// Vectors of four lanes in the compiler's portable vector extension: SSE2 on any x86-64, NEON on aarch64.
#pragma once

#include <cstring>

#include "args.h"

namespace octavo {
namespace {

constexpr int W = 4;
constexpr int kScoreRows = 2, kScoreSegments = 1;  // register block of attention scores
constexpr int kValueVectors = 4;                   // and of the product with V
constexpr int kLinearColumns = 2, kLinearRows = 2;

typedef float Vec __attribute__((vector_size(16)));
typedef uint32_t UVec __attribute__((vector_size(16)));
typedef int32_t Mask __attribute__((vector_size(16)));

inline Vec vset(float x) { return Vec{x, x, x, x}; }
inline UVec uset(uint32_t x) { return UVec{x, x, x, x}; }
inline UVec to_bits(Vec x) { return (UVec)x; }
inline Vec from_bits(UVec x) { return (Vec)x; }

template <class V, class T>
inline V load_raw(const T* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

inline float scalar_from(f16 h) {
  // Shift exponent and mantissa into place, then rescale: exact for subnormals, with a fix for infinity and NaN.
  uint32_t sign = uint32_t(h.bits & 0x8000u) << 16, rest = uint32_t(h.bits & 0x7fffu) << 13;
  float scaled;
  memcpy(&scaled, &rest, 4);
  scaled *= 0x1p112f;
  uint32_t bits;
  memcpy(&bits, &scaled, 4);
  if ((h.bits & 0x7c00u) == 0x7c00u) bits = rest | 0x7f800000u;
  bits |= sign;
  memcpy(&scaled, &bits, 4);
  return scaled;
}

inline f16 scalar_to_f16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  uint32_t sign = (bits >> 16) & 0x8000u, mag = bits & 0x7fffffffu;
  if (mag > 0x7f800000u) return {uint16_t(sign | 0x7e00u)};
  if (mag >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};  // rounds to infinity
  if (mag < 0x38800000u) {                                    // subnormal: let the float adder round
    float magic, m;
    memcpy(&m, &mag, 4);
    magic = m + 0.5f;
    uint32_t r;
    memcpy(&r, &magic, 4);
    return {uint16_t(sign | (r - 0x3f000000u))};
  }
  mag += 0xc8000fffu + ((mag >> 13) & 1u);
  return {uint16_t(sign | (mag >> 13))};
}

inline Vec vload(const float* p) { return load_raw<Vec>(p); }
inline Vec vload(const bf16* p) {
  UVec u = {p[0].bits, p[1].bits, p[2].bits, p[3].bits};
  return (Vec)(u << 16);
}
inline Vec vload(const f16* p) {
  return Vec{scalar_from(p[0]), scalar_from(p[1]), scalar_from(p[2]), scalar_from(p[3])};
}
inline Vec vload(const i8* p) {
  return Vec{float(p[0].code), float(p[1].code), float(p[2].code), float(p[3].code)};
}
// A code's bits are those of a half with too short an exponent: 2^8 times too small (see Codes<f8>).
inline Vec vload(const f8* p) {
  Vec v;
  for (int i = 0; i < W; ++i)
    v[i] = scalar_from(f16{uint16_t((p[i].code & 0x80u) << 8 | (p[i].code & 0x7fu) << 7)});
  return v;
}
inline void vstore(float* p, Vec x) { memcpy(p, &x, sizeof x); }
inline void vstore(bf16* p, Vec x) {
  UVec u = (UVec)x;
  UVec rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  UVec quiet = (u >> 16) | 0x40u;
  Mask nan = x != x;
  UVec r = ((UVec)nan & quiet) | (~(UVec)nan & rounded);
  for (int i = 0; i < W; ++i) p[i].bits = uint16_t(r[i]);
}
inline void vstore(f16* p, Vec x) {
  for (int i = 0; i < W; ++i) p[i] = scalar_to_f16(x[i]);
}

inline Vec vselect(Mask m, Vec a, Vec b) { return (Vec)(((UVec)m & (UVec)a) | (~(UVec)m & (UVec)b)); }
inline Vec vfma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Mask vlt(Vec a, Vec b) { return a < b; }
inline Mask vge(Vec a, Vec b) { return a >= b; }
inline Mask vgt(Vec a, Vec b) { return a > b; }
inline Mask mask_and(Mask a, Mask b) { return a & b; }
inline bool any(Mask m) { return m[0] | m[1] | m[2] | m[3]; }
// A NaN in the second operand wins, as in the x86 instruction.
inline Vec vmax(Vec a, Vec b) { return vselect(a > b, a, b); }
inline Vec vmin(Vec a, Vec b) { return vselect(a < b, a, b); }
inline float vsum(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline void vsum4(const Vec* v, float* sums) {
  for (int i = 0; i < 4; ++i) sums[i] = vsum(v[i]);
}
inline float vmax_all(Vec x) {
  float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
inline Vec viota() { return Vec{0, 1, 2, 3}; }

inline UVec uadd(UVec a, UVec b) { return a + b; }
inline UVec uxor(UVec a, UVec b) { return a ^ b; }
inline UVec uand(UVec a, UVec b) { return a & b; }
inline UVec uor(UVec a, UVec b) { return a | b; }
template <int N>
inline UVec ushr(UVec a) {
  return a >> N;
}
template <int N>
inline UVec ushl(UVec a) {
  return a << N;
}
inline UVec uselect(Mask m, UVec a, UVec b) { return ((UVec)m & a) | (~(UVec)m & b); }
inline void umul(UVec a, uint32_t m, UVec& high, UVec& low) {
  for (int i = 0; i < W; ++i) {
    uint64_t p = uint64_t(a[i]) * m;
    high[i] = uint32_t(p >> 32);
    low[i] = uint32_t(p);
  }
}
inline Vec float_of_signed(UVec a) {
  return Vec{float(int32_t(a[0])), float(int32_t(a[1])), float(int32_t(a[2])), float(int32_t(a[3]))};
}
inline Vec float_of_unsigned(UVec a) { return float_of_signed(a >> 16) * 65536.0f + float_of_signed(a & 0xffffu); }
// Round to nearest even; |x| < 2^22.
inline UVec round_to_int(Vec x) { return (UVec)(x + 12582912.0f) - 0x4b400000u; }
inline void ustore(uint32_t* p, UVec x) { memcpy(p, &x, sizeof x); }
// The lowest bytes of the first n lanes.
inline void store_bytes(void* p, UVec x, int n) {
  for (int i = 0; i < n; ++i) static_cast<uint8_t*>(p)[i] = uint8_t(x[i]);
}

// Numbers that the lowest four bits stand for: an int4 less 8, and twice an e2m1.
inline Vec nibble_value(UVec x) { return float_of_signed(x & 15u) - 8.0f; }
inline Vec e2m1_value(UVec x) {
  const float sizes[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  Vec v;
  for (int i = 0; i < W; ++i) v[i] = x[i] & 8 ? -sizes[x[i] & 7] : sizes[x[i] & 7];
  return v;
}

// 4 x 4 transpose; see philox.h for the order of counters that it expects.
inline void transpose4(UVec& a, UVec& b, UVec& c, UVec& d) {
  UVec r0 = {a[0], b[0], c[0], d[0]}, r1 = {a[1], b[1], c[1], d[1]};
  UVec r2 = {a[2], b[2], c[2], d[2]}, r3 = {a[3], b[3], c[3], d[3]};
  a = r0, b = r1, c = r2, d = r3;
}
inline UVec counter_order() { return UVec{0, 1, 2, 3}; }

}  // namespace
}  // namespace octavo

#include "simd_tail.h"
