#include "recurrent_bindings.h"

#include <pybind11/stl.h>

#include "../bindings.h"
#include "launch.h"

namespace py = pybind11;

namespace octavo {

// Operands of recurrent layers: see octavo_kernels/recurrent/operands.py.
struct SlotNorm {
  const float* weight;
  int64_t group;
  float eps;
  int gate_first;
};
struct StateShape {
  int sources, heads;
  int64_t depth, width;
};
inline auto fields(StateMoves& m) {
  return std::tie(m.sequences, m.query_start, m.read, m.write, m.keep_start, m.keep_after, m.keep_slot);
}
inline auto fields(Convolution& c) { return std::tie(c.weight, c.bias, c.taps, c.channels); }
inline auto fields(SlotNorm& n) { return std::tie(n.weight, n.group, n.eps, n.gate_first); }
inline auto fields(StateShape& s) { return std::tie(s.sources, s.heads, s.depth, s.width); }

namespace {

ConvolutionArgs convolution_of(int dtype, const Rows& x, int64_t first, int64_t rows, const Rows& columns,
                               const StateMoves& moves, const Convolution& taken) {
  ConvolutionArgs c{};
  c.dtype = Dtype(dtype), c.x = static_cast<char*>(x.data) + first * int64_t(item_size(c.dtype)), c.x_stride = x.stride;
  c.rows = rows, c.columns = columns.data, c.slot_stride = columns.stride, c.moves = moves, c.taken = taken;
  return c;
}

RecurrenceArgs recurrence_of(Recurrence rule, int dtype, const Rows& x, int64_t rows, const StateMoves& moves,
                             const Rows& matrices, const SlotNorm& norm, const Rows& out, const StateShape& shape,
                             Address rates, Address dt_bias) {
  RecurrenceArgs a{};
  a.rule = rule, a.dtype = Dtype(dtype), a.x = x.data, a.x_stride = x.stride, a.rows = rows;
  a.matrices = static_cast<float*>(matrices.data), a.slot_stride = matrices.stride, a.moves = moves;
  a.sources = shape.sources, a.heads = shape.heads, a.depth = shape.depth, a.width = shape.width;
  a.rates = at<float>(rates), a.dt_bias = at<float>(dt_bias);
  a.norm = norm.weight, a.norm_group = norm.group, a.eps = norm.eps, a.gate_first = norm.gate_first != 0;
  a.out = out.data, a.out_stride = out.stride;
  return a;
}

// x: q | k | v | z | b | a
void delta_step(int dtype, const Rows& x, int64_t rows, const Rows& columns, const StateMoves& moves,
                const Convolution& taken, const Rows& matrices, const SlotNorm& norm, const Rows& out,
                const StateShape& shape, Address rates, Address dt_bias, float beta_scale) {
  auto a = recurrence_of(Recurrence::delta, dtype, x, rows, moves, matrices, norm, out, shape, rates, dt_bias);
  a.gate = taken.channels, a.beta = a.gate + a.inner(), a.dt = a.beta + a.heads;
  a.key = a.sources * a.depth, a.value = 2 * a.key;
  a.beta_scale = beta_scale;
  launch_recurrence(convolution_of(dtype, x, 0, rows, columns, moves, taken), a);
}

// x: z | x | B | C | dt
void ssm_step(int dtype, const Rows& x, int64_t rows, const Rows& columns, const StateMoves& moves,
              const Convolution& taken, const Rows& matrices, const SlotNorm& norm, const Rows& out,
              const StateShape& shape, Address rates, Address dt_bias, Address skip,
              const std::pair<float, float>& dt_limit) {
  auto a = recurrence_of(Recurrence::ssm, dtype, x, rows, moves, matrices, norm, out, shape, rates, dt_bias);
  a.dt = a.inner() + taken.channels;
  a.key = a.inner(), a.query = a.key + a.sources * a.depth;
  a.skip = at<float>(skip), a.dt_least = dt_limit.first, a.dt_most = dt_limit.second;
  launch_recurrence(convolution_of(dtype, x, a.inner(), rows, columns, moves, taken), a);
}

// x: B | C | x
void conv_step(int dtype, const Rows& x, int64_t rows, const Rows& columns, const StateMoves& moves,
               const Convolution& taken, const Rows& out) {
  auto c = convolution_of(dtype, x, 0, rows, columns, moves, taken);
  const int64_t width = taken.channels * int64_t(item_size(c.dtype));
  c.factors = static_cast<const char*>(c.x) + width, c.factors_stride = x.stride;
  c.by = static_cast<const char*>(c.x) + 2 * width;
  c.out = out.data, c.out_stride = out.stride;
  launch_short_convolution(c);
}

}  // namespace

void add_recurrent(py::module_& m) {
  const auto free = py::call_guard<py::gil_scoped_release>();
  m.def("delta_step", &delta_step, free);
  m.def("ssm_step", &ssm_step, free);
  m.def("conv_step", &conv_step, free);
}

}  // namespace octavo
