// `octavo_kernels._cuda`: the operations of `_cpu`, plus a stream. octavo_kernels has checked what comes here.
#include "bindings.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention/plan.h"
#include "cache/args.h"
#include "cache/mapped_pool.h"
#include "coded/args.h"
#include "device/step.h"
#include "linear/args.h"
#include "w8a8/w8a8.h"
#include "sampling/args.h"

namespace octavo {

// What a layer asks of a plan: how many sequences the last update had, and which of its kernels are launched.
struct PlanUse {
  int sequences;
  bool groups, decodes, extends;
  bool history_ready;  // see AttentionArgs
};
inline auto fields(PlanUse& x) { return std::tie(x.sequences, x.groups, x.decodes, x.extends, x.history_ready); }
inline auto fields(LinearTile& x) { return std::tie(x.consumers, x.columns, x.tall); }
inline auto fields(LinearLaunch& x) { return std::tie(x.kernel, x.tile, x.cluster); }

inline auto fields(CodedRows& x) { return std::tie(x.codes, x.stride, x.scales, x.scales_stride); }
inline auto fields(W8A8Launch& x) { return std::tie(x.kernel, x.consumers, x.tokens, x.height); }
inline auto fields(CodedMatrix& x) {
  return std::tie(x.kind, x.group, x.codes, x.scales, x.zeros, x.columns, x.depth);
}
inline auto fields(CodedTile& x) { return std::tie(x.tokens, x.cluster); }
inline auto fields(CodedWideTile& x) { return std::tie(x.consumers, x.tokens, x.cluster); }

// What a gated product ends in; a norm of x that it begins with.
struct Gate {
  bool gated;
  Activation kind;
};
struct Norm {
  const void* weight;
  float eps, offset;
};
inline auto fields(Gate& x) { return std::tie(x.gated, x.kind); }
inline auto fields(Norm& x) { return std::tie(x.weight, x.eps, x.offset); }

// Where a step's inputs are unpacked to.
struct StepPlaces {
  int64_t *token_ids, *positions, *slots;
  int32_t *block_tables, *context_lens, *query_start, *groups, *prefix_lens;
  int64_t* sample_rows;
  StepSample* samples;
};
inline auto fields(StepPlaces& x) {
  return std::tie(x.token_ids, x.positions, x.slots, x.block_tables, x.context_lens, x.query_start, x.groups, x.prefix_lens,
                  x.sample_rows, x.samples);
}

}  // namespace octavo

namespace py = pybind11;
using namespace octavo;

namespace {

cudaStream_t stream_at(Address stream) { return reinterpret_cast<cudaStream_t>(stream); }

void check(const char* operation, cudaError_t error) {
  if (error == cudaSuccess) return;
  const std::string message = std::string(operation) + ": ";
  if (error == cudaErrorInvalidValue) throw std::invalid_argument(message + "no CUDA kernel for these types and sizes");
  throw std::runtime_error(message + cudaGetErrorString(error));
}

// Whether it was launched: cudaErrorNotSupported means that it was not, and nothing else was.
bool launched(const char* operation, cudaError_t error) {
  if (error != cudaErrorNotSupported) check(operation, error);
  return error == cudaSuccess;
}

// The kernels load and store 16 bytes at a time.
void aligned(const char* name, const void* data, int64_t row_bytes = 0) {
  if (reinterpret_cast<Address>(data) % 16 != 0 || row_bytes % 16 != 0)
    throw std::invalid_argument(std::string(name) + " must start at a multiple of 16 bytes, and so must its rows");
}
void aligned(const char* name, const Rows& rows, size_t item) { aligned(name, rows.data, rows.stride * int64_t(item)); }

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
  plan->fill(a);
  a.sequences = use.sequences, a.decodes = use.decodes, a.extends = use.extends, a.history_ready = use.history_ready;
  if (!use.groups) a.prefix = nullptr;
  return a;
}

NormArgs norm_args(int dtype, const Rows& x, const Rows& residual, Address weight, Address bias, const Rows& out,
                   int64_t rows, int width, float eps, float offset) {
  const size_t item = item_size(Dtype(dtype));
  aligned("x", x, item), aligned("out", out, item), aligned("residual", residual, item);
  aligned("weight", at<void>(weight)), aligned("bias", at<void>(bias));
  return norm_of(Dtype(dtype), x, residual, at<void>(weight), at<void>(bias), out, rows, width, eps, offset);
}

