// Python bindings: addresses, strides and sizes as integers. octavo_kernels checks everything.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "launch.h"
#include "levels.h"
#include "thread_pool.h"

namespace py = pybind11;
using namespace octavo;

namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

Cache cache_of(uintptr_t data, int cells, int64_t block_stride, int64_t kv_stride, int64_t head_stride,
               int block_size) {
  return {at<void>(data), Cells(cells), block_stride, kv_stride, head_stride, block_size};
}

void write_kv(int dtype, uintptr_t k, int64_t k_stride, uintptr_t v, int64_t v_stride, int64_t tokens, int kv_heads,
              int head_dim, uintptr_t cache, int cells, int64_t block_stride, int64_t kv_stride,
              int64_t head_stride, int block_size, uintptr_t slots) {
  WriteArgs a{};
  a.dtype = Dtype(dtype);
  a.k = at<void>(k), a.k_stride = k_stride, a.v = at<void>(v), a.v_stride = v_stride;
  a.tokens = tokens, a.kv_heads = kv_heads, a.head_dim = head_dim;
  a.cache = cache_of(cache, cells, block_stride, kv_stride, head_stride, block_size);
  a.slots = at<int64_t>(slots);
  launch_write(a);
}

void rope_write_kv(int dtype, uintptr_t qkv, int64_t qkv_stride, uintptr_t q_out, int64_t q_out_stride, int64_t tokens,
                   int heads, int kv_heads, int head_dim, uintptr_t cache, int cells, int64_t block_stride,
                   int64_t kv_stride, int64_t head_stride, int block_size, uintptr_t slots, uintptr_t positions,
                   uintptr_t cos_sin, int64_t cos_sin_stride, int rotary_dim, uintptr_t q_norm,
                   uintptr_t k_norm, float eps, float norm_offset) {
  WriteArgs a{};
  a.dtype = Dtype(dtype);
  const int64_t item = int64_t(item_size(a.dtype)), k_begin = int64_t(heads) * head_dim * item;
  a.q = at<void>(qkv);
  a.k = at<char>(qkv) + k_begin;
  a.v = at<char>(qkv) + k_begin + int64_t(kv_heads) * head_dim * item;
  a.q_stride = a.k_stride = a.v_stride = qkv_stride;
  a.q_out = at<void>(q_out), a.q_out_stride = q_out_stride;
  a.tokens = tokens, a.heads = heads, a.kv_heads = kv_heads, a.head_dim = head_dim;
  a.cache = cache_of(cache, cells, block_stride, kv_stride, head_stride, block_size);
  a.slots = at<int64_t>(slots), a.positions = at<int64_t>(positions);
  a.cos_sin = at<float>(cos_sin), a.cos_sin_stride = cos_sin_stride;
  a.rotary_dim = rotary_dim;
  a.q_norm = at<void>(q_norm), a.k_norm = at<void>(k_norm);
  a.eps = eps, a.norm_offset = norm_offset;
  launch_write(a);
}

void paged_attention(int dtype, uintptr_t q, int64_t q_stride, uintptr_t out, int64_t out_stride, int heads,
                     int kv_heads, int head_dim, uintptr_t cache, int cells, int64_t block_stride,
                     int64_t kv_stride, int64_t head_stride, int block_size, uintptr_t tables, int64_t table_stride,
                     uintptr_t context_lens, uintptr_t query_start, int sequences, float scale, int window,
                     float softcap, uintptr_t sinks) {
  AttentionArgs a{};
  a.dtype = Dtype(dtype);
  a.q = at<void>(q), a.q_stride = q_stride, a.out = at<void>(out), a.out_stride = out_stride;
  a.heads = heads, a.kv_heads = kv_heads, a.head_dim = head_dim;
  a.cache = cache_of(cache, cells, block_stride, kv_stride, head_stride, block_size);
  a.tables = at<int32_t>(tables), a.table_stride = table_stride;
  a.context_lens = at<int32_t>(context_lens), a.query_start = at<int32_t>(query_start), a.sequences = sequences;
  a.scale = scale, a.window = window, a.softcap = softcap, a.sinks = at<float>(sinks);
  launch_attention(a);
}

void linear(int dtype, uintptr_t x, int64_t x_stride, uintptr_t weight, int64_t weight_stride, uintptr_t bias,
            uintptr_t residual, int64_t residual_stride, uintptr_t out, int64_t out_stride, int64_t rows,
            int64_t columns, int64_t depth) {
  LinearArgs a{};
  a.dtype = Dtype(dtype);
  a.x = at<void>(x), a.x_stride = x_stride, a.weight = at<void>(weight), a.weight_stride = weight_stride;
  a.bias = at<void>(bias), a.residual = at<void>(residual), a.residual_stride = residual_stride;
  a.out = at<void>(out), a.out_stride = out_stride;
  a.rows = rows, a.columns = columns, a.depth = depth;
  launch_linear(a);
}

