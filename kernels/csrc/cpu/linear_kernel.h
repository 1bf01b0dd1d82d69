// x @ weight.T with weights in checkpoint order, streamed once for every 64 rows of x.
//
// Each output element is one sum over the depth in a fixed order, so a row's result does not depend on the other rows.
// A level may specialise `Dot`, how one vector of weights meets one of x, or all of `Linear`, before linear.h.
#pragma once

#include "cache.h"

namespace octavo {
namespace {

// How weights of type T meet x: by default both become float32. A level may specialise this.
template <class T>
struct Dot {
  using X = float;         // element of the packed x
  using Operand = Vec;     // what one step loads
  static constexpr int step = W;
  static constexpr bool pack_needed = sizeof(T) != sizeof(float);
  static Operand weight(const T* p) { return vload(p); }
  static Operand weight_n(const T* p, int n) { return vload_n(p, n); }
  static Operand input(const X* p) { return vload(p); }
  static Vec mac(Operand w, Operand x, Vec acc) { return vfma(w, x, acc); }
  static void pack(const T* x, X* out, int64_t depth) { widen_row(x, out, int(depth)); }
};

template <class T>
inline void linear_store(const LinearArgs& a, int64_t t, int64_t n, const float* sums, int count) {
  Vec y = vload_n(sums, count);
  if (a.bias) y = y + vload_n(static_cast<const T*>(a.bias) + n, count);
  if (a.residual) y = vfma(vset(a.factor), y, vload_n(static_cast<const T*>(a.residual) + t * a.residual_stride + n, count));
  vstore_n(static_cast<T*>(a.out) + t * a.out_stride + n, y, count);
}

// R rows of x times C columns of the output (rows of the weight).
template <class T, int R, int C>
inline void linear_block(const LinearArgs& a, int64_t t, int64_t n) {
  using D = Dot<T>;
  const T* w = static_cast<const T*>(a.weight) + n * a.weight_stride;
  const auto* x = static_cast<const typename D::X*>(a.x) + t * a.x_stride;
  Vec acc[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) acc[r][c] = vset(0.0f);
  auto multiply = [&](int64_t k, auto load) {
    typename D::Operand column[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) column[c] = load(w + c * a.weight_stride + k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      typename D::Operand row = D::input(x + r * a.x_stride + k);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = D::mac(column[c], row, acc[r][c]);
    }
  };
  int64_t k = 0;
  for (; k + D::step <= a.depth; k += D::step) multiply(k, [](const T* p) { return D::weight(p); });
  if (k < a.depth) multiply(k, [&](const T* p) { return D::weight_n(p, int(a.depth - k)); });
  for (int r = 0; r < R; ++r) {
    float sums[C];
    if constexpr (C == 4)
      vsum4(acc[r], sums);
    else
      for (int c = 0; c < C; ++c) sums[c] = vsum(acc[r][c]);
    linear_store<T>(a, t + r, n, sums, C);
  }
}

template <class T, int C, int R>
inline void linear_rows(const LinearArgs& a, int64_t t, int64_t rows, int64_t n) {
  if (rows == R) return linear_block<T, R, C>(a, t, n);
  if constexpr (R > 1) linear_rows<T, C, R - 1>(a, t, rows, n);
}

template <class T, int C>
inline void linear_panel(const LinearArgs& a, int64_t t, int64_t t_end, int64_t n) {
  for (; t < t_end; t += kLinearRows) {
    const int64_t rows = t_end - t < kLinearRows ? t_end - t : kLinearRows;
    linear_rows<T, C, kLinearRows>(a, t, rows, n);
  }
}

constexpr int64_t kLinearPanel = 64;  // rows of x that stay in the cache while weights stream
constexpr int64_t kLinearWeights = int64_t(1) << 18;  // bytes of weights that stay in the cache for all panels

template <class T>
struct Linear {
  using D = Dot<T>;

  static LinearPlan plan(const LinearArgs& a) {
    const int64_t fit = kLinearWeights / (a.depth > 0 ? a.depth * int64_t(sizeof(T)) : 1) / 16 * 16;
    LinearPlan plan = {0, a.x_stride, 8 * kLinearPanel, fit < 16 ? 16 : fit > 256 ? 256 : fit, 0};
    if (!D::pack_needed && a.depth % D::step == 0) return plan;
    plan.packed_stride = round_up(a.depth, D::step);
    plan.packed_row = size_t(plan.packed_stride) * sizeof(typename D::X);
    return plan;
  }

  static void pack(const LinearArgs& a, void* packed, int64_t begin, int64_t end) {
    const int64_t stride = round_up(a.depth, D::step);
    for (int64_t t = begin; t < end; ++t) {
      auto* out = static_cast<typename D::X*>(packed) + t * stride;
      D::pack(static_cast<const T*>(a.x) + t * a.x_stride, out, a.depth);
      for (int64_t i = a.depth; i < stride; ++i) out[i] = {};
    }
  }

  static void run(const LinearArgs& a, const LinearBlock& b, void*) {
    for (int64_t t = b.row; t < b.row_end; t += kLinearPanel) {
      const int64_t t_end = t + kLinearPanel < b.row_end ? t + kLinearPanel : b.row_end;
      int64_t n = b.column;
      for (; n + kLinearColumns <= b.column_end; n += kLinearColumns) linear_panel<T, kLinearColumns>(a, t, t_end, n);
      for (; n < b.column_end; ++n) linear_panel<T, 1>(a, t, t_end, n);
    }
  }
};

}  // namespace
}  // namespace octavo
