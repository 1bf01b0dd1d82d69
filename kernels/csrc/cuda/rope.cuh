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

// Cosines and sines of a position that a thread's two units need; nothing where nothing rotates.
template <int D, int U>
struct Angles {
  using Floats = Elements<float, U>;
  using Half = Elements<float, U / 2>;
  Floats cosine{}, sine{};

  __device__ Angles(const WriteArgs& a, const Share<D, U>& part, int64_t position) {
    if (!a.cos_sin) return;
    const float *cosines = a.cos_sin + position * a.cos_sin_stride, *sines = cosines + a.rotary_dim / 2;
    if (part.paired) {
      cosine = *reinterpret_cast<const Floats*>(cosines + part.first * U);
      sine = *reinterpret_cast<const Floats*>(sines + part.first * U);
    }
    if (a.interleaved && part.first * U < a.rotary_dim) take(cosines, sines, part.first, 0);
    if (a.interleaved && part.second * U < a.rotary_dim) take(cosines, sines, part.second, U / 2);
  }

 private:
  __device__ void take(const float* cosines, const float* sines, int unit, int at) {
    const Half c = *reinterpret_cast<const Half*>(cosines + unit * U / 2), s = *reinterpret_cast<const Half*>(sines + unit * U / 2);
#pragma unroll
    for (int j = 0; j < U / 2; ++j) cosine.at[at + j] = c.at[j], sine.at[at + j] = s.at[j];
  }
};

template <int U>
__device__ void turn(float (&x)[U], float (&y)[U], const float (&c)[U], const float (&s)[U]) {
#pragma unroll
  for (int j = 0; j < U; ++j) {
    const float low = __fmaf_rn(x[j], c[j], -__fmul_rn(y[j], s[j]));
    y[j] = __fmaf_rn(x[j], s[j], __fmul_rn(y[j], c[j]));
    x[j] = low;
  }
}

// The angles from `at` on.
template <int U>
__device__ void turn_neighbours(float (&x)[U], const float (&c)[U], const float (&s)[U], int at) {
#pragma unroll
  for (int j = 0; j < U; j += 2) {
    const int n = at + j / 2;
    const float low = __fmaf_rn(x[j], c[n], -__fmul_rn(x[j + 1], s[n]));
    x[j + 1] = __fmaf_rn(x[j], s[n], __fmul_rn(x[j + 1], c[n]));
    x[j] = low;
  }
}

// Norm (null: none, but its sums are made) and rotation of one head of a token, of which this thread holds two units.
template <class T, int D, int U, bool norms>
__device__ inline void rotate(const WriteArgs& a, const Share<D, U>& part, const Angles<D, U>& angles, const T* norm,
                              bool value, bool real, float (&x)[U], float (&y)[U]) {
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
  if (!a.cos_sin || value) return;
  if (part.paired) turn(x, y, angles.cosine.at, angles.sine.at);
  if (a.interleaved && part.first * U < a.rotary_dim) turn_neighbours(x, angles.cosine.at, angles.sine.at, 0);
  if (a.interleaved && part.second * U < a.rotary_dim) turn_neighbours(y, angles.cosine.at, angles.sine.at, U / 2);
}
// The same, rounded to the type of the data.
template <class T, int D, int U, bool norms>
__device__ inline void rotate(const WriteArgs& a, const Share<D, U>& part, const Angles<D, U>& angles, const T* norm,
                              bool value, bool real, Elements<T, U>& low, Elements<T, U>& high) {
  if (!a.cos_sin && !norms) return;
  float x[U], y[U];
#pragma unroll
  for (int j = 0; j < U; ++j) x[j] = to_float(low.at[j]), y[j] = to_float(high.at[j]);
  rotate<T, D, U, norms>(a, part, angles, norm, value, real, x, y);
  if (value) return;
#pragma unroll
  for (int j = 0; j < U; ++j) low.at[j] = from_float<T>(x[j]), high.at[j] = from_float<T>(y[j]);
}

// The same for one head whose angles are still to be read.
template <class T, int D, int U, bool norms>
__device__ inline void rotate(const WriteArgs& a, const Share<D, U>& part, const T* norm, bool value, bool real,
                              int64_t position, Elements<T, U>& low, Elements<T, U>& high) {
  rotate<T, D, U, norms>(a, part, Angles<D, U>(a, part, position), norm, value, real, low, high);
}

}  // namespace
}  // namespace octavo
