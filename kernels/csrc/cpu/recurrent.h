// Recurrent layers: convolution, gates, recurrence and gated norm. What a row adds to a state depends on nothing but the
// row and the state, one row after the other, so no cut of a sequence into steps shows in the bits.
#pragma once

#include <cstring>

#include "activation.h"

namespace octavo {
namespace {

constexpr int kStateVectors = W == 16 ? 2 : 1;  // columns of a state that are advanced together, in vectors
constexpr int kStateColumns = kStateVectors * W;
static_assert(kStateColumns <= kMostStateColumns);
constexpr int kChains = 4;  // sums over the rows of a state: row i in chain i % 4, then (0 + 1) + (2 + 3)

// Rows of one sequence's inputs: those before its first are the columns of the slot that it reads.
template <class T>
struct Inputs {
  const T *rows, *columns;  // columns null: zeros
  int64_t stride, channels;
  int before;

  const T* at(int64_t t) const {
    if (t >= 0) return rows + t * stride;
    return columns ? columns + (before + t) * channels : nullptr;
  }
};

// The columns after `n` rows, channels [begin, end). `to` may be where the inputs' columns lie.
template <class T>
void store_columns(const Inputs<T>& inputs, int64_t n, T* to, int64_t begin, int64_t end) {
  for (int j = 0; j < inputs.before; ++j) {
    const T* from = inputs.at(n - inputs.before + j);
    T* row = to + j * inputs.channels;
    if (from == row) continue;
    if (from)
      memcpy(row + begin, from + begin, size_t(end - begin) * sizeof(T));
    else
      memset(row + begin, 0, size_t(end - begin) * sizeof(T));
  }
}

template <class T>
void multiply_inputs(const ConvolutionArgs& a, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride + begin;
    const T* by = static_cast<const T*>(a.by) + row * a.x_stride + begin;
    T* to = static_cast<T*>(a.products) + row * a.taken.channels + begin;
    for_vectors(end - begin, [&](int64_t i, int n) { store_some(to + i, load_some(x + i, n) * load_some(by + i, n), n); });
  }
}

// One row of outputs from `taps` rows of inputs.
template <class T>
void convolve_row(const ConvolutionArgs& a, const T* const* from, int64_t row, int64_t begin, int64_t end) {
  const T *weight = static_cast<const T*>(a.taken.weight), *bias = static_cast<const T*>(a.taken.bias);
  for_vectors(end - begin, [&](int64_t i, int n) {
    const int64_t c = begin + i;
    Vec sum = vset(0.0f);
    for (int j = 0; j < a.taken.taps; ++j)
      if (from[j]) sum = vfma(load_some(weight + j * a.taken.channels + c, n), load_some(from[j] + c, n), sum);
    if (bias) sum = sum + load_some(bias + c, n);
    if (a.mixed) return store_some(a.mixed + row * a.taken.channels + c, activate<Activation::silu>(sum), n);
    const T* factors = static_cast<const T*>(a.factors) + row * a.factors_stride + c;
    store_some(static_cast<T*>(a.out) + row * a.out_stride + c, load_some(factors, n) * sum, n);
  });
}

template <class T>
void convolve_typed(const ConvolutionArgs& a, int sequence, int64_t begin, int64_t end) {
  const StateMoves& m = a.moves;
  const int64_t first = m.query_start[sequence], rows = m.query_start[sequence + 1] - first;
  const int read = m.read[sequence], write = m.write[sequence];
  T* columns = static_cast<T*>(a.columns);
  if (a.by) multiply_inputs<T>(a, first, first + rows, begin, end);
  Inputs<T> inputs{static_cast<const T*>(a.x) + first * a.x_stride, read ? columns + read * a.slot_stride : nullptr,
                   a.x_stride, a.taken.channels, a.taken.taps - 1};
  if (a.by) inputs.rows = static_cast<const T*>(a.products) + first * a.taken.channels, inputs.stride = a.taken.channels;
  const T* from[kMaxTaps];
  for (int64_t t = 0; t < rows; ++t) {
    for (int j = 0; j < a.taken.taps; ++j) from[j] = inputs.at(t - inputs.before + j);
    convolve_row<T>(a, from, first + t, begin, end);
  }
  for (int k = m.keep_start[sequence]; k < m.keep_start[sequence + 1]; ++k)
    if (m.keep_slot[k] && m.keep_after[k] <= rows)
      store_columns(inputs, m.keep_after[k], columns + m.keep_slot[k] * a.slot_stride, begin, end);
  if (write) store_columns(inputs, rows, columns + write * a.slot_stride, begin, end);
}

void convolve(const ConvolutionArgs& a, int sequence, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { convolve_typed<decltype(tag)>(a, sequence, begin, end); });
}

inline Vec sigmoidv(Vec x) { return vset(1.0f) / (vset(1.0f) + expv(vset(0.0f) - x)); }

// log(1 + e^x), without loss where e^x is small: log(w) is right for w = 1 + u as it was rounded, so u over w - 1 mends it.
inline Vec softplusv(Vec x) {
  const Vec zero = vset(0.0f), one = vset(1.0f);
  const Vec u = expv(vmin(x, zero - x)), w = one + u, rounded = w - one;
  const Vec small = vselect(vgt(rounded, zero), log_exact(w) * (u / vmax(rounded, vset(1e-30f))), u);
  return vmax(x, zero) + small;
}

