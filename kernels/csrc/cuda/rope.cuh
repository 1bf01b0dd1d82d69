// QK-norm and rotary embedding of one head, for kernels that must agree on it bit for bit: fused operations are spelled
// out, so that no compiler chooses.
#pragma once

#include "common.cuh"

namespace octavo {
namespace {

// A thread takes two units of U elements of one head: two that rotate with each other, or the two that lie half a head
// apart. Where a head's threads are no power of two, some idle.
template <int D, int U>
struct Share {
  static constexpr int kUsed = D / (2 * U);
  static constexpr int kThreads = kUsed <= 2 ? 2 : kUsed <= 4 ? 4 : kUsed <= 8 ? 8 : kUsed <= 16 ? 16 : 32;
  int first, second;
  bool paired;  // the units rotate with each other

  __device__ Share(const WriteArgs& a, int thread) {
    const int half = a.rotary_dim / 2 / U;
    paired = false;
    if (!a.cos_sin || a.interleaved) {
      first = thread, second = thread + kUsed;
    } else if (thread < half) {
      first = thread, second = thread + half, paired = true;
    } else {
      first = 2 * thread, second = first + 1;
    }
  }
};

template <int U>
__device__ void turn(float (&x)[U], float (&y)[U], const float* cosine, const float* sine) {
  using Floats = Elements<float, U>;
  const Floats c = *reinterpret_cast<const Floats*>(cosine), s = *reinterpret_cast<const Floats*>(sine);
#pragma unroll
  for (int j = 0; j < U; ++j) {
    const float low = __fmaf_rn(x[j], c.at[j], -__fmul_rn(y[j], s.at[j]));
    y[j] = __fmaf_rn(x[j], s.at[j], __fmul_rn(y[j], c.at[j]));
    x[j] = low;
  }
}

template <int U>
__device__ void turn_neighbours(float (&x)[U], const float* cosine, const float* sine) {
#pragma unroll
  for (int j = 0; j < U; j += 2) {
    const float low = __fmaf_rn(x[j], cosine[j / 2], -__fmul_rn(x[j + 1], sine[j / 2]));
    x[j + 1] = __fmaf_rn(x[j], sine[j / 2], __fmul_rn(x[j + 1], cosine[j / 2]));
    x[j] = low;
  }
}

// Norm (null: none, but its sums are made) and rotation of one head of a token, of which this thread holds two units.
template <class T, int D, int U, bool norms>
__device__ inline void rotate(const WriteArgs& a, const Share<D, U>& part, const T* norm, bool value, bool real,
                              int64_t position, float (&x)[U], float (&y)[U]) {
  if constexpr (norms) {
    using Vector = Elements<T, U>;
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < U; ++j) squares = __fmaf_rn(x[j], x[j], __fmaf_rn(y[j], y[j], squares));
    const float inverse = rsqrtf(warp_sum<Share<D, U>::kThreads>(squares) / float(D) + a.eps);
    if (norm && real) {
      const Vector scale = *reinterpret_cast<const Vector*>(norm + part.first * U);
      const Vector other = *reinterpret_cast<const Vector*>(norm + part.second * U);
#pragma unroll
      for (int j = 0; j < U; ++j) {
        x[j] *= inverse * (to_float(scale.at[j]) + a.norm_offset);
        y[j] *= inverse * (to_float(other.at[j]) + a.norm_offset);
      }
    }
  }
  if (a.cos_sin && real && !value) {
    const float *cosine = a.cos_sin + position * a.cos_sin_stride, *sine = cosine + a.rotary_dim / 2;
    if (part.paired) turn(x, y, cosine + part.first * U, sine + part.first * U);
    if (a.interleaved && part.first * U < a.rotary_dim)
      turn_neighbours(x, cosine + part.first * U / 2, sine + part.first * U / 2);
    if (a.interleaved && part.second * U < a.rotary_dim)
      turn_neighbours(y, cosine + part.second * U / 2, sine + part.second * U / 2);
  }
}
// The same, rounded to the type of the data.
template <class T, int D, int U, bool norms>
__device__ inline void rotate(const WriteArgs& a, const Share<D, U>& part, const T* norm, bool value, bool real,
                              int64_t position, Elements<T, U>& low, Elements<T, U>& high) {
  if (!a.cos_sin && !norms) return;
  float x[U], y[U];
#pragma unroll
  for (int j = 0; j < U; ++j) x[j] = to_float(low.at[j]), y[j] = to_float(high.at[j]);
  rotate<T, D, U, norms>(a, part, norm, value, real, position, x, y);
  if (value) return;
#pragma unroll
  for (int j = 0; j < U; ++j) low.at[j] = from_float<T>(x[j]), high.at[j] = from_float<T>(y[j]);
}

}  // namespace
}  // namespace octavo
