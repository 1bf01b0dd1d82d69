// Bindings of recurrent layers; only a build for Hopper has them.
#include "module.h"
#include "recurrent/args.h"

namespace octavo {

inline auto fields(Slots& x) { return std::tie(x.data, x.stride); }
inline auto fields(Moves& x) {
  return std::tie(x.sequences, x.query_start, x.read, x.write, x.keep_start, x.keep_after, x.keep_slot);
}
inline auto fields(Convolution& x) { return std::tie(x.weight, x.bias, x.taps, x.channels); }
inline auto fields(ChunkRoom& x) { return std::tie(x.data, x.bytes, x.tiles); }
inline auto fields(GatedNorm& x) { return std::tie(x.weight, x.group, x.eps, x.gate_first); }

// Heads of a layer, and those of keys or groups that they share; rows and columns of a head's matrix.
struct StateShape {
  int shared, heads, rows, columns;
};
inline auto fields(StateShape& x) { return std::tie(x.shared, x.heads, x.rows, x.columns); }
struct Limits {
  float least, most;
};
inline auto fields(Limits& x) { return std::tie(x.least, x.most); }

}  // namespace octavo

namespace py = pybind11;
using namespace octavo;

namespace {

RecurrentArgs step_of(int dtype, const Rows& x, int rows, const Slots& columns, const Moves& moves,
                      const Convolution& convolution, const Rows& out) {
  return {Dtype(dtype), x.data, x.stride, rows, columns, moves, convolution, out.data, out.stride};
}

}  // namespace

void octavo::define_recurrent(py::module_& m) {
  const auto delta = [](int dtype, const Rows& x, int rows, const Slots& columns, const Moves& moves,
                        const Convolution& convolution, const Slots& matrices, const GatedNorm& norm, const Rows& out,
                        const StateShape& shape, Address rates, Address dt_bias, float beta_scale, const ChunkRoom& room, int cut,
                        Address stream) {
    const DeltaArgs a{step_of(dtype, x, rows, columns, moves, convolution, out), matrices, norm, shape.shared, shape.heads,
                      shape.rows, shape.columns, at<float>(rates), at<float>(dt_bias), beta_scale, cut, room};
    check("delta_step", delta_step(a, stream_at(stream)));
  };
  m.def("delta_step_cut", delta);
  m.def("delta_step", [delta](int dtype, const Rows& x, int rows, const Slots& columns, const Moves& moves,
                              const Convolution& convolution, const Slots& matrices, const GatedNorm& norm, const Rows& out,
                              const StateShape& shape, Address rates, Address dt_bias, float beta_scale, const ChunkRoom& room,
                              Address stream) {
    delta(dtype, x, rows, columns, moves, convolution, matrices, norm, out, shape, rates, dt_bias, beta_scale, room, 0, stream);
  });
  m.def("ssm_step", [](int dtype, const Rows& x, int rows, const Slots& columns, const Moves& moves,
                       const Convolution& convolution, const Slots& matrices, const GatedNorm& norm, const Rows& out,
                       const StateShape& shape, Address rates, Address dt_bias, Address skip, const Limits& limits, Address y,
                       const ChunkRoom& room, Address stream) {
    const SsmArgs a{step_of(dtype, x, rows, columns, moves, convolution, out), matrices, norm, shape.shared, shape.heads,
                    shape.rows, shape.columns, at<float>(rates), at<float>(dt_bias), at<float>(skip), limits.least,
                    limits.most, at<float>(y), room};
    check("ssm_step", ssm_step(a, stream_at(stream)));
  });
  m.def("conv_step", [](int dtype, const Rows& x, int rows, const Slots& columns, const Moves& moves,
                        const Convolution& convolution, const Rows& out, Address stream) {
    check("conv_step", conv_step(step_of(dtype, x, rows, columns, moves, convolution, out), stream_at(stream)));
  });
}
