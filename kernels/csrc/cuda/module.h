// The common part of all operations' bindings.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "bindings.h"
#include "linear/args.h"

namespace octavo {

inline cudaStream_t stream_at(Address stream) { return reinterpret_cast<cudaStream_t>(stream); }

inline void check(const char* operation, cudaError_t error) {
  if (error == cudaSuccess) return;
  const std::string message = std::string(operation) + ": ";
  if (error == cudaErrorInvalidValue) throw std::invalid_argument(message + "no GPU kernel for these types and sizes");
  throw std::runtime_error(message + cudaGetErrorString(error));
}

// True if it was launched: cudaErrorNotSupported means that it was not, and nothing else was.
inline bool launched(const char* operation, cudaError_t error) {
  if (error != cudaErrorNotSupported) check(operation, error);
  return error == cudaSuccess;
}

// The kernels load and store 16 bytes at a time.
inline void aligned(const char* name, const void* data, int64_t row_bytes = 0) {
  if (reinterpret_cast<Address>(data) % 16 != 0 || row_bytes % 16 != 0)
    throw std::invalid_argument(std::string(name) + " must start at a multiple of 16 bytes, and so must its rows");
}
inline void aligned(const char* name, const Rows& rows, size_t item) { aligned(name, rows.data, rows.stride * int64_t(item)); }

// A norm that an operation takes along.
using Norm = NormWeights;
inline auto fields(Norm& x) { return std::tie(x.weight, x.eps, x.offset); }

// Bindings that a build of the plain kernels lacks: products, mixtures of experts, recurrent layers, attention of wide heads, and
// what joins several GPUs.
void define_products(pybind11::module_&);
void define_experts(pybind11::module_&);
void define_recurrent(pybind11::module_&);
void define_wide(pybind11::module_&);
void define_exchange(pybind11::module_&);

}  // namespace octavo
