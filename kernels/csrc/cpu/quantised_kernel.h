// x @ weight.T for weights in codes, which are never stored as anything else than their codes.
//
// The depth is cut into segments that end with each group, or earlier. Sums of a segment are those of the bare codes;
// times the scale they are added to the totals in float32, segment by segment. That order is the same for all numbers of
// rows: a few meet codes that are unpacked in registers, more meet codes that were unpacked once for all of them.
//
// Integers: sums of a group are exact, and what follows is written without fused operations, so that bits are those of
// every level.
//
// How codes meet x is a `Dot`: X, what x consists of; `depth` of an Operand; `vectors` of operands, and of sums, side by
// side in a panel; `steps` of such vectors in a piece.
#pragma once

#include "norm.h"
#include "quantised_rows.h"

namespace octavo {
namespace {

struct Part {
  int64_t group, begin, end;  // of the depth
};

// One segment, a part of the depth, of panels side by side.
struct Panels {
  const uint8_t* codes;
  int64_t stride, step;  // bytes from panel to panel and from piece to piece
  const uint8_t* zeros;  // kPanel from panel to panel
};

// Codes of four panels are read from one end of memory to the other, and fetched so many bytes ahead.
constexpr int64_t kCodesAhead = 4096;

template <WeightCodes kCodes, bool kZeros>
struct FloatDot {
  using X = float;
  using Operand = Vec;
  using Input = Vec;
  using Sum = Vec;
  static constexpr bool integers = false, unpacks = true, streams = true;
  static constexpr WeightCodes codes = kCodes;
  static constexpr int vectors = kPanel / W, depth = 1, steps = piece_depth(kCodes);
  static constexpr int64_t segment = 128;

  struct Zero {
    Vec value;
  };
  static Zero zero(const uint8_t* zeros, int v) {
    return {kZeros ? zero_value(kCodes, zeros + v * W) : vset(0.0f)};
  }
  template <int step>
  static Operand operand(const uint8_t* piece, int v, const Zero& zero) {
    const Vec value = code_value<kCodes, step>(piece, v * W);
    return kZeros ? value - zero.value : value;
  }
  static Sum none() { return vset(0.0f); }
  static Input input(const X* x) { return vset(*x); }
  static Sum mac(Operand w, Input x, Sum sum) { return vfma(w, x, sum); }
  static Operand load(const void* p) { return vload(static_cast<const float*>(p)); }
  static void store(void* p, Operand w) { vstore(static_cast<float*>(p), w); }
  template <class T>
  static void pack(const QuantisedArgs& a, int64_t t, X* out, float* memory) {
    __builtin_memcpy(out, widen_ordered<T>(a, t, memory), size_t(a.depth) * sizeof *out);
  }
};

// Operands that were unpacked before: [panels][operands][vectors].
template <class Dot>
struct Unpacked : Dot {
  static constexpr bool streams = false;
  static constexpr int steps = 1;
  static constexpr int64_t bytes = Dot::vectors * int64_t(sizeof(typename Dot::Operand));
  struct Zero {};
  static Zero zero(const uint8_t*, int) { return {}; }
  template <int step>
  static typename Dot::Operand operand(const uint8_t* piece, int v, const Zero&) {
    return Dot::load(piece + v * sizeof(typename Dot::Operand));
  }
};

template <class Dot>
inline void unpack(const Panels& w, int64_t c, int64_t depth, uint8_t* out) {
  typename Dot::Zero zero[Dot::vectors];
  for (int v = 0; v < Dot::vectors; ++v) zero[v] = Dot::zero(w.zeros + c * kPanel, v);
  const uint8_t* codes = w.codes + c * w.stride;
  for (int64_t k = 0; k < depth; k += Dot::steps * Dot::depth, codes += w.step) {
    __builtin_prefetch(codes + kCodesAhead);
    typename Dot::Operand operands[Dot::steps * Dot::vectors];
    unrolled<Dot::steps>([&](auto step) {
      constexpr int i = decltype(step)::value;
      for (int v = 0; v < Dot::vectors; ++v)
        operands[i * Dot::vectors + v] = Dot::template operand<i>(codes, v, zero[v]);
    });
#pragma GCC unroll 16
    for (const auto& operand : operands) Dot::store(out, operand), out += sizeof operand;
  }
}

constexpr int kMostSums = W == 16 ? 16 : 8;  // vectors of sums that leave registers for operands
template <class Dot>
constexpr int most_rows() {
  return kMostSums / Dot::vectors < 1 ? 1 : kMostSums / Dot::vectors < 8 ? kMostSums / Dot::vectors : 8;
}
template <class Dot, int R>
constexpr int panels_at_once() {
  const int fit = kMostSums / (R * Dot::vectors);
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// Sums of R rows and C panels over one segment, x from its beginning on.
template <class Dot, int R, int C>
inline void sum_segment(const Panels& w, const typename Dot::X* x, int64_t x_stride, int64_t depth,
                        typename Dot::Sum (&sums)[R][C * Dot::vectors]) {
  constexpr int N = C * Dot::vectors;
  typename Dot::Zero zero[N];
  for (int i = 0; i < N; ++i) {
    zero[i] = Dot::zero(w.zeros + i / Dot::vectors * kPanel, i % Dot::vectors);
    for (int r = 0; r < R; ++r) sums[r][i] = Dot::none();
  }
  const uint8_t* piece = w.codes;
  for (int64_t k = 0; k < depth; k += Dot::steps * Dot::depth, piece += w.step) {
    if constexpr (Dot::streams)
      for (int c = 0; c < C; ++c) __builtin_prefetch(piece + c * w.stride + kCodesAhead);
    unrolled<Dot::steps>([&](auto step) {
      typename Dot::Operand operands[N];
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i)
        operands[i] = Dot::template operand<decltype(step)::value>(piece + i / Dot::vectors * w.stride, i % Dot::vectors,
                                                                   zero[i]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename Dot::Input in = Dot::input(x + r * x_stride + k + decltype(step)::value * Dot::depth);
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) sums[r][i] = Dot::mac(operands[i], in, sums[r][i]);
      }
    });
  }
}

// Adds sixteen exact sums of bare codes, those of x times zero points still in them, to the totals.
inline void add_integers(const int32_t* sums, const uint8_t* zeros, const float* scales, int32_t x_sum, float x_scale,
                         float* totals) {
  for (int i = 0; i < kPanel; ++i) {
    const uint32_t zero = zeros ? zeros[i] : 128;
    const int32_t sum = int32_t(uint32_t(sums[i]) - zero * uint32_t(x_sum));
    totals[i] = totals[i] + float(sum) * (scales[i] * x_scale);
  }
}

// Rows of a block with what they need of x, and their totals, [rows][kPanelColumns].
template <class Dot>
struct BlockRows {
  const QuantisedArgs& a;
  const char* x;
  int64_t x_stride;  // bytes
  float* totals;
  int64_t panel;  // the first of four

