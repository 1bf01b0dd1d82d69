// Bindings of mixtures of experts; a build of the plain kernels has none.
#include "coded/fields.h"
#include "coded_experts/args.h"
#include "experts/args.h"
#include "module.h"

namespace octavo {

inline auto fields(Routing& x) {
  return std::tie(x.experts, x.chosen, x.score, x.groups, x.top_groups, x.group_best, x.normalised, x.eps, x.least, x.scale);
}
inline auto fields(RouterLogits& x) { return std::tie(x.routing, x.logits, x.correction, x.factors, x.slots); }
inline auto fields(FewChoice& x) { return std::tie(static_cast<RouterLogits&>(x), x.first); }
inline auto fields(Lists& x) { return std::tie(x.weights, x.places, x.sources, x.starts); }
inline auto fields(ExpertMatrix& x) { return std::tie(x.weight, x.stride, x.bias, x.experts, x.columns, x.depth); }
inline auto fields(SharedProduct& x) { return std::tie(x.matrix, x.rows, x.stride); }

// Operands of rows' sums beside their experts.
struct Beside {
  Rows shared;
  SharedProduct product;
  const float* gates;
  float factor;
  Rows residual;
};
inline auto fields(Beside& x) { return std::tie(x.shared, x.product, x.gates, x.factor, x.residual); }

// Matrices of codes: `operands` have no weight.
struct CodedExpertMatrix {
  ExpertMatrix operands;
  CodedExpertStrips strips;
};
inline auto fields(CodedExpertStrips& x) { return std::tie(x.matrix, x.short_scales); }
inline auto fields(CodedExpertMatrix& x) { return std::tie(x.operands, x.strips); }

// A router's matrix in float32, what is added to its product, and the shared expert's gate.
struct Router {
  const float* weight;
  int64_t stride;
  const float *bias, *gate;
};
inline auto fields(Router& x) { return std::tie(x.weight, x.stride, x.bias, x.gate); }

// Room for gates and experts of rows, and counters.
struct RouteRoom {
  float* gates;
  int32_t* ids;
  unsigned* counters;
};
inline auto fields(RouteRoom& x) { return std::tie(x.gates, x.ids, x.counters); }

inline ExpertsDownArgs down_args(int dtype, const ExpertMatrix& matrix, const Rows& x, int rows, int chosen, const Lists& lists,
                                 const FewChoice& choice, const Beside& beside, const Rows& parts, const Rows& out) {
  return {Dtype(dtype), matrix, x.data, x.stride, rows, chosen, lists, choice, beside.shared.data, beside.shared.stride,
          beside.product, beside.gates, beside.factor, beside.residual.data, beside.residual.stride, parts.data, parts.stride,
          out.data, out.stride};
}

}  // namespace octavo

namespace py = pybind11;
using namespace octavo;

void octavo::define_experts(py::module_& m) {
  m.attr("route_counters") = kCounters;
  m.attr("few_expert_rows") = kFewRows;
  m.def("route_rows", [](int dtype, const Rows& x, int rows, int width, const Norm& norm, const Rows& normed,
                         const Router& router, const RouterLogits& logits, const Lists& lists, const RouteRoom& room,
                         bool uniform, Address stream) {
    const RouteArgs a{logits, Dtype(dtype), x.data, x.stride, rows, width, norm.weight, norm.eps, norm.offset, normed.data,
                      normed.stride, router.weight, router.stride, router.bias, router.gate, lists, room.gates, room.ids,
                      room.counters, uniform};
    check("route_rows", route_rows(a, stream_at(stream)));
  });
  m.def("list_rows", [](int rows, const RouterLogits& logits, const Lists& lists, Address ids, Address stream) {
    RouteArgs a{};
    static_cast<RouterLogits&>(a) = logits;
    a.rows = rows, a.lists = lists, a.ids = at<int32_t>(ids);
    check("list_rows", list_rows(a, stream_at(stream)));
  });
  m.def("experts_up", [](int dtype, const ExpertMatrix& matrix, const Rows& x, int rows, int chosen, const Lists& lists,
                         const FewChoice& choice, int activation, float clamped, const Rows& out, const SharedProduct& shared,
                         Address stream) {
    const ExpertsUpArgs a{Dtype(dtype), matrix, x.data, x.stride, rows, chosen, lists.sources, lists.starts, choice,
                          activation, clamped, out.data, out.stride, shared};
    check("experts_up", a.starts ? experts_up_many(a, stream_at(stream)) : experts_up_few(a, stream_at(stream)));
  });
  m.def("experts_down", [](int dtype, const ExpertMatrix& matrix, const Rows& x, int rows, int chosen, const Lists& lists,
                           const FewChoice& choice, const Beside& beside, const Rows& parts, const Rows& out, Address stream) {
    const ExpertsDownArgs a = down_args(dtype, matrix, x, rows, chosen, lists, choice, beside, parts, out);
    if (!a.parts) return check("experts_down", experts_down_few(a, stream_at(stream)));
    check("experts_down", experts_down_many(a, stream_at(stream)));
    check("experts_down", experts_sum(a, stream_at(stream)));
  });
  m.def("coded_experts_up", [](int dtype, const CodedExpertMatrix& matrix, const Rows& x, int rows, int chosen, const Lists& lists,
                               const FewChoice& choice, int activation, float clamped, const Rows& out,
                               const SharedProduct& shared, Address stream) {
    const ExpertsUpArgs operands{Dtype(dtype), matrix.operands, x.data, x.stride, rows, chosen, lists.sources,
                                 lists.starts, choice, activation, clamped, out.data, out.stride, shared};
    const CodedExpertsUpArgs a{operands, matrix.strips};
    check("coded_experts_up", a.starts ? coded_experts_up_many(a, stream_at(stream)) : coded_experts_up_few(a, stream_at(stream)));
  });
  m.def("coded_experts_down", [](int dtype, const CodedExpertMatrix& matrix, const Rows& x, int rows, int chosen,
                                 const Lists& lists, const FewChoice& choice, const Beside& beside, const Rows& parts,
                                 const Rows& out, Address stream) {
    const CodedExpertsDownArgs a{down_args(dtype, matrix.operands, x, rows, chosen, lists, choice, beside, parts, out),
                                 matrix.strips};
    if (!a.parts) return check("coded_experts_down", coded_experts_down_few(a, stream_at(stream)));
    check("coded_experts_down", coded_experts_down_many(a, stream_at(stream)));
    check("coded_experts_down", experts_sum(a, stream_at(stream)));
  });
}
