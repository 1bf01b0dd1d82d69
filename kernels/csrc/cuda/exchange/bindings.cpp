// Bindings that join several GPUs: the memory that their ranks share, sums and gathers.
#include "exchange/args.h"
#include "exchange/exchange.h"
#include "module.h"

#include <pybind11/stl.h>

namespace py = pybind11;
using namespace octavo;

namespace {

cudaError_t add(const ExchangeAddArgs& a, Way way, cudaStream_t stream) {
  return way == Way::push ? push_add(a, stream) : pull_add(a, way == Way::shared_pull, stream);
}

void define_memory(py::module_& m) {
  py::class_<Exchange>(m, "Exchange")
      .def(py::init<int, int, int, int64_t, int64_t>())
      .def("handle", [](const Exchange& exchange) { return py::bytes(exchange.handle()); })
      .def("connect", &Exchange::connect, py::call_guard<py::gil_scoped_release>())
      .def("close", &Exchange::close, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("part", [](const Exchange& exchange) { return reinterpret_cast<Address>(exchange.part()); })
      .def("blocks", &Exchange::blocks)
      .def("abort", &Exchange::abort)
      .def("lost", &Exchange::lost);
}

}  // namespace

namespace octavo {

void define_exchange(py::module_& m) {
  define_memory(m);
  m.def("exchange_add", [](const Exchange& exchange, int way, int dtype, const Rows& addend, const Rows& residual,
                           const Rows& out, const Norm& norm, const Rows& normed, int64_t rows, int columns, Address stream) {
    const size_t item = item_size(Dtype(dtype));
    aligned("addend", addend, item), aligned("residual", residual, item), aligned("out", out, item);
    aligned("norm.weight", norm.weight), aligned("normed", normed, item);
    ExchangeAddArgs a{};
    a.peers = exchange.peers(), a.dtype = Dtype(dtype);
    a.addend = addend.data, a.addend_stride = addend.stride;
    a.residual = residual.data, a.residual_stride = residual.stride, a.out = out.data, a.out_stride = out.stride;
    a.weight = norm.weight, a.eps = norm.eps, a.offset = norm.offset;
    a.normed = normed.data, a.normed_stride = normed.stride, a.rows = rows, a.columns = columns;
    check("exchange_add", add(a, Way(way), stream_at(stream)));
  });
  m.def("exchange_gather", [](const Exchange& exchange, int way, Address mine, Address out, int64_t bytes, Address stream) {
    ExchangeGatherArgs a{};
    a.peers = exchange.peers(), a.mine = at<void>(mine), a.out = at<void>(out), a.bytes = bytes;
    if (a.mine != exchange.part()) a.part = exchange.part();
    check("exchange_gather", Way(way) == Way::push ? push_gather(a, stream_at(stream)) : pull_gather(a, stream_at(stream)));
  });
}

}  // namespace octavo