  BlockRows(const QuantisedArgs& args, int64_t t, float* to, int64_t first_panel)
      : a(args), x_stride(int64_t(packed_row(args))), totals(to), panel(first_panel) {
    x = static_cast<const char*>(a.x) + t * x_stride;
  }
  static size_t packed_row(const QuantisedArgs& a) {
    return size_t(round_up(a.depth * int64_t(sizeof(typename Dot::X)), 64)) + (Dot::integers ? integer_row_tail(a) : 0);
  }
  IntegerRow integers(int64_t r) const {
    const size_t tail = integer_row_tail(a);
    return integer_row(a, const_cast<char*>(x) + (r + 1) * x_stride - tail);
  }
  const float* scales(int64_t c, int64_t group) const { return a.scales + beside(c, group); }
  const uint8_t* zeros(int64_t c, int64_t group) const { return a.zeros ? a.zeros + beside(c, group) : nullptr; }
  int64_t beside(int64_t c, int64_t group) const { return (panel / kPanels * a.groups + group) * kPanelColumns + c * kPanel; }
  Panels panels(int64_t c, const Part& s) const {
    const int64_t pieces = a.depth / a.piece_depth();
    if constexpr (Dot::integers) {
      const int64_t piece = (panel + c) * pieces + s.begin / a.piece_depth();
      return {a.weight + piece * kPiece, pieces * kPiece, kPiece, zeros(c, s.group)};
    }
    const int64_t piece = panel / kPanels * pieces + s.begin / a.piece_depth();
    return {a.weight + (piece * kPanels + c) * kPiece, kPiece, kPanels * kPiece, zeros(c, s.group)};
  }

  // D is Dot or, with the same sums, Unpacked<Dot>.
  template <class D, int R, int C>
  void add(const Panels& w, int64_t r, int64_t c, const Part& s) const {
    constexpr int V = Dot::vectors;
    typename Dot::Sum sums[R][C * V];
    const auto* from = reinterpret_cast<const typename Dot::X*>(x + r * x_stride) + s.begin;
    sum_segment<D, R, C>(w, from, x_stride / int64_t(sizeof *from), s.end - s.begin, sums);
    for (int i = 0; i < R; ++i) {
      float* out = totals + (r + i) * kPanelColumns + c * kPanel;
      if constexpr (Dot::integers) {
        const IntegerRow row = integers(r + i);
        for (int j = 0; j < C; ++j) {
          alignas(64) int32_t whole[kPanel];
          Dot::store_sums(&sums[i][j * V], whole);
          add_integers(whole, zeros(c + j, s.group), scales(c + j, s.group), row.sums[s.group],
                       row.scales[s.group / a.x_groups], out + j * kPanel);
        }
      } else {
        for (int j = 0; j < C * V; ++j) {
          const Vec scale = vload(scales(c + j / V, s.group) + j % V * W) * vset(code_unit(Dot::codes));
          vstore(out + j * W, vfma(sums[i][j], scale, vload(out + j * W)));
        }
      }
    }
  }

