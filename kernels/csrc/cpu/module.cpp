// `octavo_kernels._cpu`. octavo_kernels has checked everything that comes here.
#include "../bindings.h"

#include <pybind11/stl.h>

#include "../layouts.h"
#include "exponential.h"
#include "launch.h"
#include "levels.h"
#include "recurrent_bindings.h"
#include "shared_count.h"
#include "thread_pool.h"

namespace py = pybind11;
using namespace octavo;

namespace octavo {

// As octavo_kernels/products/quantised_cpu.py describes one.
struct PackedWeight {
  WeightCodes codes;
  int integers;
  int64_t columns, x_depth, depth, group, groups, x_group, x_groups;
  const uint8_t* panels;
  const float* scales;
  const uint8_t* zeros;
  const int32_t* order;
};
inline auto fields(PackedWeight& w) {
  return std::tie(w.codes, w.integers, w.columns, w.x_depth, w.depth, w.group, w.groups, w.x_group, w.x_groups, w.panels,
                  w.scales, w.zeros, w.order);
}

// As octavo_kernels/experts/route.py describes one.
struct Routing {
  int experts, chosen, score, groups, top_groups, group_best, normalised;
  float eps, least, scale;
};
inline auto fields(Routing& r) {
  return std::tie(r.experts, r.chosen, r.score, r.groups, r.top_groups, r.group_best, r.normalised, r.eps, r.least, r.scale);
}

}  // namespace octavo

