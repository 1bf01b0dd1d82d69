// `octavo_kernels._cuda`: the operations of `_cpu`, plus a stream. Arguments are addresses, strides in elements and sizes;
// octavo_kernels has checked them.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "args.h"
#include "cache/mapped_pool.h"

namespace py = pybind11;
using namespace octavo;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

cudaStream_t stream_at(Address stream) { return reinterpret_cast<cudaStream_t>(stream); }

void check(const char* operation, cudaError_t error) {
  if (error == cudaSuccess) return;
  const std::string message = std::string(operation) + ": ";
  if (error == cudaErrorInvalidValue) throw std::invalid_argument(message + "no CUDA kernel for these types and sizes");
  throw std::runtime_error(message + cudaGetErrorString(error));
}

int64_t item_size(int dtype) { return int64_t(item_size(Dtype(dtype))); }

// The kernels load and store 16 bytes at a time.
void aligned(const char* name, Address address, int64_t row_bytes = 0) {
  if (address % 16 != 0 || row_bytes % 16 != 0)
    throw std::invalid_argument(std::string(name) + " must start at a multiple of 16 bytes, and so must its rows");
}

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

void write_kv(int dtype, Address k, int64_t k_stride, Address v, int64_t v_stride, int64_t tokens, int kv_heads,
              int head_dim, Address cache, int cells, int64_t block_stride, int64_t kv_stride, int64_t head_stride,
              int block_size, Address slots, Address stream) {
  WriteArgs a{};
  a.dtype = Dtype(dtype);
  a.k = at<void>(k), a.k_stride = k_stride, a.v = at<void>(v), a.v_stride = v_stride;
  a.tokens = tokens, a.kv_heads = kv_heads, a.head_dim = head_dim;
  a.cache = {at<void>(cache), Cells(cells), block_stride, kv_stride, head_stride, block_size};
  a.slots = at<int64_t>(slots);
  const int64_t item = item_size(dtype);
  aligned("k", k, k_stride * item), aligned("v", v, v_stride * item), aligned("layer_cache", cache);
  check("write_kv", write(a, stream_at(stream)));
}

WriteArgs rope_write_args(int dtype, Address qkv, int64_t qkv_stride, Address q_out, int64_t q_out_stride, int64_t tokens,
                          int heads, int kv_heads, int head_dim, Address cache, int cells, int64_t block_stride, int64_t kv_stride,
                          int64_t head_stride, int block_size, Address slots, Address positions, Address cos_sin,
                          int64_t cos_sin_stride, int rotary_dim, Address q_norm, Address k_norm,
                          float eps, float norm_offset) {
  const int64_t item = item_size(dtype);
  aligned("qkv", qkv, qkv_stride * item), aligned("q_out", q_out, q_out_stride * item), aligned("layer_cache", cache);
  WriteArgs a{};
  a.dtype = Dtype(dtype);
  a.q = at<void>(qkv), a.q_stride = qkv_stride;
  a.k = at<char>(qkv) + item * heads * head_dim, a.k_stride = qkv_stride;
  a.v = at<char>(qkv) + item * (heads + kv_heads) * head_dim, a.v_stride = qkv_stride;
  a.q_out = at<void>(q_out), a.q_out_stride = q_out_stride;
  a.tokens = tokens, a.heads = heads, a.kv_heads = kv_heads, a.head_dim = head_dim;
  a.cache = {at<void>(cache), Cells(cells), block_stride, kv_stride, head_stride, block_size};
  a.slots = at<int64_t>(slots), a.positions = at<int64_t>(positions);
  a.cos_sin = at<float>(cos_sin), a.cos_sin_stride = cos_sin_stride, a.rotary_dim = rotary_dim;
  a.q_norm = at<void>(q_norm), a.k_norm = at<void>(k_norm), a.eps = eps, a.norm_offset = norm_offset;
  return a;
}

void plan(Address context_lens, Address query_start, int sequences, int group, int window, int decode_rows, Address groups,
          Address prefix_lens, Address header, Address decode, Address folds, Address extend, Address prefix,
          Address group_states, Address rows, int few_rows, int kv_heads, int head_dim, int decode_capacity,
          int extend_capacity, int sequence_capacity, Address stream) {
  PlanArgs a{};
  a.context_lens = at<int32_t>(context_lens), a.query_start = at<int32_t>(query_start);
  a.sequences = sequences, a.group = group, a.window = window, a.decode_rows = decode_rows;
  a.header = at<PlanHeader>(header), a.decode = at<DecodeItem>(decode), a.folds = at<FoldItem>(folds);
  a.extend = at<ExtendItem>(extend);
  a.groups = at<int32_t>(groups), a.prefix_lens = at<int32_t>(prefix_lens);
  a.prefix = at<PrefixItem>(prefix), a.group_states = at<GroupState>(group_states), a.rows = at<GroupRow>(rows);
  a.few_rows = few_rows, a.kv_heads = kv_heads, a.head_dim = head_dim;
  a.decode_capacity = decode_capacity, a.extend_capacity = extend_capacity, a.sequence_capacity = sequence_capacity;
  check("plan_attention", plan_attention(a, stream_at(stream)));
}