// Of a product with a weight of codes, all but how it is launched.
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
                             Address groups, Address prefix_lens, bool prompts_only, Address stream) {
    PlanArgs a = plan.args();
    a.context_lens = at<int32_t>(context_lens), a.query_start = at<int32_t>(query_start), a.sequences = sequences;
    a.groups = at<int32_t>(groups), a.prefix_lens = at<int32_t>(prefix_lens);
    if (prompts_only) a.decode_capacity = 0;
    check("plan_attention", plan_attention(a, stream_at(stream)));
  });
  m.def("paged_attention", launching("paged_attention", attention_args, attend));
  m.def("decode_step", [](const py::tuple& write, const py::tuple& attention, Address stream) {
    DecodeStepArgs a{from_tuple(rope_write_args, write), from_tuple(attention_args, attention), nullptr};
    a.arrivals = attention[7].cast<const AttentionPlan*>()->arrivals();
    return launched("decode_step", decode_step(a, stream_at(stream)));
  });
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
  m.def("activation", [](int dtype, int kind, bool gated, const Rows& x, const Rows& out, int64_t rows, int width,
                         Address stream) {
    aligned("x", x, item_size(Dtype(dtype))), aligned("out", out, item_size(Dtype(dtype)));
    check("activation",
          activation({Dtype(dtype), Activation(kind), gated, x.data, x.stride, out.data, out.stride, rows, width},
                     stream_at(stream)));
  });
  m.def("linear", [](int dtype, const Rows& x, const Rows& weight, Address bias, const Rows& residual, const Rows& out,
                     int rows, int columns, int depth, const Gate& gate, const Norm& norm, Address counter,
                     const LinearLaunch& launch, Address stream) {
    LinearArgs a{};
    a.dtype = Dtype(dtype);
    a.x = x.data, a.x_stride = x.stride, a.weight = weight.data, a.weight_stride = weight.stride;
    a.bias = at<void>(bias), a.residual = residual.data, a.residual_stride = residual.stride;
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
  m.def("w8a8_row", [](int dtype, int cells, Address x, const Norm& norm, const CodedRows& weight, Address bias,
                       Address residual, Address out, int columns, int depth, const Gate& gate, Address stream) {
    const W8A8RowArgs a{Dtype(dtype), Cells(cells), at<void>(x), norm.weight, norm.eps, norm.offset, weight, columns, depth,
                        gate.gated, gate.kind, at<void>(bias), at<void>(residual), at<void>(out)};
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

void define_sampling(py::module_& m) {
  m.def("sample", [](int dtype, const Rows& logits, int64_t rows, int vocab, Address samples, Address tokens, Address stream) {
    const SampleArgs a{Dtype(dtype), logits.data, logits.stride, rows, vocab, at<StepSample>(samples), at<int64_t>(tokens)};
    check("sample", sample(a, stream_at(stream)));
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
                          const StepPlaces& to, Address stream) {
    StepArgs a{};
    a.message = at<int32_t>(message), a.previous = at<int64_t>(previous);
    a.tables = static_cast<int32_t*>(tables.data), a.table_stride = tables.stride;
    a.sequences = sequences, a.block_size = block_size;
    a.token_ids = to.token_ids, a.positions = to.positions, a.slots = to.slots, a.block_tables = to.block_tables;
    a.context_lens = to.context_lens, a.query_start = to.query_start, a.groups = to.groups, a.prefix_lens = to.prefix_lens;
    a.sample_rows = to.sample_rows, a.samples = to.samples;
    check("unpack_step", unpack_step(a, stream_at(stream)));
  });
  m.def("carry", [](Address from, Address to, int64_t words, Address stream) {
    check("carry", carry(at<int32_t>(from), at<int32_t>(to), words, stream_at(stream)));
  });
}

using Counts = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

// What the host knows of the kernels: nothing is launched.
void define_host(py::module_& m) {
  m.attr("chunk_tokens") = kChunk;
  m.attr("header_words") = sizeof(PlanHeader) / 4;
  m.def("split_queries", [](int group) { return kSplitRows / group; });
  m.def("part_queries", [](int group) { return std::max(1, kDecodeRows / group); });
  m.def("chunk_count", [](const Counts& contexts, const Counts& queries, int group) {
    return chunk_count(contexts.data(), queries.data(), contexts.size(), group);
  });
  m.def("only_prompts", [](const Counts& contexts, const Counts& queries, int group) {
    return only_prompts(contexts.data(), queries.data(), contexts.size(), group);
  });
  m.def("chip", [] {
    int device, major, multiprocessors, shared_per_block;
    check("chip", cudaGetDevice(&device));
    check("chip", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
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
  py::class_<MappedPool>(m, "MappedPool")
      .def(py::init<int, std::size_t, std::size_t>())
      .def_property_readonly("address", &MappedPool::address)
      .def_static("granularity", &MappedPool::granularity);
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  define_attention(m);
  define_layers(m);
  define_codes(m);
  define_w8a8(m);
  define_sampling(m);
  define_host(m);
}
