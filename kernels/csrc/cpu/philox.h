// Gumbel noise as a pure function of (seed, sequence index, position, vocabulary index).
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): key = the 64-bit seed,
// counter = (vocabulary index / 4, position, sequence index, 0), word = vocabulary index % 4.
#pragma once

#include "math.h"

namespace octavo {
namespace {

struct NoiseKey {
  uint32_t key0, key1, position, index;
};

// u = (x + 1/2) / 2^32 and g = -log(-log(u)). Near u = 1, log(u) is taken from the exactly known 1 - u.
inline Vec gumbel(UVec x) {
  constexpr float unit = 0x1p-32f;
  Vec u = (float_of_unsigned(x) + vset(0.5f)) * vset(unit);
  Vec rest = (float_of_unsigned(uxor(x, uset(0xffffffffu))) + vset(0.5f)) * vset(unit);
  Vec f, e;
  split_exact(u, f, e);
  Mask near_one = vge(u, vset(0.70710678f));
  f = vselect(near_one, vset(0.0f) - rest, f);
  e = vselect(near_one, vset(0.0f), e);
  Vec t = vset(0.0f) - log_reduced_exact(f, e);
  return vset(0.0f) - log_exact(t);
}

constexpr float kMaxNoise = 23.0f;  // -log(-log(1 - 2^-33)) = 22.88

// Noise of the 4 * W tokens that start at `token` (a multiple of 4), as four vectors of consecutive tokens.
inline void noise(const NoiseKey& k, uint32_t token, Vec out[4]) {
  // Lane order such that the four words of a counter end up side by side after the transpose.
  UVec c0 = uadd(uset(token / 4), counter_order()), c1 = uset(k.position), c2 = uset(k.index), c3 = uset(0);
  uint32_t key0 = k.key0, key1 = k.key1;
  for (int round = 0; round < 10; ++round) {
    UVec high0, low0, high1, low1;
    umul(c0, 0xd2511f53u, high0, low0);
    umul(c2, 0xcd9e8d57u, high1, low1);
    c0 = uxor(uxor(high1, c1), uset(key0));
    c1 = low1;
    c2 = uxor(uxor(high0, c3), uset(key1));
    c3 = low0;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  transpose4(c0, c1, c2, c3);
  out[0] = gumbel(c0), out[1] = gumbel(c1), out[2] = gumbel(c2), out[3] = gumbel(c3);
}

}  // namespace
}  // namespace octavo
