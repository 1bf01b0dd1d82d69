// Results of tiles whose rows are the weight's and whose columns are rows of x, as tensor cores leave them: with bias and
// residual, or gated, 16 bytes of a row of the output a thread.
#pragma once

#include "linear/activation.cuh"

namespace octavo {

template <Activation kind>
__device__ inline void activate_all(float (&x)[8]) {
#pragma unroll
  for (float& one : x) one = activate<kind>(one);
}

// Where a thread's results go: rows of x from `token` on, below `end`; the columns of what it stores from `column` on, in which
// its warp has the same; the biases of its two rows of the weight.
struct SwappedPlace {
  int token, end, column;
  float biases[2];
};

// A lane's sums are those of rows lane / 4 and + 8 of its warp with rows n * 8 + lane % 4 * 2 + {0, 1} of x: numbers
// 4 n + {0, 1} and + {2, 3}. Gated, the first of those rows is the gate's. `Args` has what is stored, and how.
template <class T, class Args>
struct SwappedStore {
  static constexpr int kPlain = 2, kGated = 4;  // eights of rows of x that are stored at a time

  const Args& a;
  const int lane;

  __device__ float bias(int column) const { return to_float(static_cast<const T*>(a.bias)[min(column, a.columns - 1)]); }

  // Plain, sixteen rows of x at a time: of two eights of columns four units of 16 bytes, one for each of four threads.
  __device__ bool is_stored(const SwappedPlace& p, int n, int& token, int& column) const {
    token = p.token + (n + lane % 4 / 2) * 8 + lane / 4, column = p.column + lane % 2 * 8;
    return token < p.end && column < a.columns;
  }
  __device__ uint4 residual(const SwappedPlace& p, int n) const {
    int token, column;
    if (!a.residual || !is_stored(p, n, token, column)) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(static_cast<const T*>(a.residual) + token * a.residual_stride + column);
  }
  __device__ void plain(const SwappedPlace& p, int n, const float (&sums)[4 * kPlain], const uint4& raw) const {
    uint32_t words[4], more[4] = {raw.x, raw.y, raw.z, raw.w};
    if (a.residual) {
      transpose_quad(more);
#pragma unroll
      for (uint32_t& word : more) word = transpose(word);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float bias = p.biases[i % 2];
      float2 sum = make_float2(sums[2 * i] + bias, sums[2 * i + 1] + bias);
      if (a.residual) {
        const float2 addend = unpack<T>(more[i]);
        sum.x += addend.x, sum.y += addend.y;
      }
      words[i] = transpose(pack<T>(sum.x, sum.y));
    }
    transpose_quad(words);
    int token, column;
    if (is_stored(p, n, token, column)) unit(token, column, words);
  }
  // Gated, thirty-two rows of x and one eight of columns. Both projections are rounded as if they had been stored.
  __device__ void gated(const SwappedPlace& p, int n, const float (&sums)[4 * kGated]) const {
    float gates[8], ups[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 gate = unpack<T>(pack<T>(sums[4 * i] + p.biases[0], sums[4 * i + 1] + p.biases[0]));
      const float2 up = unpack<T>(pack<T>(sums[4 * i + 2] + p.biases[1], sums[4 * i + 3] + p.biases[1]));
      gates[2 * i] = gate.x, gates[2 * i + 1] = gate.y, ups[2 * i] = up.x, ups[2 * i + 1] = up.y;
    }
    switch (a.activation) {
      case Activation::silu: activate_all<Activation::silu>(gates); break;
      case Activation::gelu: activate_all<Activation::gelu>(gates); break;
      default: activate_all<Activation::gelu_tanh>(gates);
    }
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = transpose(pack<T>(gates[2 * i] * ups[2 * i], gates[2 * i + 1] * ups[2 * i + 1]));
    transpose_quad(words);
    const int token = p.token + (n + lane % 4) * 8 + lane / 4;
    if (token < p.end && p.column < a.columns / 2) unit(token, p.column, words);
  }
  __device__ void unit(int token, int column, const uint32_t (&words)[4]) const {
    *reinterpret_cast<uint4*>(static_cast<T*>(a.out) + token * a.out_stride + column) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
};

// Calls f with a number of eights and the sums of those, of each as many as are stored at a time; past the last eight zeros.
template <int kAtOnce, int N, class F>
__device__ inline void in_parts(const float (&sums)[N], F&& f) {
#pragma unroll
  for (int n = 0; n < N / 4; n += kAtOnce) {
    float own[4 * kAtOnce];
#pragma unroll
    for (int i = 0; i < 4 * kAtOnce; ++i) own[i] = 4 * n + i < N ? sums[4 * n + i < N ? 4 * n + i : 0] : 0.0f;
    f(n, own);
  }
}

}  // namespace octavo
