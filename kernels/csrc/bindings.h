// Python's arguments as the structs that kernels take: a tuple becomes a struct, field by field, and an address a
// pointer. A tuple of another length, or with something else in it, is a TypeError that names the argument.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "operands.h"

namespace octavo {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// Rows of a tensor and the elements from one to the next; null: no such tensor.
struct Rows {
  void* data;
  int64_t stride;
};
struct Heads {
  int query, kv, dim;
};
struct Rotation {
  const int64_t* positions;
  const float* cos_sin;
  int64_t stride;
  int dim;
};
struct HeadNorms {
  const void *q, *k;
  float eps, offset;
};
struct Scoring {
  float scale;
  int window;
  float softcap;
  const float* sinks;
};

// The fields of a struct in the order of the tuple that it comes as.
inline auto fields(Rows& x) { return std::tie(x.data, x.stride); }
inline auto fields(Heads& x) { return std::tie(x.query, x.kv, x.dim); }
inline auto fields(Rotation& x) { return std::tie(x.positions, x.cos_sin, x.stride, x.dim); }
inline auto fields(HeadNorms& x) { return std::tie(x.q, x.k, x.eps, x.offset); }
inline auto fields(Scoring& x) { return std::tie(x.scale, x.window, x.softcap, x.sinks); }
inline auto fields(Cache& x) {
  return std::tie(x.data, x.cells, x.block_stride, x.kv_stride, x.head_stride, x.block_size);
}

template <class T>
bool read(PyObject* from, T& to) {
  if constexpr (std::is_pointer_v<T>) {
    to = reinterpret_cast<T>(PyLong_AsUnsignedLongLong(from));
  } else if constexpr (std::is_floating_point_v<T>) {
    to = T(PyFloat_AsDouble(from));
  } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    const long long value = PyLong_AsLongLong(from);
    to = static_cast<T>(value);
    if (static_cast<long long>(to) != value) return false;
  } else {
    const auto all = fields(to);
    if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) != Py_ssize_t(std::tuple_size_v<decltype(all)>)) return false;
    Py_ssize_t next = 0;
    return std::apply([&](auto&... field) { return (read(PyTuple_GET_ITEM(from, next++), field) && ...); }, all);
  }
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

inline WriteArgs rope_write(Dtype dtype, const Rows& qkv, const Rows& q_out, int64_t tokens, const Heads& heads,
                            const Cache& cache, const int64_t* slots, const Rotation& rotation, const HeadNorms& norms) {
  WriteArgs a{};
  const int64_t head = int64_t(item_size(dtype)) * heads.dim;
  a.dtype = dtype;
  a.q = qkv.data;
  a.k = static_cast<char*>(qkv.data) + head * heads.query;
  a.v = static_cast<char*>(qkv.data) + head * (heads.query + heads.kv);
  a.q_stride = a.k_stride = a.v_stride = qkv.stride;
  a.q_out = q_out.data, a.q_out_stride = q_out.stride;
  a.tokens = tokens, a.heads = heads.query, a.kv_heads = heads.kv, a.head_dim = heads.dim;
  a.cache = cache, a.slots = slots, a.positions = rotation.positions;
  a.cos_sin = rotation.cos_sin, a.cos_sin_stride = rotation.stride, a.rotary_dim = rotation.dim;
  a.q_norm = norms.q, a.k_norm = norms.k, a.eps = norms.eps, a.norm_offset = norms.offset;
  return a;
}

inline WriteArgs plain_write(Dtype dtype, const Rows& k, const Rows& v, int64_t tokens, int kv_heads, int head_dim,
                             const Cache& cache, const int64_t* slots) {
  WriteArgs a{};
  a.dtype = dtype;
  a.k = k.data, a.k_stride = k.stride, a.v = v.data, a.v_stride = v.stride;
  a.tokens = tokens, a.kv_heads = kv_heads, a.head_dim = head_dim;
  a.cache = cache, a.slots = slots;
  return a;
}

// Attention's arguments on every device.
template <class Args>
Args attention_of(Dtype dtype, const Rows& q, const Rows& out, const Heads& heads, const Cache& cache, const Rows& tables,
                  const Scoring& scoring) {
  Args a{};
  a.dtype = dtype;
  a.q = q.data, a.q_stride = q.stride, a.out = out.data, a.out_stride = out.stride;
  a.heads = heads.query, a.kv_heads = heads.kv, a.head_dim = heads.dim;
  a.cache = cache;
  a.tables = static_cast<const int32_t*>(tables.data), a.table_stride = tables.stride;
  a.scale = scoring.scale, a.window = scoring.window, a.softcap = scoring.softcap, a.sinks = scoring.sinks;
  return a;
}

inline NormArgs norm_of(Dtype dtype, const Rows& x, const Rows& residual, const void* weight, const void* bias,
                        const Rows& out, int64_t rows, int width, float eps, float offset) {
  NormArgs a{};
  a.dtype = dtype;
  a.x = x.data, a.x_stride = x.stride;
  a.residual = residual.data, a.residual_stride = residual.stride;
  a.weight = weight, a.bias = bias, a.out = out.data, a.out_stride = out.stride;
  a.rows = rows, a.width = width, a.eps = eps, a.offset = offset;
  return a;
}

}  // namespace octavo

namespace pybind11::detail {

template <class S>
class type_caster<S, std::void_t<decltype(fields(std::declval<S&>()))>> {  // found where S is declared
 public:
  PYBIND11_TYPE_CASTER(S, const_name("tuple"));
  bool load(handle source, bool) { return octavo::read(source.ptr(), value); }
};

}  // namespace pybind11::detail
