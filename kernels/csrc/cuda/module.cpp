// `octavo_kernels._cuda`: the operations of `_cpu`, plus a stream. octavo_kernels has checked what comes here.
#include "module.h"

#include <pybind11/numpy.h>

#include <algorithm>

#include "attention/plan.h"
#include "cache/args.h"
#include "device/step.h"
#include "latent/args.h"
#include "sampling/args.h"
#if !OCTAVO_HIP
#include "cache/mapped_pool.h"
#endif

namespace octavo {

// A plan as a layer sees it: how many sequences the last update had, and which of its kernels are launched.
struct PlanUse {
  int sequences;
  bool groups, decodes, extends;
  bool history_ready;  // see AttentionArgs
};
inline auto fields(PlanUse& x) { return std::tie(x.sequences, x.groups, x.decodes, x.extends, x.history_ready); }

// Rows, or their norm.
struct Addend {
  Rows rows;
  Norm norm;
};
inline auto fields(Addend& x) { return std::tie(x.rows, x.norm); }

// Heads of rows, and the elements from one row or head to the next.
struct HeadRows {
  void* data;
  int64_t stride, head_stride;
};
inline auto fields(HeadRows& x) { return std::tie(x.data, x.stride, x.head_stride); }

// Where a step's inputs are unpacked to.
struct StepPlaces {
  int64_t *token_ids, *positions, *slots;
  int32_t *block_tables, *context_lens, *query_start, *groups, *prefix_lens, *row_context;
  int64_t* sample_rows;
  StepSample* samples;
};
inline auto fields(StepPlaces& x) {
  return std::tie(x.token_ids, x.positions, x.slots, x.block_tables, x.context_lens, x.query_start, x.groups, x.prefix_lens,
                  x.row_context, x.sample_rows, x.samples);
}
inline auto fields(StepMoves& x) { return std::tie(x.read, x.write, x.keep_start, x.keep_after, x.keep_slot); }
inline auto fields(StepWindows& x) { return std::tie(x.tables, x.block_tables, x.slots); }

}  // namespace octavo

namespace py = pybind11;
using namespace octavo;