AttentionArgs attention_args(int dtype, Address q, int64_t q_stride, Address out, int64_t out_stride, int heads,
                             int kv_heads, int head_dim, Address cache, int cells, int64_t block_stride, int64_t kv_stride,
                             int64_t head_stride, int block_size, Address tables, int64_t table_stride, Address header,
                             Address decode, Address folds, int sequences, Address extend, Address prefix, Address rows,
                             Address partial, Address partial_sums, int partial_rows, bool decodes, bool extends,
                             bool settled, float scale, int window, float softcap, Address sinks) {
  AttentionArgs a{};
  a.dtype = Dtype(dtype);
  a.q = at<void>(q), a.q_stride = q_stride, a.out = at<void>(out), a.out_stride = out_stride;
  a.heads = heads, a.kv_heads = kv_heads, a.head_dim = head_dim;
  a.cache = {at<void>(cache), Cells(cells), block_stride, kv_stride, head_stride, block_size};
  a.tables = at<int32_t>(tables), a.table_stride = table_stride;
  a.header = at<PlanHeader>(header), a.decode = at<DecodeItem>(decode), a.extend = at<ExtendItem>(extend);
  a.folds = at<FoldItem>(folds), a.sequences = sequences;
  a.prefix = at<PrefixItem>(prefix), a.rows = at<GroupRow>(rows);
  a.decodes = decodes, a.extends = extends, a.settled = settled;
  a.partial = at<float>(partial), a.partial_sums = at<float>(partial_sums), a.partial_rows = partial_rows;
  a.scale = scale, a.softcap = softcap, a.window = window, a.sinks = at<float>(sinks);
  const int64_t item = item_size(dtype);
  aligned("q", q, q_stride * item), aligned("out", out, out_stride * item), aligned("layer_cache", cache);
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
  return std::apply(function, arguments.cast<std::tuple<Parameters...>>());
}

void copy(Address cache, int64_t block_bytes, Address pairs, int64_t count, Address stream) {
  check("copy_blocks", copy_blocks(at<void>(cache), block_bytes, at<int64_t>(pairs), count, stream_at(stream)));
}

void swap(Address source, Address target, int64_t block_bytes, Address pairs, int64_t count, Address stream) {
  check("swap_blocks", swap_blocks(at<void>(source), at<void>(target), block_bytes, at<int64_t>(pairs), count,
                                   stream_at(stream)));
}

void unpack(Address message, Address tables, int64_t table_stride, Address previous, int sequences, int block_size,
            Address token_ids, Address positions, Address slots, Address block_tables, Address context_lens,
            Address query_start, Address groups, Address prefix_lens, Address sample_rows, Address seeds, Address indices, Address sample_positions,
            Address temperature, Address top_k, Address top_p, Address min_p, Address stream) {
  StepArgs a{};
  a.message = at<int32_t>(message);
  a.tables = at<int32_t>(tables), a.table_stride = table_stride, a.previous = at<int64_t>(previous);
  a.sequences = sequences, a.block_size = block_size;
  a.token_ids = at<int64_t>(token_ids), a.positions = at<int64_t>(positions), a.slots = at<int64_t>(slots);
  a.block_tables = at<int32_t>(block_tables);
  a.context_lens = at<int32_t>(context_lens), a.query_start = at<int32_t>(query_start);
  a.groups = at<int32_t>(groups), a.prefix_lens = at<int32_t>(prefix_lens);
  a.sample_rows = at<int64_t>(sample_rows), a.seeds = at<int64_t>(seeds);
  a.indices = at<int32_t>(indices), a.sample_positions = at<int32_t>(sample_positions);
  a.temperature = at<float>(temperature), a.top_k = at<int32_t>(top_k);
  a.top_p = at<float>(top_p), a.min_p = at<float>(min_p);
  check("unpack_step", unpack_step(a, stream_at(stream)));
}