// Sum over `n` floats of products, in vectors and then across their lanes.
inline float dot_of(const float* a, const float* b, int64_t n) {
  Vec sum = vset(0.0f);
  for_vectors(n, [&](int64_t i, int m) { sum = vfma(load_some(a + i, m), load_some(b + i, m), sum); });
  return vsum(sum);
}

inline void scale_to(float* x, int64_t n, float by) {
  for_vectors(n, [&](int64_t i, int m) { store_some(x + i, load_some(x + i, m) * vset(by), m); });
}

// Queries and keys of a row over their lengths, and their products.
void normalise_keys(const RecurrenceArgs& a, int64_t row) {
  float* mixed = a.mixed + row * a.mixed_stride;
  const float scale = 1.0f / __builtin_sqrtf(float(a.depth));
  for (int s = 0; s < a.sources; ++s) {
    float *q = mixed + a.query + s * a.depth, *k = mixed + a.key + s * a.depth;
    scale_to(q, a.depth, scale / __builtin_sqrtf(dot_of(q, q, a.depth) + 1e-6f));
    scale_to(k, a.depth, 1.0f / __builtin_sqrtf(dot_of(k, k, a.depth) + 1e-6f));
    a.products[row * a.sources + s] = dot_of(k, q, a.depth);
  }
}

template <class T>
void prepare_typed(const RecurrenceArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const bool delta = a.rule == Recurrence::delta;
    if (delta) normalise_keys(a, row);
    for_vectors(a.heads, [&](int64_t h, int n) {
      Vec dt = softplusv(load_some(x + a.dt + h, n) + load_some(a.dt_bias + h, n));
      if (!delta) dt = vmin(vmax(dt, vset(a.dt_least)), vset(a.dt_most));
      const Vec beta = delta ? vset(a.beta_scale) * sigmoidv(load_some(x + a.beta + h, n)) : dt;
      store_some(a.decays + row * a.heads + h, expv(load_some(a.rates + h, n) * dt), n);
      store_some(a.betas + row * a.heads + h, beta, n);
    });
  }
}

void recurrence_prepare(const RecurrenceArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { prepare_typed<decltype(tag)>(a, begin, end); });
}

struct Columns {
  Vec v[kStateVectors];
};

inline Columns total(const Columns* chains) {
  Columns sum;
  for (int i = 0; i < kStateVectors; ++i)
    sum.v[i] = (chains[0].v[i] + chains[1].v[i]) + (chains[2].v[i] + chains[3].v[i]);
  return sum;
}

// Rows [i, i + n) of a state, n <= kChains: f(row's columns, chain, row).
template <class F>
inline void for_chains(int64_t depth, F&& f) {
  int64_t i = 0;
  for (; i + kChains <= depth; i += kChains)
    for (int c = 0; c < kChains; ++c) f(i + c, c);
  for (int c = 0; i + c < depth; ++c) f(i + c, c);
}

// S^T k and S^T q of `state` [depth][kStateColumns].
inline void products(const float* state, const float* k, const float* q, int64_t depth, Columns& by_k, Columns& by_q) {
  Columns ks[kChains], qs[kChains];
  for (int c = 0; c < kChains; ++c)
    for (int i = 0; i < kStateVectors; ++i) ks[c].v[i] = qs[c].v[i] = vset(0.0f);
  for_chains(depth, [&](int64_t row, int c) {
    const Vec key = vset(k[row]), query = vset(q[row]);
    for (int i = 0; i < kStateVectors; ++i) {
      const Vec s = vload(state + row * kStateColumns + i * W);
      ks[c].v[i] = vfma(s, key, ks[c].v[i]);
      qs[c].v[i] = vfma(s, query, qs[c].v[i]);
    }
  });
  by_k = total(ks), by_q = total(qs);
}

// S = decay S + k d^T, and S^T q of the result where `q` is given.
template <bool kOutput>
inline Columns advance(float* state, float decay, const float* k, const Columns& d, const float* q, int64_t depth) {
  Columns sums[kChains];
  if (kOutput)
    for (int c = 0; c < kChains; ++c)
      for (int i = 0; i < kStateVectors; ++i) sums[c].v[i] = vset(0.0f);
  const Vec keep = vset(decay);
  for_chains(depth, [&](int64_t row, int c) {
    const Vec key = vset(k[row]);
    for (int i = 0; i < kStateVectors; ++i) {
      float* at = state + row * kStateColumns + i * W;
      const Vec s = vfma(key, d.v[i], keep * vload(at));
      vstore(at, s);
      if (kOutput) sums[c].v[i] = vfma(s, vset(q[row]), sums[c].v[i]);
    }
  });
  return kOutput ? total(sums) : Columns{};
}