  // Calls f(segment) in the order of the depth.
  template <class F>
  void for_segments(F f) const {
    for (int64_t g = 0; g < a.groups; ++g) {
      const int64_t end = (g + 1) * a.group < a.depth ? (g + 1) * a.group : a.depth;
      for (int64_t k = g * a.group; k < end; k += Dot::segment)
        f(Part{g, k, k + Dot::segment < end ? k + Dot::segment : end});
    }
  }

  // Up to R rows from the codes.
  template <int R>
  void few(int64_t r, int64_t rows) const {
    if (rows < R) {
      if constexpr (R > 1) few<R - 1>(r, rows);
      return;
    }
    constexpr int C = panels_at_once<Dot, R>();
    for (int64_t c = 0; c < kPanels; c += C)
      for_segments([&](const Part& s) { add<Dot, R, C>(panels(c, s), r, c, s); });
  }

  // Any number of rows, the codes unpacked first.
  void many(int64_t rows, uint8_t* memory) const {
    constexpr int R = most_rows<Dot>(), C = panels_at_once<Dot, R>();
    for (int64_t c = 0; c < kPanels; c += C)
      for_segments([&](const Part& s) {
        Panels w = panels(c, s);
        const int64_t stride = (s.end - s.begin) / Dot::depth * Unpacked<Dot>::bytes;
        for (int i = 0; i < C; ++i) unpack<Dot>(w, i, s.end - s.begin, memory + i * stride);
        w.codes = memory, w.stride = stride, w.step = Unpacked<Dot>::bytes;
        for (int64_t r = 0; r < rows; r += R) unpacked<R, C>(w, r, rows - r, c, s);
      });
  }

 private:
  template <int R, int C>
  void unpacked(const Panels& w, int64_t r, int64_t rows, int64_t c, const Part& s) const {
    if (rows >= R) return add<Unpacked<Dot>, R, C>(w, r, c, s);
    if constexpr (R > 1) unpacked<R - 1, C>(w, r, rows, c, s);
  }

};

// Totals of four panels into the output, with bias and residual.
template <class T>
inline void store_totals(const QuantisedArgs& a, const float* totals, int64_t t, int64_t t_end, int64_t n) {
  const int64_t columns = a.columns - n < kPanelColumns ? a.columns - n : kPanelColumns;
  for (; t < t_end; ++t, totals += kPanelColumns) {
    for_vectors(columns, [&](int64_t i, int count) {
      Vec y = vload(totals + i);
      if (a.bias) y = y + load_some(static_cast<const T*>(a.bias) + n + i, count);
      if (a.residual) y = y + load_some(static_cast<const T*>(a.residual) + t * a.residual_stride + n + i, count);
      store_some(static_cast<T*>(a.out) + t * a.out_stride + n + i, y, count);
    });
  }
}

constexpr int64_t kQuantisedRows = 128, kQuantisedColumns = 256;

template <class T, class Dot>
struct Quantised {
  using Rows = BlockRows<Dot>;
  static constexpr size_t totals = size_t(kQuantisedRows * kPanelColumns) * sizeof(float);

  static LinearPlan plan(const QuantisedArgs& a) {
    const size_t unpacked = Dot::unpacks ? size_t(Dot::segment / Dot::depth * kPanels * Unpacked<Dot>::bytes) : 0;
    return {Rows::packed_row(a), 0, kQuantisedRows, kQuantisedColumns, totals + unpacked};
  }

  static void pack(const QuantisedArgs& a, void* packed, int64_t begin, int64_t end, float* memory) {
    for (int64_t t = begin; t < end; ++t) {
      const size_t row = Rows::packed_row(a);
      auto* out = reinterpret_cast<typename Dot::X*>(static_cast<char*>(packed) + size_t(t) * row);
      if constexpr (Dot::integers) {
        const IntegerRow tail = integer_row(a, reinterpret_cast<char*>(out) + row - integer_row_tail(a));
        const int8_t* codes = encode_integers<T>(a, t, tail, memory);
        for (int64_t k = 0; k < a.depth; ++k) out[k] = codes[k];
      } else {
        Dot::template pack<T>(a, t, out, memory);
      }
    }
  }

  static void run(const QuantisedArgs& a, const LinearBlock& b, void* scratch) {
    float* sums = static_cast<float*>(scratch);
    const int64_t rows = b.row_end - b.row;
    constexpr int most = most_rows<Dot>();
    for (int64_t n = b.column; n < b.column_end; n += kPanelColumns) {
      const Rows block(a, b.row, sums, n / kPanel);
      __builtin_memset(sums, 0, size_t(rows * kPanelColumns) * sizeof(float));
      if (Dot::unpacks && rows > most) {
        if constexpr (Dot::unpacks) block.many(rows, reinterpret_cast<uint8_t*>(sums) + totals);
      } else {
        for (int64_t r = 0; r < rows; r += most) block.template few<most>(r, rows - r < most ? rows - r : most);
      }
      store_totals<T>(a, sums, b.row, b.row_end, n);
    }
  }
};

}  // namespace
}  // namespace octavo
