// The RMS norm of one row by a whole block, on its way into shared memory.
#pragma once

#include "linear/norm.cuh"

namespace octavo {

constexpr int kNormVector = 8;    // elements of 16 bytes
constexpr int kNormedAtOnce = 2;  // vectors of the row that a thread normalises, unless it is told otherwise
constexpr int kMostSquares = 32;  // sums of a warp's squares

// One over the root of the mean square of a row, of which each thread has vectors in `raw`, the first kMost of them. With the
// arithmetic of norm.cu in its order: a row's bits do not tell which kernel normalised it. `squares` has room for kMostSquares.
template <class T, int kThreads, int kMost, int N>
__device__ inline float inverse_of_row(const uint4 (&raw)[N], float* squares, int vectors, int depth, float eps, int lane,
                                       int warp) {
  constexpr int kWarps = kThreads / 32;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if ((warp + i * kWarps) * 32 >= vectors) break;
    float x[kNormVector];
    widen<T>(raw[i], x);
    const float sum = warp_sum(sum_of_squares(x));
    if (lane == 0) squares[warp + i * kWarps] = sum;
  }
  __syncthreads();
  return inverse_rms(warp_sum(lane * 32 < vectors ? squares[lane] : 0.0f), depth, eps);
}

// `to` holds the norm's weights, and then the row. Threads do not wait for each other afterwards.
template <class T, int kThreads, int kAtOnce = kNormedAtOnce>
__device__ inline void take_normed_row(const uint4* from, uint4* to, float* squares, int vectors, const LinearArgs& a,
                                       int lane, int warp) {
  uint4 raw[kAtOnce];
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    raw[i] = make_uint4(0, 0, 0, 0);
    if (int(threadIdx.x) + i * kThreads < vectors) raw[i] = __ldcg(from + threadIdx.x + i * kThreads);
  }
  const float inverse = inverse_of_row<T, kThreads, kAtOnce>(raw, squares, vectors, a.depth, a.eps, lane, warp);
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    if (int(threadIdx.x) + i * kThreads >= vectors) break;
    float x[kNormVector], scale[kNormVector];
    widen<T>(raw[i], x), widen<T>(to[threadIdx.x + i * kThreads], scale);
#pragma unroll
    for (int j = 0; j < kNormVector; ++j) x[j] = x[j] * inverse * (scale[j] + a.offset);
    to[threadIdx.x + i * kThreads] =
        make_uint4(pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7]));
  }
}

}  // namespace octavo