// One row of a head: columns [column, column + n) of its state.
inline void step(const RecurrenceArgs& a, int64_t row, int head, int64_t column, int n, float* state) {
  const int source = head / (a.heads / a.sources);
  const float* mixed = a.mixed + row * a.mixed_stride;
  const float *q = mixed + a.query + source * a.depth, *k = mixed + a.key + source * a.depth;
  const float* values = mixed + a.value + head * a.width + column;
  const float decay = a.decays[row * a.heads + head], beta = a.betas[row * a.heads + head];
  float* y = a.y + row * a.inner() + head * a.width + column;
  Columns v{}, out;
  for (int i = 0; i * W < n; ++i) v.v[i] = load_some(values + i * W, n - i * W < W ? n - i * W : W);
  for (int i = 0; i < kStateVectors; ++i)
    if (i * W >= n) v.v[i] = vset(0.0f);
  Columns d;
  if (a.rule == Recurrence::delta) {
    Columns by_k, by_q;
    products(state, k, q, a.depth, by_k, by_q);
    const Vec both = vset(a.products[row * a.sources + source]);
    for (int i = 0; i < kStateVectors; ++i) {
      d.v[i] = vset(beta) * (v.v[i] - vset(decay) * by_k.v[i]);
      out.v[i] = vfma(both, d.v[i], vset(decay) * by_q.v[i]);
    }
    advance<false>(state, decay, k, d, nullptr, a.depth);
  } else {
    for (int i = 0; i < kStateVectors; ++i) d.v[i] = vset(beta) * v.v[i];
    out = advance<true>(state, decay, k, d, q, a.depth);
    for (int i = 0; i < kStateVectors; ++i) out.v[i] = vfma(vset(a.skip[head]), v.v[i], out.v[i]);
  }
  for (int i = 0; i * W < n; ++i) store_some(y + i * W, out.v[i], n - i * W < W ? n - i * W : W);
}

// Columns [column, column + n) of a head's matrix, from a slot to where they are advanced, filled up with zeros, and back.
inline void load_state(const RecurrenceArgs& a, int slot, int head, int64_t column, int n, float* state) {
  const float* from = a.matrices + slot * a.slot_stride + head * a.depth * a.width + column;
  for (int64_t row = 0; row < a.depth; ++row)
    for (int i = 0; i < kStateVectors; ++i) {
      const int count = n - i * W < W ? n - i * W : W;
      const bool any = slot != 0 && count > 0;
      vstore(state + row * kStateColumns + i * W, any ? load_some(from + row * a.width + i * W, count) : vset(0.0f));
    }
}
inline void store_state(const RecurrenceArgs& a, int slot, int head, int64_t column, int n, const float* state) {
  if (slot == 0) return;
  float* to = a.matrices + slot * a.slot_stride + head * a.depth * a.width + column;
  for (int64_t row = 0; row < a.depth; ++row)
    memcpy(to + row * a.width, state + row * kStateColumns, size_t(n) * sizeof(float));
}

void recurrence_advance(const RecurrenceArgs& a, int sequence, int head, float* state) {
  const StateMoves& m = a.moves;
  const int64_t first = m.query_start[sequence], rows = m.query_start[sequence + 1] - first;
  for (int64_t column = 0; column < a.width; column += kStateColumns) {
    const int n = int(a.width - column < kStateColumns ? a.width - column : kStateColumns);
    load_state(a, m.read[sequence], head, column, n, state);
    int keep = m.keep_start[sequence];
    for (int64_t t = 0; t < rows; ++t) {
      step(a, first + t, head, column, n, state);
      for (; keep < m.keep_start[sequence + 1] && m.keep_after[keep] == t + 1; ++keep)
        store_state(a, m.keep_slot[keep], head, column, n, state);
    }
    store_state(a, m.write[sequence], head, column, n, state);
  }
}

template <class T>
void finish_typed(const RecurrenceArgs& a, int64_t begin, int64_t end) {
  const int64_t group = a.norm ? a.norm_group : a.inner();
  for (int64_t row = begin; row < end; ++row)
    for (int64_t at = 0; at < a.inner(); at += group) {
      float* y = a.y + row * a.inner() + at;
      const T* gate = static_cast<const T*>(a.x) + row * a.x_stride + a.gate + at;
      T* out = static_cast<T*>(a.out) + row * a.out_stride + at;
      const auto gated = [&](int64_t i, int n) { return load_some(y + i, n) * activate<Activation::silu>(load_some(gate + i, n)); };
      if (!a.norm) {
        for_vectors(group, [&](int64_t i, int n) { store_some(out + i, gated(i, n), n); });
        continue;
      }
      if (a.gate_first) for_vectors(group, [&](int64_t i, int n) { store_some(y + i, gated(i, n), n); });
      const float inverse = 1.0f / __builtin_sqrtf(dot_of(y, y, group) / float(group) + a.eps);
      scale_to(y, group, inverse);
      for_vectors(group, [&](int64_t i, int n) {
        const Vec weight = load_some(a.norm + at + i, n);
        store_some(out + i, weight * (a.gate_first ? load_some(y + i, n) : gated(i, n)), n);
      });
    }
}

void recurrence_finish(const RecurrenceArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { finish_typed<decltype(tag)>(a, begin, end); });
}

}  // namespace
}  // namespace octavo
