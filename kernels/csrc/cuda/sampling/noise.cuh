// Gumbel noise as a pure function of (seed, sequence index, position, token), bit for bit that of csrc/cpu/philox.h.
#pragma once

#include "device/common.cuh"

namespace octavo {

// log(m) for m = f + 1, plus e * log(2): Cephes' logf.
__device__ inline float exact_log(float f, float e) {
  const float z = __fmul_rn(f, f);
  float p = 7.0376836292e-2f;
  p = __fadd_rn(__fmul_rn(p, f), -1.1514610310e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 1.1676998740e-1f);
  p = __fadd_rn(__fmul_rn(p, f), -1.2420140846e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 1.4249322787e-1f);
  p = __fadd_rn(__fmul_rn(p, f), -1.6668057665e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 2.0000714765e-1f);
  p = __fadd_rn(__fmul_rn(p, f), -2.4999993993e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 3.3333331174e-1f);
  p = __fmul_rn(__fmul_rn(p, f), z);
  p = __fadd_rn(p, __fmul_rn(e, -2.12194440e-4f));
  p = __fsub_rn(p, __fmul_rn(z, 0.5f));
  return __fadd_rn(__fadd_rn(f, p), __fmul_rn(e, 0.693359375f));
}

// Splits a positive normal x into 1 + f in [sqrt(1/2), sqrt(2)) and an exponent.
__device__ inline void split(float x, float& f, float& e) {
  const uint32_t bits = __float_as_uint(x) + (0x3f800000u - 0x3f3504f3u);
  e = float(int(bits >> 23) - 127);
  f = __fsub_rn(__uint_as_float((bits & 0x007fffffu) + 0x3f3504f3u), 1.0f);
}

// -log(-log(u)), u = (x + 1/2) / 2^32. Near u = 1, log(u) is taken from the exactly known 1 - u.
__device__ inline float gumbel(uint32_t x) {
  const float u = __fmul_rn(__fadd_rn(__uint2float_rn(x), 0.5f), 0x1p-32f);
  const float rest = __fmul_rn(__fadd_rn(__uint2float_rn(~x), 0.5f), 0x1p-32f);
  float f, e;
  split(u, f, e);
  if (u >= 0.70710678f) f = -rest, e = 0.0f;
  const float t = -exact_log(f, e);
  split(t, f, e);
  return -exact_log(f, e);
}

// Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = (token / 4, position, sequence index, 0).
__device__ inline uint4 philox(uint32_t group, uint32_t position, uint32_t index, uint64_t seed) {
  uint4 c = make_uint4(group, position, index, 0);
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    c = make_uint4(__umulhi(0xcd9e8d57u, c.z) ^ c.y ^ key0, 0xcd9e8d57u * c.z,
                   __umulhi(0xd2511f53u, c.x) ^ c.w ^ key1, 0xd2511f53u * c.x);
    key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
  }
  return c;
}

struct Noise {
  uint64_t seed;
  uint32_t position, index;

  // Noise of the tokens 4 * group to 4 * group + 3, as random words.
  __device__ uint4 words(int group) const { return philox(uint32_t(group), position, index, seed); }
  __device__ float of(int token) const {
    const uint4 w = words(token / 4);
    const int i = token % 4;
    return gumbel(i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w);
  }
};

}  // namespace octavo
