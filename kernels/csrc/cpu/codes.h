// A cache in eight bits: a value is its code times a float32 scale, one for K and one for V of each token and KV head.
// The scale takes the largest magnitude of those `head_dim` values to the largest code.
#pragma once

#include "math.h"

namespace octavo {
namespace {

template <class C>
constexpr bool kScaled = sizeof(C) == 1;

// `largest` code, and `unit`: what `vload` of a code of 1 has to be multiplied with. `encode` rounds to nearest, ties to
// even, and puts the code into the lowest byte.
template <class C>
struct Codes;

template <>
struct Codes<i8> {
  static constexpr float largest = 127.0f, unit = 1.0f;
  static UVec encode(Vec x) { return round_to_int(x); }
};

template <>
struct Codes<f8> {
  static constexpr float largest = 448.0f, unit = 256.0f;
  static UVec encode(Vec x) {
    const UVec bits = to_bits(x), sign = uand(ushr<24>(bits), uset(0x80)), rest = uand(bits, uset(0x7fffffff));
    // Below 2^-6 codes are multiples of 2^-9: so are the last places of floats from 2^14 on.
    const UVec small = uadd(to_bits(from_bits(rest) + vset(0x1p14f)), uset(0u - 0x46800000u));
    const UVec odd = uand(ushr<20>(rest), uset(1));
    const UVec large = ushr<20>(uadd(uadd(rest, odd), uset(0u - (120u << 23) + 0x7ffffu)));
    return uor(sign, uselect(vlt(from_bits(rest), vset(0x1p-6f)), small, large));
  }
};

// Codes of x[n], which has room for whole vectors, and their scale. A value that is not finite makes the scale NaN, so
// that a broken token is seen by what attends to it, as in other caches.
template <class C>
inline float encode_row(float* x, int n, C* out) {
  for (int i = n; i % W != 0; ++i) x[i] = 0.0f;
  Vec top = vset(0.0f), broken = vset(0.0f);
  for (int i = 0; i < n; i += W) {
    const Vec v = vload(x + i);
    top = vmax(top, from_bits(uand(to_bits(v), uset(0x7fffffff))));
    broken = vfma(v, vset(0.0f), broken);
  }
  const float most = vmax_all(top);
  const bool none = most < 1e-30f;  // the inverse of a subnormal would be infinite
  const Vec inverse = vset(none ? 0.0f : Codes<C>::largest / most);
  for (int i = 0; i < n; i += W) store_bytes(out + i, Codes<C>::encode(vload(x + i) * inverse), n - i < W ? n - i : W);
  return (none ? 0.0f : most / Codes<C>::largest) + vsum(broken);
}

// The scales that follow K or V of one block and head.
template <class C>
inline float* scales_of(C* cells, int head_dim, int block_size) {
  return reinterpret_cast<float*>(cells + int64_t(head_dim) * block_size);
}

// The columns of a latent's row that have no codes, behind the scales: [columns][block_size] of the data's type.
template <class T, class C>
inline T* exact_of(C* cells, int head_dim, int block_size) {
  return reinterpret_cast<T*>(scales_of(cells, head_dim, block_size) + block_size);
}

// Codes of the sixteen tokens from `offset` on; `vload` of a code times its scale is the value.
template <class C>
inline void load_scales(const C* cells, int head_dim, int block_size, int offset, float* out) {
  const float* scales = reinterpret_cast<const float*>(cells + int64_t(head_dim) * block_size) + offset;
  for (int i = 0; i < kSegment; i += W) vstore(out + i, vload(scales + i) * vset(Codes<C>::unit));
}

// The same of the first `count` tokens, fewer than sixteen, of a block that is smaller than that.
template <class C>
inline void copy_scales(const C* cells, int head_dim, int block_size, int count, float* out) {
  const float* scales = reinterpret_cast<const float*>(cells + int64_t(head_dim) * block_size);
  for (int i = 0; i < count; ++i) out[i] = scales[i] * Codes<C>::unit;
}

}  // namespace
}  // namespace octavo