namespace {

void write_kv(int dtype, const Rows& k, const Rows& v, int64_t tokens, int kv_heads, int head_dim, const Cache& cache,
              Address slots) {
  launch_write(plain_write(Dtype(dtype), k, v, tokens, kv_heads, head_dim, cache, at<int64_t>(slots)));
}

void rope_write_kv(int dtype, const Rows& qkv, const Rows& q_out, int64_t tokens, const Heads& heads, const Cache& cache,
                   Address slots, const Rotation& rotation, const HeadNorms& norms) {
  launch_write(rope_write(Dtype(dtype), qkv, q_out, tokens, heads, cache, at<int64_t>(slots), rotation, norms));
}

// Keys alone are written, and their last values rotated.
void rope_write_latent(int dtype, const Rows& rows, const Rows& q_out, int64_t tokens, const Heads& heads,
                       const Cache& cache, Address slots, const Rotation& rotation) {
  launch_write(rope_write(Dtype(dtype), rows, q_out, tokens, heads, cache, at<int64_t>(slots), rotation, HeadNorms{}));
}

void latent_attention(int dtype, const Rows& q, const Rows& out, const Heads& heads, int value_dim, const Cache& cache,
                      const Rows& tables, const Scoring& scoring, Address context_lens, Address query_start,
                      int sequences) {
  auto a = attention_of<AttentionArgs>(Dtype(dtype), q, out, heads, cache, tables, scoring);
  a.value_dim = value_dim;
  a.context_lens = at<int32_t>(context_lens), a.query_start = at<int32_t>(query_start), a.sequences = sequences;
  launch_attention(a);
}

void paged_attention(int dtype, const Rows& q, const Rows& out, const Heads& heads, const Cache& cache, const Rows& tables,
                     const Scoring& scoring, Address context_lens, Address query_start, int sequences) {
  auto a = attention_of<AttentionArgs>(Dtype(dtype), q, out, heads, cache, tables, scoring);
  a.value_dim = a.head_dim;
  a.context_lens = at<int32_t>(context_lens), a.query_start = at<int32_t>(query_start), a.sequences = sequences;
  launch_attention(a);
}

LinearArgs linear_of(int dtype, const Rows& x, const Rows& weight, Address bias, const Rows& out, int64_t rows, int64_t columns,
                     int64_t depth) {
  LinearArgs a{};
  a.dtype = Dtype(dtype);
  a.x = x.data, a.x_stride = x.stride, a.weight = weight.data, a.weight_stride = weight.stride;
  a.bias = at<void>(bias), a.out = out.data, a.out_stride = out.stride;
  a.rows = rows, a.columns = columns, a.depth = depth;
  return a;
}

void linear(int dtype, const Rows& x, const Rows& weight, Address bias, const Rows& residual, float factor, const Rows& out,
            int64_t rows, int64_t columns, int64_t depth) {
  LinearArgs a = linear_of(dtype, x, weight, bias, out, rows, columns, depth);
  a.residual = residual.data, a.residual_stride = residual.stride, a.factor = factor;
  launch_linear(a);
}

void grouped_linear(int dtype, const Rows& x, const Rows& weight, Address bias, const Rows& out, int64_t rows,
                    int64_t columns, int64_t depth, Address starts, int experts) {
  launch_grouped_linear(linear_of(dtype, x, weight, bias, out, rows, columns, depth), at<int32_t>(starts), experts);
}

QuantisedArgs quantised_of(int dtype, const Rows& x, const PackedWeight& weight, Address bias, const Rows& residual,
                      const Rows& out, int64_t rows) {
  QuantisedArgs a{};
  a.dtype = Dtype(dtype), a.codes = weight.codes, a.integers = weight.integers;
  a.x = x.data, a.x_stride = x.stride, a.x_depth = weight.x_depth, a.order = weight.order;
  a.weight = weight.panels, a.scales = weight.scales, a.zeros = weight.zeros;
  a.group = weight.group, a.groups = weight.groups;
  a.x_group = weight.x_group, a.x_groups = weight.x_groups;
  a.bias = at<void>(bias), a.residual = residual.data, a.residual_stride = residual.stride;
  a.out = out.data, a.out_stride = out.stride;
  a.rows = rows, a.columns = weight.columns, a.depth = weight.depth;
  return a;
}

void quantised_linear(int dtype, const Rows& x, const PackedWeight& weight, Address bias, const Rows& residual,
                      const Rows& out, int64_t rows) {
  launch_quantised(quantised_of(dtype, x, weight, bias, residual, out, rows));
}

// `weight` has the columns of one expert, and panels of all.
void grouped_quantised(int dtype, const Rows& x, const PackedWeight& weight, Address bias, const Rows& out, int64_t rows,
                       Address starts, int experts) {
  launch_grouped_quantised(quantised_of(dtype, x, weight, bias, {}, out, rows), at<int32_t>(starts), experts);
}

void route(const Rows& logits, int64_t rows, const Routing& how, Address correction, Address weights, Address places,
           Address sources, Address starts) {
  launch_route({static_cast<float*>(logits.data), logits.stride, rows, how.experts, how.chosen, Score(how.score),
                at<float>(correction), how.groups, how.top_groups, how.group_best, how.normalised != 0, how.eps, how.least,
                how.scale, at<float>(weights), at<int32_t>(places), at<int32_t>(sources), at<int32_t>(starts)});
}

void combine(int dtype, const Rows& parts, Address places, Address weights, int chosen, const Rows& shared, Address gates,
             const Rows& residual, float factor, const Rows& out, int64_t rows, int64_t width) {
  launch_combine({Dtype(dtype), parts.data, parts.stride, at<int32_t>(places), at<float>(weights), chosen, shared.data,
                  shared.stride, at<float>(gates), residual.data, residual.stride, factor, out.data, out.stride, rows,
                  width});
}

void sigmoids(Address values, int64_t n) {
  float* x = at<float>(values);
  for (int64_t i = 0; i < n; ++i) x[i] = sigmoid(x[i]);
}

void rms_norm(int dtype, const Rows& x, const Rows& residual, Address weight, const Rows& out, int64_t rows, int width,
              float eps, float offset) {
  launch_rms_norm(norm_of(Dtype(dtype), x, residual, at<void>(weight), nullptr, out, rows, width, eps, offset));
}

void layer_norm(int dtype, const Rows& x, const Rows& residual, Address weight, Address bias, const Rows& out, int64_t rows,
                int width, float eps) {
  launch_layer_norm(norm_of(Dtype(dtype), x, residual, at<void>(weight), at<void>(bias), out, rows, width, eps, 0));
}

void activation(int dtype, int kind, bool gated, const Rows& x, const Rows& out, int64_t rows, int width) {
  launch_activation({Dtype(dtype), Activation(kind), gated, x.data, x.stride, out.data, out.stride, rows, width});
}

void sample(const Rows& logits, int64_t rows, int64_t vocab, Address samples, Address tokens) {
  launch_sample({static_cast<float*>(logits.data), logits.stride, rows, vocab, at<StepSample>(samples), at<int64_t>(tokens),
                 0, nullptr, nullptr});
}

void sample_part(const Rows& logits, int64_t rows, int64_t vocab, Address samples, int64_t first, Address floors,
                 Address tokens, Address reached) {
  launch_sample({static_cast<float*>(logits.data), logits.stride, rows, vocab, at<StepSample>(samples), at<int64_t>(tokens),
                 first, at<float>(floors), at<float>(reached)});
}

void masses(const Rows& scaled, int64_t rows, int64_t columns, Address tops, Address out) {
  launch_masses({static_cast<float*>(scaled.data), scaled.stride, rows, columns, at<float>(tops), at<int64_t>(out)});
}

void sum_parts(int dtype, Address parts, int64_t part_bytes, int ranks, const Rows& residual, const Rows& out, int64_t rows,
               int64_t width) {
  launch_sum({Dtype(dtype), at<char>(parts), part_bytes, ranks, residual.data, residual.stride, out.data, out.stride, rows,
              width});
}

void adjust(const Rows& logits, int64_t rows, int64_t vocab, Address message, Address latest, const Rows& allowed) {
  launch_adjust({static_cast<float*>(logits.data), logits.stride, rows, vocab, at<AdjustRow>(message), at<int64_t>(latest),
                 static_cast<int32_t*>(allowed.data), allowed.stride});
}

void logprobs(const Rows& logits, int64_t rows, int64_t vocab, Address tokens, int top, Address chosen, Address top_ids,
              Address top_values) {
  launch_logprobs({static_cast<float*>(logits.data), logits.stride, rows, vocab, at<int64_t>(tokens), top, at<float>(chosen),
                   at<int64_t>(top_ids), at<float>(top_values)});
}

void copy_blocks(Address cache, int64_t block_bytes, Address pairs, int64_t n) {
  launch_copy(at<char>(cache), block_bytes, at<int64_t>(pairs), n);
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  const auto free = py::call_guard<py::gil_scoped_release>();
  m.def("write_kv", &write_kv, free);
  m.def("rope_write_kv", &rope_write_kv, free);
  m.def("paged_attention", &paged_attention, free);
  m.def("rope_write_latent", &rope_write_latent, free);
  m.def("latent_attention", &latent_attention, free);
  m.def("linear", &linear, free);
  m.def("quantised_linear", &quantised_linear, free);
  m.def("grouped_linear", &grouped_linear, free);
  m.def("grouped_quantised", &grouped_quantised, free);
  m.def("route", &route, free);
  m.def("combine", &combine, free);
  m.def("sigmoids", &sigmoids, free);
  add_recurrent(m);
  m.def("rms_norm", &rms_norm, free);
  m.def("layer_norm", &layer_norm, free);
  m.def("activation", &activation, free);
  m.def("sample", &sample, free);
  m.def("sample_part", &sample_part, free);
  m.def("masses", &masses, free);
  m.def("sum_parts", &sum_parts, free);
  m.def("post_count", [](Address count, uint32_t value) { post(at<SharedCount>(count), value); }, free);
  m.def("read_count", [](Address count) { return read(at<SharedCount>(count)); });
  m.def("await_count", [](Address count, uint32_t value, int64_t spin_us, int64_t yield_us, int64_t sleep_ms) {
    return await(at<SharedCount>(count), value, spin_us, yield_us, sleep_ms);
  }, free);
  m.def("adjust", &adjust, free);
  m.def("logprobs", &logprobs, free);
  m.def("copy_blocks", &copy_blocks, free);
  m.def("levels", &levels, "Instruction-set levels that this machine runs, the best last.");
  m.def("level", &level, "The level in use.");
  m.def("set_level", &set_level, "Use another level (ValueError when this machine lacks it).");
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, free);
  m.attr("max_head_dim") = kMaxHeadDim;
  m.attr("max_latent_dim") = kMaxLatentDim;
  add_layouts(m);
  level();  // A wrong OCTAVO_CPU_LEVEL fails the import, not the first operation.
}
