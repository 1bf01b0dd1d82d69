// Mixtures of experts as functions of a shared library.
#include "device/common.cuh"
#include "experts/args.h"
#include "linear/args.h"

using namespace octavo;

// The norm in front of many rows, whose kernel is not emulated: one row after the other, as route.cu adds them up.
cudaError_t octavo::rms_norm(const NormArgs& a, cudaStream_t) {
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t row = 0; row < a.rows; ++row) {
      const T *x = static_cast<const T*>(a.x) + row * a.x_stride, *weight = static_cast<const T*>(a.weight);
      T* out = static_cast<T*>(a.out) + row * a.out_stride;
      double squares = 0;
      for (int i = 0; i < a.width; ++i) squares += double(to_float(x[i])) * to_float(x[i]);
      const float inverse = float(1 / std::sqrt(squares / a.width + a.eps));
      for (int i = 0; i < a.width; ++i) out[i] = from_float<T>(to_float(x[i]) * inverse * (to_float(weight[i]) + a.offset));
    }
    return cudaSuccess;
  });
}

extern "C" {

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }
int route(const RouteArgs* a) { return route_rows(*a, nullptr); }
int listed(const RouteArgs* a) { return list_rows(*a, nullptr); }
int up_few(const ExpertsUpArgs* a) { return experts_up_few(*a, nullptr); }
int up_many(const ExpertsUpArgs* a) { return experts_up_many(*a, nullptr); }
int down_few(const ExpertsDownArgs* a) { return experts_down_few(*a, nullptr); }
int down_many(const ExpertsDownArgs* a) {
  const int error = experts_down_many(*a, nullptr);
  return error ? error : experts_sum(*a, nullptr);
}
}
