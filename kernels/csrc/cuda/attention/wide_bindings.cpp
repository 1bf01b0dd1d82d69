// Bindings of attention of wide heads; only a build for Hopper has them.
#include "attention/wide.h"
#include "module.h"

namespace octavo {

// The lists of a plan, and the memory of its layers' partial results, which lie behind each other.
struct WideLists {
  int sequences, blocks;
  const int32_t *context_lens, *query_start;
  WideStart* starts;  // the folds behind them
  float* partial;     // the sums behind them
};
inline auto fields(WideLists& x) {
  return std::tie(x.sequences, x.blocks, x.context_lens, x.query_start, x.starts, x.partial);
}

}  // namespace octavo

namespace py = pybind11;
using namespace octavo;

namespace {

WideFold* folds_of(const WideLists& lists) { return reinterpret_cast<WideFold*>(lists.starts + lists.blocks + 1); }

WidePlanArgs plan_args(const WideLists& lists, int group, int kv_heads, bool cuts) {
  return {lists.context_lens, lists.query_start, lists.sequences, group, kv_heads, lists.blocks, cuts, lists.starts,
          folds_of(lists)};
}

WideArgs attention_args(int dtype, const Rows& q, const Rows& out, const Heads& heads, bool latent, const Cache& cache,
                        const Rows& tables, const Scoring& scoring, const WideLists& lists) {
  const size_t item = item_size(Dtype(dtype));
  aligned("q", q, item), aligned("out", out, item), aligned("layer_cache", cache.data);
  auto a = attention_of<WideArgs>(Dtype(dtype), q, out, heads, cache, tables, scoring);
  a.sequences = lists.sequences, a.latent = latent, a.blocks = lists.blocks;
  a.context_lens = lists.context_lens, a.query_start = lists.query_start;
  a.starts = lists.starts, a.folds = folds_of(lists);
  a.partial = lists.partial, a.sums = lists.partial + int64_t(2) * lists.blocks * kWideRows * kWideValues;
  return a;
}

}  // namespace

void octavo::define_wide(py::module_& m) {
  m.def("plan_wide", [](const WideLists& lists, int group, int kv_heads, bool cuts, Address stream) {
    check("plan_wide", plan_wide(plan_args(lists, group, kv_heads, cuts), stream_at(stream)));
  });
  m.def("wide_attention", [](int dtype, const Rows& q, const Rows& out, const Heads& heads, bool latent, const Cache& cache,
                             const Rows& tables, const Scoring& scoring, const WideLists& lists, Address stream) {
    check("wide_attention",
          wide_attention(attention_args(dtype, q, out, heads, latent, cache, tables, scoring, lists), stream_at(stream)));
  });
  m.def("wide_sizes", [](int blocks) {
    return std::make_tuple(int64_t(blocks + 1) * sizeof(WideStart) + blocks * sizeof(WideFold),
                           int64_t(2) * blocks * kWideRows * (kWideValues + 2) * sizeof(float));
  }, "Bytes of a plan's lists, and of the partial results of its layers.");
  m.attr("wide_latent") = kWideLatent;
  m.attr("wide_values") = kWideValues;
}
