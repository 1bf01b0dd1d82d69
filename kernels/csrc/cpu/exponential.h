// The exponential function in double arithmetic without fused operations and without the system's library: a value's bits
// depend on it alone, on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo {

// e^x, with a relative error below 1e-14; 0 below -700, infinite above 700.
inline double exponential(double x) {
  if (x != x) return x;
  if (x < -700.0) return 0.0;
  if (x > 700.0) return HUGE_VAL;
  const double n = std::nearbyint(x * 1.4426950408889634);
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;  // ln 2 in two parts
  double sum = 1.0;
  for (int i = 13; i > 0; --i) sum = 1.0 + sum * (r / i);
  const uint64_t bits = uint64_t(int64_t(n) + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof power);
  return sum * power;
}

inline float sigmoid(float x) { return float(1.0 / (1.0 + exponential(-double(x)))); }

}  // namespace octavo
