// QK-norm and rotary embedding of one head, for kernels that must agree on it bit for bit: fused operations are spelled
// out, so that no compiler chooses.
#pragma once

#include "device/common.cuh"

namespace octavo {
namespace {

// U elements of 16 bits as they are loaded and stored. Whole words keep the compiler from taking halves of them apart.
template <int U>
using Unit = Elements<uint32_t, U / 2>;

template <class T, int U>
__device__ inline void widen_unit(const Unit<U>& unit, float (&x)[U]) {
#pragma unroll
  for (int j = 0; j < U / 2; ++j) {
    const float2 pair = unpack<T>(unit.at[j]);
    x[2 * j] = pair.x, x[2 * j + 1] = pair.y;
  }
}
template <class T, int U>
__device__ inline void round_unit(const float (&x)[U], Unit<U>& unit) {
#pragma unroll
  for (int j = 0; j < U / 2; ++j) unit.at[j] = pack<T>(x[2 * j], x[2 * j + 1]);
}

__device__ inline void store_unit(void* to, const Unit<8>& x) { store_words(to, x.at[0], x.at[1], x.at[2], x.at[3]); }
__device__ inline void store_unit(void* to, const Unit<4>& x) { store_words(to, x.at[0], x.at[1]); }

// A thread takes two units of U elements of one head: two that rotate with each other, or the two that lie half a head
// apart. Where a head's threads are no power of two, some idle.
template <int D, int U>
struct Share {
  static constexpr int kUsed = D / (2 * U);
  static constexpr int kThreads = kUsed <= 2 ? 2 : kUsed <= 4 ? 4 : kUsed <= 8 ? 8 : kUsed <= 16 ? 16 : 32;
  int first, second;
  bool paired;  // the units rotate with each other

  // Where all of a head rotates in halves. Threads that it has no units for look at the last one's angles, not behind them.
  __device__ explicit Share(int thread)
      : first(kUsed == kThreads ? thread : min(thread, kUsed - 1)), second(first + kUsed), paired(true) {}
  __device__ Share(const WriteArgs& a, int thread) {
    const int half = a.rotary_dim / 2 / U;
    paired = false;
    if (!a.cos_sin) {
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
  Floats cosine{}, sine{};

  // `cosines`: those of the position, followed by the sines; null where nothing rotates.
  __device__ Angles(const WriteArgs& a, const Share<D, U>& part, const float* cosines) {
    if (!cosines || !part.paired) return;
    const float* sines = cosines + a.rotary_dim / 2;
    cosine = *reinterpret_cast<const Floats*>(cosines + part.first * U);
    sine = *reinterpret_cast<const Floats*>(sines + part.first * U);
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

// Factors of a thread's two units after the norm.
template <class T, int D, int U>
struct NormWeights {
  float first[U], second[U];

  __device__ NormWeights(const WriteArgs& a, const Share<D, U>& part, const T* norm, bool used) {
    Unit<U> low{}, high{};
    if (norm && used) {
      low = *reinterpret_cast<const Unit<U>*>(norm + part.first * U);
      high = *reinterpret_cast<const Unit<U>*>(norm + part.second * U);
    }
    widen_unit<T>(low, first), widen_unit<T>(high, second);
#pragma unroll
    for (int j = 0; j < U; ++j) first[j] += a.norm_offset, second[j] += a.norm_offset;
  }
  __device__ void hold_all() {
#pragma unroll
    for (int j = 0; j < U; ++j) hold(first[j]), hold(second[j]);
  }
};

// Norm (unless `normed` is false, when its sums are unused) and rotation of a head of q or k of a token, of
// which this thread holds two units. All lanes of a warp come here, those of a `value` for the sums alone: the compiler
// would look for the lanes of every sum otherwise, which takes longer than all else.
template <class T, int D, int U, bool norms>
__device__ inline void rotate(const WriteArgs& a, const Share<D, U>& part, const Angles<D, U>& angles,
                              const NormWeights<T, D, U>& weights, bool normed, bool value, float (&x)[U], float (&y)[U]) {
  if constexpr (norms) {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < U; ++j) squares = __fmaf_rn(x[j], x[j], __fmaf_rn(y[j], y[j], squares));
#pragma unroll
    for (int step = Share<D, U>::kThreads / 2; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
    const float inverse = rsqrtf(squares / float(D) + a.eps);
    if (normed && !value) {
#pragma unroll
      for (int j = 0; j < U; ++j) x[j] *= inverse * weights.first[j], y[j] *= inverse * weights.second[j];
    }
  }
  if (!value && part.paired) turn(x, y, angles.cosine.at, angles.sine.at);
}

// The same for one head whose weights and angles are still to be read, rounded to the type of the data.
template <class T, int D, int U, bool norms>
__device__ inline void rotate(const WriteArgs& a, const Share<D, U>& part, const T* norm, bool value, bool real,
                              int64_t position, Elements<T, U>& low, Elements<T, U>& high) {
  if (!a.cos_sin && !norms) return;
  float x[U], y[U];
  widen_unit<T>(reinterpret_cast<const Unit<U>&>(low), x), widen_unit<T>(reinterpret_cast<const Unit<U>&>(high), y);
  const NormWeights<T, D, U> weights(a, part, norm, real);
  const Angles<D, U> angles(a, part, a.cos_sin && !value ? a.cos_sin + position * a.cos_sin_stride : nullptr);
  rotate<T, D, U, norms>(a, part, angles, weights, norm != nullptr, value, x, y);
  if (value) return;
  round_unit<T>(x, reinterpret_cast<Unit<U>&>(low)), round_unit<T>(y, reinterpret_cast<Unit<U>&>(high));
}

}  // namespace
}  // namespace octavo