NormArgs norm_args(int dtype, Address x, int64_t x_stride, Address residual, int64_t residual_stride, Address weight,
                   Address bias, Address out, int64_t out_stride, int64_t rows, int width, float eps, float offset) {
  aligned("x", x, x_stride * item_size(dtype)), aligned("out", out, out_stride * item_size(dtype));
  aligned("residual", residual, residual_stride * item_size(dtype)), aligned("weight", weight), aligned("bias", bias);
  return {Dtype(dtype),     at<void>(x),    x_stride,      0,          0,    at<void>(residual), residual_stride,
          at<void>(weight), at<void>(bias), at<void>(out), out_stride, rows, width,              eps,
          offset};
}

LinearArgs linear_args(int dtype, Address x, int64_t x_stride, Address weight, int64_t weight_stride, Address bias,
                       Address residual, int64_t residual_stride, Address out, int64_t out_stride, int rows, int columns,
                       int depth) {
  LinearArgs a{};
  a.dtype = Dtype(dtype);
  a.x = at<void>(x), a.x_stride = x_stride, a.rows = rows;
  a.weight = at<void>(weight), a.weight_stride = weight_stride, a.columns = columns, a.depth = depth;
  a.bias = at<void>(bias), a.residual = at<void>(residual), a.residual_stride = residual_stride;
  a.out = at<void>(out), a.out_stride = out_stride;
  return a;
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  m.attr("chunk") = kChunk;
  m.attr("decode_rows") = kDecodeRows;
  m.attr("few_times") = kFewTimes;
  m.attr("few_items") = kFewItems;
  m.attr("split_rows") = kSplitRows;
  m.attr("split_context") = kSplitContext;
  m.attr("header_bytes") = sizeof(PlanHeader);
  m.attr("decode_item_bytes") = sizeof(DecodeItem);
  m.attr("fold_item_bytes") = sizeof(FoldItem);
  m.def("extend_rows", &extend_rows);
  m.attr("group_row_bytes") = sizeof(GroupRow);
  m.attr("group_state_bytes") = sizeof(GroupState);
  m.attr("prefix_item_bytes") = sizeof(PrefixItem);
  m.attr("extend_item_bytes") = sizeof(ExtendItem);
  m.attr("step_words") = py::make_tuple(sizeof(StepHeader) / 4, sizeof(StepSequence) / 4, sizeof(StepSample) / 4);
  m.attr("adjust_words") = py::make_tuple(sizeof(AdjustRow) / 4, sizeof(AdjustEntry) / 4);
  m.def("write_kv", write_kv);
  m.def("rope_write_kv", launching("rope_write_kv", rope_write_args, write));
  m.def("plan_attention", plan);
  m.def("paged_attention", launching("paged_attention", attention_args, attend));
  m.def("decode_step", [](const py::tuple& write, const py::tuple& attention, Address arrivals, Address stream) {
    const DecodeStepArgs a{from_tuple(rope_write_args, write), from_tuple(attention_args, attention),
                           at<int32_t>(arrivals)};
    const cudaError_t error = decode_step(a, stream_at(stream));
    if (error != cudaErrorNotSupported) check("decode_step", error);
    return error == cudaSuccess;
  });
  m.def("copy_blocks", copy);
  m.def("swap_blocks", swap, py::call_guard<py::gil_scoped_release>());
  py::class_<MappedPool>(m, "MappedPool")
      .def(py::init<int, std::size_t, std::size_t>())
      .def_property_readonly("address", &MappedPool::address)
      .def_static("granularity", &MappedPool::granularity);
  m.def("unpack_step", unpack);
  m.def("carry", [](Address from, Address to, int64_t words, Address stream) {
    check("carry", carry(at<int32_t>(from), at<int32_t>(to), words, stream_at(stream)));
  });
  m.def("rms_norm", [](int dtype, Address x, int64_t x_stride, Address residual, int64_t residual_stride, Address weight,
                       Address out, int64_t out_stride, int64_t rows, int width, float eps, float offset,
                       Address stream) {
    check("rms_norm", rms_norm(norm_args(dtype, x, x_stride, residual, residual_stride, weight, 0, out, out_stride, rows,
                                         width, eps, offset),
                               stream_at(stream)));
  });
  m.def("rms_norm_of_sum", [](int dtype, Address parts, int count, int64_t part_stride, int64_t row_stride, Address residual,
                              int64_t residual_stride, Address weight, Address out, int64_t out_stride, int64_t rows,
                              int width, float eps, float offset, Address stream) {
    aligned("parts", parts, row_stride * 4), aligned("parts", parts, part_stride * 4);
    NormArgs a = norm_args(dtype, parts, row_stride, residual, residual_stride, weight, 0, out, out_stride, rows, width, eps,
                           offset);
    a.parts = count, a.part_stride = part_stride;
    check("rms_norm_of_sum", rms_norm(a, stream_at(stream)));
  });
  m.def("layer_norm", [](int dtype, Address x, int64_t x_stride, Address residual, int64_t residual_stride,
                         Address weight, Address bias, Address out, int64_t out_stride, int64_t rows, int width,
                         float eps, Address stream) {
    check("layer_norm", layer_norm(norm_args(dtype, x, x_stride, residual, residual_stride, weight, bias, out,
                                             out_stride, rows, width, eps, 0.0f),
                                   stream_at(stream)));
  });
  m.def("activation", [](int dtype, int kind, bool gated, Address x, int64_t x_stride, Address out, int64_t out_stride,
                         int64_t rows, int width, Address stream) {
    aligned("x", x, x_stride * item_size(dtype)), aligned("out", out, out_stride * item_size(dtype));
    const ActivationArgs a{Dtype(dtype),  Activation(kind), gated, at<void>(x), x_stride,
                           at<void>(out), out_stride,       rows,  width};
    check("activation", activation(a, stream_at(stream)));
  });
  m.def("linear", [](int dtype, Address x, int64_t x_stride, Address weight, int64_t weight_stride, Address bias,
                     Address residual, int64_t residual_stride, Address out, int64_t out_stride, int rows, int columns,
                     int depth, bool gated, int kind, Address norm, float eps, float offset, Address counter,
                     Address stream) {
    LinearArgs a = linear_args(dtype, x, x_stride, weight, weight_stride, bias, residual, residual_stride, out, out_stride,
                               rows, columns, depth);
    a.gated = gated, a.activation = Activation(kind);
    a.norm = at<void>(norm), a.eps = eps, a.offset = offset, a.counter = at<unsigned>(counter);
    const cudaError_t error = linear(a, stream_at(stream));
    if (error != cudaErrorNotSupported) check("linear", error);
    return error == cudaSuccess;
  });
#if OCTAVO_HOPPER
  m.def("linear_uniform", [](int dtype, Address x, int64_t x_stride, Address weight, int64_t weight_stride, Address bias,
                             Address residual, int64_t residual_stride, Address out, int64_t out_stride, int rows,
                             int columns, int depth, Address stream) {
    const LinearArgs a = linear_args(dtype, x, x_stride, weight, weight_stride, bias, residual, residual_stride, out,
                                     out_stride, rows, columns, depth);
    check("linear_uniform", linear_uniform(a, stream_at(stream)));
  });
  m.def("linear_parts", [](int dtype, Address x, int64_t x_stride, Address weight, int64_t weight_stride, Address out,
                           int rows, int columns, int depth, int parts, Address stream) {
    const LinearArgs a = linear_args(dtype, x, x_stride, weight, weight_stride, 0, 0, 0, out, columns, rows, columns, depth);
    const cudaError_t error = linear_parts(a, parts, stream_at(stream));
    if (error != cudaErrorNotSupported) check("linear_parts", error);
    return error == cudaSuccess;
  });
#endif
  m.def("sample", [](int dtype, Address logits, int64_t stride, int64_t rows, int vocab, Address seeds, Address indices,
                     Address positions, Address temperature, Address top_k, Address top_p, Address min_p, Address tokens,
                     Address stream) {
    const SampleArgs a{Dtype(dtype),           at<void>(logits),      stride,
                       rows,                   vocab,                 at<int64_t>(seeds),
                       at<int32_t>(indices),   at<int32_t>(positions), at<float>(temperature),
                       at<int32_t>(top_k),     at<float>(top_p),      at<float>(min_p),
                       at<int64_t>(tokens)};
    check("sample", sample(a, stream_at(stream)));
  });
  m.def("adjust", [](Address logits, int64_t stride, int64_t rows, int vocab, Address message, Address latest,
                     Address allowed, int64_t allowed_stride, Address stream) {
    const AdjustArgs a{at<float>(logits),    stride,           rows, vocab, at<int32_t>(message), at<int64_t>(latest),
                       at<int32_t>(allowed), allowed_stride};
    check("adjust", adjust(a, stream_at(stream)));
  });
  m.def("logprobs", [](int dtype, Address logits, int64_t stride, int64_t rows, int vocab, Address tokens, int top, Address chosen,
                       Address top_ids, Address top_values, Address stream) {
    const LogprobArgs a{Dtype(dtype), at<void>(logits), stride,
                        rows,         vocab,            at<int64_t>(tokens),
                        top,          at<float>(chosen), at<int64_t>(top_ids),
                        at<float>(top_values)};
    check("logprobs", logprobs(a, stream_at(stream)));
  });
}