namespace {

// Each kernel says by cudaErrorInvalidValue what it does not take, and launches nothing then.
cudaError_t write(const WriteArgs& a, cudaStream_t stream) {
  const cudaError_t error = write_cache(a, stream);
  return error == cudaErrorInvalidValue ? simt_write(a, stream) : error;
}

cudaError_t attend(const AttentionArgs& a, cudaStream_t stream) {
  cudaError_t error = a.prefix ? prefix_attention(a, stream) : cudaSuccess;
  if (a.decodes && error == cudaSuccess) {
    error = decode_attention(a, stream);
    if (error == cudaErrorInvalidValue) error = simt_attention(a, true, false, stream);
  }
  if (a.extends && error == cudaSuccess) {
    error = extend_attention(a, stream);
    if (error == cudaErrorInvalidValue) error = simt_attention(a, false, true, stream);
  }
  return error;
}

WriteArgs rope_write_args(int dtype, const Rows& qkv, const Rows& q_out, int64_t tokens, const Heads& heads,
                          const Cache& cache, Address slots, const Rotation& rotation, const HeadNorms& norms) {
  const size_t item = item_size(Dtype(dtype));
  aligned("qkv", qkv, item), aligned("q_out", q_out, item), aligned("layer_cache", cache.data);
  return rope_write(Dtype(dtype), qkv, q_out, tokens, heads, cache, at<int64_t>(slots), rotation, norms);
}

AttentionArgs attention_args(int dtype, const Rows& q, const Rows& out, const Heads& heads, const Cache& cache,
                             const Rows& tables, const Scoring& scoring, const AttentionPlan* plan, const PlanUse& use) {
  const size_t item = item_size(Dtype(dtype));
  aligned("q", q, item), aligned("out", out, item), aligned("layer_cache", cache.data);
  auto a = attention_of<AttentionArgs>(Dtype(dtype), q, out, heads, cache, tables, scoring);
  a.value_dim = heads.dim;
  plan->fill(a);
  a.sequences = use.sequences, a.decodes = use.decodes, a.extends = use.extends, a.history_ready = use.history_ready;
  if (!use.groups) a.prefix = nullptr;
  return a;
}

// `q_head`: elements from the rotated columns of one head to the next's. The width of a head is that of the row that is kept.
LatentRowsArgs latent_rows_args(int dtype, const Rows& q, int64_t q_head, const Rows& kept, const HeadNorms& norms,
                                const Rows& q_out, int64_t tokens, const Heads& heads, const Cache& cache, Address slots,
                                const Rotation& rotation) {
  LatentRowsArgs a{};
  a.dtype = Dtype(dtype), a.q = q.data, a.q_stride = q.stride, a.q_head_stride = q_head;
  a.kept = kept.data, a.kept_stride = kept.stride, a.norm = norms.k, a.eps = norms.eps, a.norm_offset = norms.offset;
  a.q_out = q_out.data, a.q_out_stride = q_out.stride;
  a.tokens = tokens, a.heads = heads.query, a.rank = heads.dim - rotation.dim, a.rotated = rotation.dim;
  a.cache = cache, a.slots = at<int64_t>(slots), a.positions = rotation.positions;
  a.cos_sin = rotation.cos_sin, a.cos_sin_stride = rotation.stride;
  return a;
}

#if !OCTAVO_HIP
ByHeadArgs by_head_args(int dtype, const HeadRows& x, Address weight, const HeadRows& out, int64_t rows, int heads, int columns,
                        int depth) {
  return {Dtype(dtype), x.data, at<void>(weight), out.data, x.stride, x.head_stride, out.stride, out.head_stride, rows, heads,
          columns, depth};
}
#endif

LatentReadArgs latent_read_args(int dtype, const Rows& out, int width, int rank, const Cache& cache, Address blocks,
                                int64_t count) {
  aligned("out", out, item_size(Dtype(dtype))), aligned("layer_cache", cache.data);
  return {Dtype(dtype), out.data, out.stride, rank, width - rank, cache, at<int32_t>(blocks), count};
}

// `values` of a head: the first elements of its keys.
AttentionArgs latent_args(int dtype, const Rows& q, const Rows& out, const Heads& heads, int values, const Cache& cache,
                          const Rows& tables, const Scoring& scoring, const AttentionPlan* plan, const PlanUse& use) {
  AttentionArgs a = attention_args(dtype, q, out, heads, cache, tables, scoring, plan, use);
  a.value_dim = values;
  return a;
}

cudaError_t attend_latent(const AttentionArgs& a, cudaStream_t stream) {
  return simt_attention(a, a.decodes, a.extends, stream);
}

NormArgs norm_args(int dtype, const Rows& x, const Rows& residual, Address weight, Address bias, const Rows& out,
                   int64_t rows, int width, float eps, float offset) {
  const size_t item = item_size(Dtype(dtype));
  aligned("x", x, item), aligned("out", out, item), aligned("residual", residual, item);
  aligned("weight", at<void>(weight)), aligned("bias", at<void>(bias));
  return norm_of(Dtype(dtype), x, residual, at<void>(weight), at<void>(bias), out, rows, width, eps, offset);
}

// A launch as Python calls it: what `arguments` takes, then the stream.
template <class Args, class... Parameters>
auto launching(const char* operation, Args (*arguments)(Parameters...), cudaError_t (*launch)(const Args&, cudaStream_t)) {
  return [=](Parameters... parameters, Address stream) {
    check(operation, launch(arguments(parameters...), stream_at(stream)));
  };
}

// The same arguments as one Python tuple.
template <class Result, class... Parameters>
Result from_tuple(Result (*function)(Parameters...), const py::tuple& arguments) {
  return std::apply(function, arguments.cast<std::tuple<std::decay_t<Parameters>...>>());
}

void define_attention(py::module_& m) {
  m.def("write_kv", [](int dtype, const Rows& k, const Rows& v, int64_t tokens, int kv_heads, int head_dim,
                       const Cache& cache, Address slots, Address stream) {
    const size_t item = item_size(Dtype(dtype));
    aligned("k", k, item), aligned("v", v, item), aligned("layer_cache", cache.data);
    check("write_kv", write(plain_write(Dtype(dtype), k, v, tokens, kv_heads, head_dim, cache, at<int64_t>(slots)),
                            stream_at(stream)));
  });
  m.def("rope_write_kv", launching("rope_write_kv", rope_write_args, write));
  m.def("plan_attention", [](const AttentionPlan& plan, Address context_lens, Address query_start, int sequences,
                             Address groups, Address prefix_lens, bool decodes, bool prompts, Address stream) {
    PlanArgs a = plan.args();
    a.context_lens = at<int32_t>(context_lens), a.query_start = at<int32_t>(query_start), a.sequences = sequences;
    a.groups = at<int32_t>(groups), a.prefix_lens = at<int32_t>(prefix_lens);
    if (!decodes) a.decode_capacity = 0;
    if (!prompts) a.extend_capacity = 0, a.prefix = nullptr;
    check("plan_attention", plan_attention(a, stream_at(stream)));
  });
  m.def("paged_attention", launching("paged_attention", attention_args, attend));
  m.def("latent_rows", launching("latent_rows", latent_rows_args, latent_rows));
  m.def("latent_read", launching("latent_read", latent_read_args, latent_read));
  m.def("latent_attention", launching("latent_attention", latent_args, attend_latent));
#if !OCTAVO_HIP
  m.def("by_head", launching("by_head", by_head_args, by_head));
  m.def("latent_queries", [](const py::tuple& rows, const py::tuple& queries, Address stream) {
    check("latent_queries", latent_queries(from_tuple(latent_rows_args, rows), from_tuple(by_head_args, queries),
                                           stream_at(stream)));
  });
  m.def("decode_step", [](const py::tuple& write, const py::tuple& attention, Address stream) {
    DecodeStepArgs a{from_tuple(rope_write_args, write), from_tuple(attention_args, attention), nullptr};
    a.arrivals = attention[7].cast<const AttentionPlan*>()->arrivals();
    return launched("decode_step", decode_step(a, stream_at(stream)));
  });
#endif
  m.def("copy_blocks", [](Address cache, int64_t block_bytes, Address pairs, int64_t count, Address stream) {
    check("copy_blocks", copy_blocks(at<void>(cache), block_bytes, at<int64_t>(pairs), count, stream_at(stream)));
  });
  m.def(
      "swap_blocks",
      [](Address source, Address target, int64_t block_bytes, Address pairs, int64_t count, Address stream) {
        check("swap_blocks", swap_blocks(at<void>(source), at<void>(target), block_bytes, at<int64_t>(pairs), count,
                                         stream_at(stream)));
      },
      py::call_guard<py::gil_scoped_release>());
}

void define_layers(py::module_& m) {
  m.def("rms_norm", [](int dtype, const Rows& x, const Rows& residual, Address weight, const Rows& out, int64_t rows,
                       int width, float eps, float offset, Address stream) {
    check("rms_norm", rms_norm(norm_args(dtype, x, residual, weight, 0, out, rows, width, eps, offset), stream_at(stream)));
  });
  m.def("layer_norm", [](int dtype, const Rows& x, const Rows& residual, Address weight, Address bias, const Rows& out,
                         int64_t rows, int width, float eps, Address stream) {
    check("layer_norm",
          layer_norm(norm_args(dtype, x, residual, weight, bias, out, rows, width, eps, 0.0f), stream_at(stream)));
  });
  m.def("norm_heads", [](int dtype, const Rows& x, Address weight, const Rows& out, int64_t rows, int heads, int width,
                         float eps, float offset, Address stream) {
    check("norm_heads", norm_heads(norm_args(dtype, x, {}, weight, 0, out, rows * heads, width, eps, offset), heads,
                                   stream_at(stream)));
  });
  m.def("head_gate", [](int dtype, bool softplus, const Rows& x, const Rows& logits, bool by_head, int64_t rows, int heads,
                        int head_dim, Address stream) {
    const size_t item = item_size(Dtype(dtype));
    aligned("x", x, item);
    if (!by_head) aligned("logits", logits, item);
    check("head_gate", head_gate({Dtype(dtype), softplus, by_head, x.data, x.stride, logits.data, logits.stride, rows, heads,
                                  head_dim}, stream_at(stream)));
  });
  m.def("add_norms", [](int dtype, const Addend& first, const Addend& second, const Norm& post, float factor, Address scalar,
                        const Rows& hidden, const Norm& norm, const Rows& out, int64_t rows, int width, Address stream) {
    const size_t item = item_size(Dtype(dtype));
    for (const Rows& each : {first.rows, second.rows, hidden, out}) aligned("rows", each, item);
    for (const Norm& each : {first.norm, second.norm, post, norm}) aligned("weight", each.weight);
    check("add_norms",
          add_norms({Dtype(dtype), {first.rows.data, second.rows.data}, {first.rows.stride, second.rows.stride},
                     {first.norm, second.norm}, post, norm, factor, at<void>(scalar), hidden.data, out.data, hidden.stride,
                     out.stride, rows, width}, stream_at(stream)));
  });
  m.def("activation", [](int dtype, int kind, bool gated, const Rows& x, const Rows& out, int64_t rows, int width,
                         Address stream) {
    aligned("x", x, item_size(Dtype(dtype))), aligned("out", out, item_size(Dtype(dtype)));
    check("activation",
          activation({Dtype(dtype), Activation(kind), gated, x.data, x.stride, out.data, out.stride, rows, width},
                     stream_at(stream)));
  });
}

void define_sampling(py::module_& m) {
  m.def("sample", [](int dtype, const Rows& logits, int64_t rows, int vocab, Address samples, Address tokens, Address stream) {
    const SampleArgs a{Dtype(dtype), logits.data, logits.stride, rows, vocab, at<StepSample>(samples), at<int64_t>(tokens)};
    check("sample", sample(a, stream_at(stream)));
  });
  m.def("sample_part", [](int dtype, const Rows& logits, int64_t rows, int columns, Address samples, int first, Address reached,
                          Address stream) {
    check("sample_part", sample({Dtype(dtype), logits.data, logits.stride, rows, columns, at<StepSample>(samples), nullptr, first,
                                 at<uint64_t>(reached)}, stream_at(stream)));
  });
  m.def("best_part", [](Address reached, int64_t parts, int64_t rows, Address tokens, Address stream) {
    check("best_part", best_part({at<uint64_t>(reached), parts, rows, at<int64_t>(tokens)}, stream_at(stream)));
  });
  m.def("adjust", [](const Rows& logits, int64_t rows, int vocab, Address message, Address latest, const Rows& allowed,
                     Address stream) {
    const AdjustArgs a{static_cast<float*>(logits.data), logits.stride, rows, vocab, at<int32_t>(message),
                       at<int64_t>(latest), static_cast<int32_t*>(allowed.data), allowed.stride};
    check("adjust", adjust(a, stream_at(stream)));
  });
  m.def("logprobs", [](int dtype, const Rows& logits, int64_t rows, int vocab, Address tokens, int top, Address chosen,
                       Address top_ids, Address top_values, Address stream) {
    const LogprobArgs a{Dtype(dtype), logits.data, logits.stride, rows, vocab, at<int64_t>(tokens), top, at<float>(chosen),
                        at<int64_t>(top_ids), at<float>(top_values)};
    check("logprobs", logprobs(a, stream_at(stream)));
  });
  m.def("unpack_step", [](Address message, const Rows& tables, Address previous, int sequences, int block_size,
                          const StepPlaces& to, const StepMoves& moves, const StepWindows& windows, Address stream) {
    StepArgs a{};
    a.message = at<int32_t>(message), a.previous = at<int64_t>(previous);
    a.tables = static_cast<int32_t*>(tables.data), a.table_stride = tables.stride;
    a.sequences = sequences, a.block_size = block_size;
    a.token_ids = to.token_ids, a.positions = to.positions, a.slots = to.slots, a.block_tables = to.block_tables;
    a.context_lens = to.context_lens, a.query_start = to.query_start, a.groups = to.groups, a.prefix_lens = to.prefix_lens;
    a.row_context = to.row_context;
    a.sample_rows = to.sample_rows, a.samples = to.samples, a.moves = moves, a.windows = windows;
    check("unpack_step", unpack_step(a, stream_at(stream)));
  });
  m.def("carry", [](Address from, Address to, int64_t words, Address stream) {
    check("carry", carry(at<int32_t>(from), at<int32_t>(to), words, stream_at(stream)));
  });
}

using Counts = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

#if defined(__HIP_PLATFORM_AMD__)
constexpr const char* kBuiltFor = "AMD";
#else
constexpr const char* kBuiltFor = "NVIDIA";
#endif
#if OCTAVO_HIP
constexpr bool kTensorCores = false;
#else
constexpr bool kTensorCores = true;
#endif

// The host's facts about the kernels: nothing is launched.
void define_host(py::module_& m) {
  m.attr("built_for") = kBuiltFor;
  m.attr("tensor_cores") = kTensorCores;
  m.attr("chunk_tokens") = kChunk;
  m.attr("header_words") = sizeof(PlanHeader) / 4;
  m.def("split_queries", [](int group) { return kSplitRows / group; });
  m.def("part_queries", [](int group) { return std::max(1, kDecodeRows / group); });
  m.def("few_queries", [](int group, bool windowed) {
    return group > kDecodeRows ? 0 : (windowed ? kDecodeRows : kFewRows) / group;
  });
  m.def("chunk_count", [](const Counts& contexts, const Counts& queries, int group) {
    return chunk_count(contexts.data(), queries.data(), contexts.size(), group);
  });
  m.def("only_prompts", [](const Counts& contexts, const Counts& queries, int group) {
    return only_prompts(contexts.data(), queries.data(), contexts.size(), group);
  });
  m.def("chip", [] {
    int device, major, multiprocessors, shared_per_block;
    check("chip", cudaGetDevice(&device));
#if OCTAVO_HIP
    major = 0;  // as `describe` says
#else
    check("chip", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
#endif
    check("chip", cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    check("chip", cudaDeviceGetAttribute(&shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
#if OCTAVO_HOPPER
    const bool hopper = major == 9;
#else
    const bool hopper = false;
#endif
    return std::make_tuple(major, multiprocessors, shared_per_block, hopper);
  }, "Of the current device: compute capability, multiprocessors, shared memory of a block, whether it runs code for 90a.");
  py::class_<AttentionPlan>(m, "AttentionPlan")
      .def(py::init([](int sequences, int tokens, int chunks, int heads, int kv_heads, int head_dim, int max_queries,
                       int window, bool shared_prefixes, bool uniform, int few_rows) {
             return AttentionPlan({sequences, tokens, chunks, heads, kv_heads, head_dim, max_queries, window, shared_prefixes,
                                   uniform, few_rows});
           }),
           py::kw_only(), py::arg("sequences"), py::arg("tokens"), py::arg("chunks"), py::arg("heads"), py::arg("kv_heads"),
           py::arg("head_dim"), py::arg("max_queries"), py::arg("window"), py::arg("shared_prefixes"), py::arg("uniform"),
           py::arg("few_rows"))
      .def_readonly("group", &AttentionPlan::group)
      .def_readonly("decodes", &AttentionPlan::decodes)
      .def_readonly("extends", &AttentionPlan::extends)
      .def_readonly("groups", &AttentionPlan::groups)
      .def_readonly("rows", &AttentionPlan::rows)
      .def_readonly("spared", &AttentionPlan::spared)
      .def_property_readonly("list_bytes", &AttentionPlan::list_bytes)
      .def_property_readonly("partial_bytes", &AttentionPlan::partial_bytes)
      .def("place", [](AttentionPlan& plan, Address lists, Address partial) { plan.place(at<void>(lists), at<void>(partial)); });
#if !OCTAVO_HIP
  py::class_<MappedPool>(m, "MappedPool")
      .def(py::init<int, std::size_t, std::size_t>())
      .def_property_readonly("address", &MappedPool::address)
      .def_static("granularity", &MappedPool::granularity);
#endif
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  define_attention(m);
  define_layers(m);
#if !OCTAVO_HIP
  define_products(m);
#if OCTAVO_HOPPER
  define_experts(m);
  define_recurrent(m);
  define_wide(m);
#endif
  define_exchange(m);
#endif
  define_sampling(m);
  define_host(m);
}