NormArgs norm_args(int dtype, uintptr_t x, int64_t x_stride, uintptr_t residual, int64_t residual_stride,
                   uintptr_t weight, uintptr_t bias, uintptr_t out, int64_t out_stride, int64_t rows, int width,
                   float eps, float offset) {
  NormArgs a{};
  a.dtype = Dtype(dtype);
  a.x = at<void>(x), a.x_stride = x_stride, a.residual = at<void>(residual), a.residual_stride = residual_stride;
  a.weight = at<void>(weight), a.bias = at<void>(bias), a.out = at<void>(out), a.out_stride = out_stride;
  a.rows = rows, a.width = width, a.eps = eps, a.offset = offset;
  return a;
}

void rms_norm(int dtype, uintptr_t x, int64_t x_stride, uintptr_t residual, int64_t residual_stride, uintptr_t weight,
              uintptr_t out, int64_t out_stride, int64_t rows, int width, float eps, float offset) {
  launch_rms_norm(
      norm_args(dtype, x, x_stride, residual, residual_stride, weight, 0, out, out_stride, rows, width, eps, offset));
}

void rms_norm_of_sum(int dtype, uintptr_t parts, int count, int64_t part_stride, int64_t row_stride, uintptr_t residual,
                     int64_t residual_stride, uintptr_t weight, uintptr_t out, int64_t out_stride, int64_t rows, int width,
                     float eps, float offset) {
  NormArgs a = norm_args(dtype, parts, row_stride, residual, residual_stride, weight, 0, out, out_stride, rows, width, eps,
                         offset);
  a.parts = count, a.part_stride = part_stride;
  launch_rms_norm(a);
}

void layer_norm(int dtype, uintptr_t x, int64_t x_stride, uintptr_t residual, int64_t residual_stride,
                uintptr_t weight, uintptr_t bias, uintptr_t out, int64_t out_stride, int64_t rows, int width,
                float eps) {
  launch_layer_norm(
      norm_args(dtype, x, x_stride, residual, residual_stride, weight, bias, out, out_stride, rows, width, eps, 0));
}

void activation(int dtype, int kind, bool gated, uintptr_t x, int64_t x_stride, uintptr_t out, int64_t out_stride,
                int64_t rows, int width) {
  launch_activation(
      {Dtype(dtype), Activation(kind), gated, at<void>(x), x_stride, at<void>(out), out_stride, rows, width});
}

void sample(uintptr_t logits, int64_t stride, int64_t rows, int64_t vocab, uintptr_t seeds, uintptr_t indices,
            uintptr_t positions, uintptr_t temperature, uintptr_t top_k, uintptr_t top_p, uintptr_t min_p,
            uintptr_t tokens) {
  launch_sample({at<float>(logits), stride, rows, vocab, at<int64_t>(seeds), at<int32_t>(indices),
                 at<int32_t>(positions), at<float>(temperature), at<int32_t>(top_k), at<float>(top_p),
                 at<float>(min_p), at<int64_t>(tokens)});
}

void logprobs(uintptr_t logits, int64_t stride, int64_t rows, int64_t vocab, uintptr_t tokens, int top,
              uintptr_t chosen, uintptr_t top_ids, uintptr_t top_values) {
  launch_logprobs({at<float>(logits), stride, rows, vocab, at<int64_t>(tokens), top, at<float>(chosen),
                   at<int64_t>(top_ids), at<float>(top_values)});
}

void copy_blocks(uintptr_t cache, int64_t block_bytes, uintptr_t pairs, int64_t n) {
  launch_copy(at<char>(cache), block_bytes, at<int64_t>(pairs), n);
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  const auto free = py::call_guard<py::gil_scoped_release>();
  m.def("write_kv", &write_kv, free);
  m.def("rope_write_kv", &rope_write_kv, free);
  m.def("paged_attention", &paged_attention, free);
  m.def("linear", &linear, free);
  m.def("rms_norm", &rms_norm, free);
  m.def("rms_norm_of_sum", &rms_norm_of_sum, free);
  m.def("layer_norm", &layer_norm, free);
  m.def("activation", &activation, free);
  m.def("sample", &sample, free);
  m.def("logprobs", &logprobs, free);
  m.def("copy_blocks", &copy_blocks, free);
  m.def("levels", &levels, "Instruction-set levels that this machine runs, the best last.");
  m.def("level", &level, "The level in use.");
  m.def("set_level", &set_level, "Use another level (ValueError when this machine lacks it).");
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, free);
  m.attr("max_head_dim") = kMaxHeadDim;
  level();  // A wrong OCTAVO_CPU_LEVEL fails the import, not the first operation.
}
