// Products, and rows as their codes: none of them is in a build of the plain kernels, where torch computes products.
#include "coded/fields.h"
#include "linear/args.h"
#include "module.h"
#include "w8a8/w8a8.h"

namespace octavo {

inline auto fields(LinearTile& x) { return std::tie(x.consumers, x.columns, x.tall); }
inline auto fields(LinearLaunch& x) { return std::tie(x.kernel, x.tile, x.cluster); }

inline auto fields(CodedRows& x) { return std::tie(x.codes, x.stride, x.scales, x.scales_stride); }
inline auto fields(W8A8Launch& x) { return std::tie(x.kernel, x.consumers, x.tokens, x.height); }
inline auto fields(CodedTile& x) { return std::tie(x.tokens, x.cluster); }
inline auto fields(CodedWideTile& x) { return std::tie(x.consumers, x.tokens, x.cluster); }

// The end of a gated product.
struct Gate {
  bool gated;
  Activation kind;
};
inline auto fields(Gate& x) { return std::tie(x.gated, x.kind); }

}  // namespace octavo

namespace py = pybind11;
using namespace octavo;

namespace {

// Arguments of a product with a weight of codes, all but how it is launched.
CodedArgs coded_args(int dtype, const Rows& x, const CodedMatrix& weight, Address bias, const Rows& residual, const Rows& out,
                     int rows, const Gate& gate, const Norm& norm) {
  aligned("codes", weight.codes), aligned("scales", weight.scales), aligned("zeros", weight.zeros);
  CodedArgs a{};
  a.dtype = Dtype(dtype);
  a.x = x.data, a.x_stride = x.stride;
  a.bias = at<void>(bias), a.residual = residual.data, a.residual_stride = residual.stride;
  a.out = out.data, a.out_stride = out.stride;
  a.rows = rows, a.columns = weight.columns, a.depth = weight.depth;
  a.gated = gate.gated, a.activation = gate.kind;
  a.norm = norm.weight, a.eps = norm.eps, a.offset = norm.offset;
  a.matrix = weight;
  return a;
}

void define_linear(py::module_& m) {
  m.def("linear", [](int dtype, const Rows& x, const Rows& weight, Address bias, const Rows& residual, float factor,
                     const Rows& out, int rows, int columns, int depth, const Gate& gate, const Norm& norm, Address counter,
                     const LinearLaunch& launch, Address stream) {
    LinearArgs a{};
    a.dtype = Dtype(dtype);
    a.x = x.data, a.x_stride = x.stride, a.weight = weight.data, a.weight_stride = weight.stride;
    a.bias = at<void>(bias), a.residual = residual.data, a.residual_stride = residual.stride, a.factor = factor;
    a.out = out.data, a.out_stride = out.stride;
    a.rows = rows, a.columns = columns, a.depth = depth;
    a.gated = gate.gated, a.activation = gate.kind;
    a.norm = norm.weight, a.eps = norm.eps, a.offset = norm.offset;
    a.counter = at<unsigned>(counter);
    return launched("linear", linear(a, launch, stream_at(stream)));
  });
}

void define_w8a8(py::module_& m) {
  m.def("quantise_rows", [](int dtype, int cells, bool in_blocks, const Rows& x, const Norm& norm, const CodedRows& out,
                            int rows, int width, Address stream) {
    const QuantiseArgs a{Dtype(dtype), Cells(cells), in_blocks, x.data, x.stride, norm.weight, norm.eps, norm.offset,
                         out, rows, width};
    check("quantise_rows", quantise_rows(a, stream_at(stream)));
  });
  m.def("w8a8_linear", [](int dtype, int cells, bool in_blocks, const CodedRows& x, const CodedRows& weight, Address bias,
                          const Rows& residual, const Rows& out, int rows, int columns, int depth, const Gate& gate,
                          const W8A8Launch& launch, Address stream) {
    W8A8Args a{};
    a.dtype = Dtype(dtype), a.cells = Cells(cells), a.in_blocks = in_blocks;
    a.x = x, a.weight = weight, a.rows = rows, a.columns = columns, a.depth = depth;
    a.gated = gate.gated, a.activation = gate.kind;
    a.bias = at<void>(bias), a.residual = residual.data, a.residual_stride = residual.stride;
    a.out = out.data, a.out_stride = out.stride;
    check("w8a8_linear", w8a8_linear(a, launch, stream_at(stream)));
  });
  m.def("w8a8_row", [](int dtype, int cells, bool in_blocks, Address x, const Norm& norm, const CodedRows& weight,
                       Address bias, Address residual, Address out, int columns, int depth, const Gate& gate,
                       Address stream) {
    const W8A8RowArgs a{Dtype(dtype), Cells(cells), in_blocks, at<void>(x), norm.weight, norm.eps, norm.offset, weight,
                        columns, depth, gate.gated, gate.kind, at<void>(bias), at<void>(residual), at<void>(out)};
    return launched("w8a8_row", w8a8_row(a, stream_at(stream)));
  });
}

void define_codes(py::module_& m) {
  m.def("coded_few", [](int dtype, const Rows& x, const CodedMatrix& weight, Address bias, const Rows& residual,
                        const Rows& out, int rows, const Gate& gate, const Norm& norm, Address stream) {
    return launched("coded_few", coded_few(coded_args(dtype, x, weight, bias, residual, out, rows, gate, norm),
                                           stream_at(stream)));
  });
  m.def("coded_tiles", [](int dtype, const Rows& x, const CodedMatrix& weight, Address bias, const Rows& residual,
                          const Rows& out, int rows, const Gate& gate, const Norm& norm, const CodedTile& tile,
                          Address stream) {
    return launched("coded_tiles", coded_tiles(coded_args(dtype, x, weight, bias, residual, out, rows, gate, norm), tile,
                                               stream_at(stream)));
  });
  m.def("coded_wide", [](int dtype, const Rows& x, const CodedMatrix& weight, Address bias, const Rows& residual,
                         const Rows& out, int rows, const Gate& gate, const Norm& norm, const CodedWideTile& tile,
                         Address stream) {
    return launched("coded_wide", coded_wide(coded_args(dtype, x, weight, bias, residual, out, rows, gate, norm), tile,
                                             stream_at(stream)));
  });
  m.def("dequantise", [](int dtype, const CodedMatrix& weight, const Rows& out, Address stream) {
    aligned("codes", weight.codes), aligned("scales", weight.scales), aligned("zeros", weight.zeros);
    check("dequantise", dequantise({Dtype(dtype), weight, out.data, out.stride}, stream_at(stream)));
  });
}

}  // namespace

void octavo::define_products(py::module_& m) {
  define_linear(m);
  define_w8a8(m);
  define_codes(m);
}
