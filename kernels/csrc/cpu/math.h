// Elementary functions on vectors. Included after one of the simd_*.h headers.
//
// `exact` variants use separate multiplications and additions only, so every level (and a GPU) computes the same bits;
// the sampler depends on it. The others use fused operations where the machine has them.
#pragma once

#include "args.h"

namespace octavo {
namespace {

struct Fused {
  static Vec mac(Vec a, Vec b, Vec c) { return vfma(a, b, c); }
};
struct Exact {
  static Vec mac(Vec a, Vec b, Vec c) { return a * b + c; }
};

// 2^x: Cephes' exp2f polynomial on [-1/2, 1/2]. Zero below 2^-126; NaN stays NaN.
template <class M = Fused>
inline Vec exp2v(Vec x) {
  Vec c = vmin(vset(127.0f), vmax(vset(-126.0f), x));
  UVec n = round_to_int(c);
  Vec f = c - float_of_signed(n);
  Vec p = vset(1.535336188319500e-4f);
  p = M::mac(p, f, vset(1.339887440266574e-3f));
  p = M::mac(p, f, vset(9.618437357674640e-3f));
  p = M::mac(p, f, vset(5.550332471162809e-2f));
  p = M::mac(p, f, vset(2.402264791363012e-1f));
  p = M::mac(p, f, vset(6.931472028550421e-1f));
  p = M::mac(p, f, vset(1.0f));
  Vec scale = from_bits(ushl<23>(uadd(n, uset(127))));
  return vselect(vlt(x, vset(-126.0f)), vset(0.0f), p * scale);
}

constexpr float kLog2e = 1.44269504088896341f;

inline Vec expv(Vec x) { return exp2v<Fused>(x * vset(kLog2e)); }

inline Vec tanhv(Vec x) {
  Vec e = exp2v(x * vset(2.0f * kLog2e));
  Vec large = vset(1.0f) - vset(2.0f) / (e + vset(1.0f));
  // Near zero the difference above cancels: Cephes' tanhf polynomial.
  Vec z = x * x;
  Vec p = vset(-5.70498872745e-3f);
  p = vfma(p, z, vset(2.06390887954e-2f));
  p = vfma(p, z, vset(-5.37397155531e-2f));
  p = vfma(p, z, vset(1.33314422036e-1f));
  p = vfma(p, z, vset(-3.33332819422e-1f));
  Vec small = vfma(p * z, x, x);
  return vselect(vlt(z, vset(0.390625f)), small, large);
}

// erf: two minimax polynomials with about one ulp of error (N. Juffa's erff).
inline Vec erfv(Vec x) {
  Vec t = vmax(x, vset(0.0f) - x), s = x * x;
  Vec r = vfma(vset(-1.72853470e-5f), t, vset(3.83197126e-4f));
  Vec u = vfma(vset(-3.88396438e-3f), t, vset(2.42546219e-2f));
  r = vfma(r, s, u);
  r = vfma(r, t, vset(-1.06777877e-1f));
  r = vfma(r, t, vset(-6.34846687e-1f));
  r = vfma(r, t, vset(-1.28717512e-1f));
  r = vfma(r, t, vset(0.0f) - t);
  Vec tail = vset(1.0f) - expv(r);
  tail = vselect(vlt(x, vset(0.0f)), vset(0.0f) - tail, tail);
  Vec p = vset(-5.96761703e-4f);
  p = vfma(p, s, vset(4.99119423e-3f));
  p = vfma(p, s, vset(-2.67681349e-2f));
  p = vfma(p, s, vset(1.12819925e-1f));
  p = vfma(p, s, vset(-3.76125336e-1f));
  p = vfma(p, s, vset(1.28379166e-1f));
  return vselect(vlt(t, vset(0.927734375f)), vfma(p, x, x), tail);
}

// log(m) for a positive normal x, with `f` = m - 1 and `e` chosen by the caller: Cephes' logf.
inline Vec log_reduced_exact(Vec f, Vec e) {
  Vec z = f * f;
  Vec p = vset(7.0376836292e-2f);
  p = p * f + vset(-1.1514610310e-1f);
  p = p * f + vset(1.1676998740e-1f);
  p = p * f + vset(-1.2420140846e-1f);
  p = p * f + vset(1.4249322787e-1f);
  p = p * f + vset(-1.6668057665e-1f);
  p = p * f + vset(2.0000714765e-1f);
  p = p * f + vset(-2.4999993993e-1f);
  p = p * f + vset(3.3333331174e-1f);
  p = p * f * z;
  p = p + e * vset(-2.12194440e-4f);
  p = p - z * vset(0.5f);
  return (f + p) + e * vset(0.693359375f);
}

// Split a positive normal x into m in [sqrt(1/2), sqrt(2)) and an exponent.
inline void split_exact(Vec x, Vec& f, Vec& e) {
  UVec bits = uadd(to_bits(x), uset(0x3f800000u - 0x3f3504f3u));
  e = float_of_signed(uadd(ushr<23>(bits), uset(uint32_t(-127))));
  Vec m = from_bits(uadd(uand(bits, uset(0x007fffffu)), uset(0x3f3504f3u)));
  f = m - vset(1.0f);
}

inline Vec log_exact(Vec x) {
  Vec f, e;
  split_exact(x, f, e);
  return log_reduced_exact(f, e);
}

}  // namespace
}  // namespace octavo
