// Rows' sums of what their experts made of them: by ascending expert, in float32, then the shared expert; and the residual behind
// their multiple.
#include "experts/checks.h"
#include "linear/norm.cuh"

namespace octavo {
namespace {

constexpr int kThreads = 128, kVector = 8, kAtOnce = 16;

// Eight columns of a row.
template <class T>
struct RowSum {
  const ExpertsDownArgs& a;
  const int64_t row;
  const int column;
  int places[kAtOnce];
  float weights[kAtOnce], sum[kVector] = {};

  __device__ RowSum(const ExpertsDownArgs& args, int64_t at, int vectors)
      : a(args), row(at / vectors), column(int(at % vectors) * kVector) {}

  __device__ static uint4 vector(const void* data, int64_t offset) {
    return __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(data) + offset));
  }
  __device__ uint4 residual() const {
    return a.residual ? vector(a.residual, row * a.residual_stride + column) : make_uint4(0, 0, 0, 0);
  }
  // Of its experts from `first` on.
  __device__ void look_up(int first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool there = first + j < a.chosen;
      places[j] = there ? __ldcg(a.lists.places + row * a.chosen + first + j) : -1;
      weights[j] = there ? __ldcg(a.lists.weights + row * a.chosen + first + j) : 0.0f;
    }
  }
  __device__ void add(const uint4& raw, float weight) {
    float x[kVector];
    widen<T>(raw, x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = __fmaf_rn(weight, x[i], sum[i]);
  }
  __device__ void add_parts() {
    uint4 raw[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      raw[j] = places[j] < 0 ? make_uint4(0, 0, 0, 0) : vector(a.parts, places[j] * a.parts_stride + column);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) add(raw[j], places[j] < 0 ? 0.0f : weights[j]);
  }
  __device__ void store(const uint4& residual) {
    float x[kVector];
    widen<T>(residual, x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = __fmaf_rn(a.factor, sum[i], x[i]);
    *reinterpret_cast<uint4*>(static_cast<T*>(a.out) + row * a.out_stride + column) = narrow<T>(sum);
  }
};

// Lists and residual are older than the previous kernel. Loads behind it are all under way together.
template <class T>
__global__ void __launch_bounds__(kThreads) experts_sum_kernel(const __grid_constant__ ExpertsDownArgs a) {
  const int vectors = a.matrix.columns / kVector;
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= int64_t(a.rows) * vectors) return;
  RowSum<T> own(a, at, vectors);
  own.look_up(0);
  const uint4 residual = own.residual();
  wait_for_previous_kernel();
  launch_next_kernel();
  const uint4 shared = a.shared ? own.vector(a.shared, own.row * a.shared_stride + own.column) : make_uint4(0, 0, 0, 0);
  const float gate = a.gates ? __ldcg(a.gates + own.row) : 1.0f;
  own.add_parts();
  for (int first = kAtOnce; first < a.chosen; first += kAtOnce) own.look_up(first), own.add_parts();
  if (a.shared) own.add(shared, gate);
  own.store(residual);
}

}  // namespace

cudaError_t experts_sum(const ExpertsDownArgs& a, cudaStream_t stream) {
  if (a.chosen > kMostChosen || a.matrix.columns % kVector || !in_units(a.parts, a.parts_stride) || !in_units(a.out, a.out_stride) ||
      !in_units(a.shared, a.shared_stride) || !in_units(a.residual, a.residual_stride))
    return cudaErrorInvalidValue;
  const int64_t vectors = int64_t(a.rows) * (a.matrix.columns / kVector);
  return with_half(a.dtype, [&](auto tag) {
    return launch_after(experts_sum_kernel<decltype(tag)>, {dim3(unsigned((vectors + kThreads - 1) / kThreads)), kThreads}, stream, a);
  });
}

}  // namespace octavo
