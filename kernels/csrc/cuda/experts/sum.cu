// Rows' sums of what their experts made of them: by ascending expert, in float32, then the shared expert; and the residual behind
// their multiple.
#include "experts/checks.h"
#include "linear/norm.cuh"

namespace octavo {
namespace {

constexpr int kThreads = 256, kVector = 8, kAtOnce = 4;

// A thread has eight columns of a row.
template <class T>
__global__ void __launch_bounds__(kThreads) experts_sum_kernel(const __grid_constant__ ExpertsDownArgs a) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int vectors = a.matrix.columns / kVector;
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x, row = at / vectors;
  const int column = int(at % vectors) * kVector;
  if (row >= a.rows) return;
  const auto vector = [&](const void* data, int64_t offset) {
    return __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(data) + offset));
  };
  const int32_t* places = a.lists.places + row * a.chosen;
  const float* weights = a.lists.weights + row * a.chosen;
  float sum[kVector] = {};
  const auto add = [&](const uint4& raw, float weight) {
    float x[kVector];
    widen<T>(raw, x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] = __fmaf_rn(weight, x[i], sum[i]);
  };
  for (int first = 0; first < a.chosen; first += kAtOnce) {
    uint4 raw[kAtOnce];
    float weight[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int place = first + j < a.chosen ? __ldcg(places + first + j) : -1;
      weight[j] = place < 0 ? 0.0f : __ldcg(weights + first + j);
      raw[j] = place < 0 ? make_uint4(0, 0, 0, 0) : vector(a.parts, place * a.parts_stride + column);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) add(raw[j], weight[j]);
  }
  if (a.shared) add(vector(a.shared, row * a.shared_stride + column), a.gates ? __ldcg(a.gates + row) : 1.0f);
  float residual[kVector] = {};
  if (a.residual) widen<T>(vector(a.residual, row * a.residual_stride + column), residual);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum[i] = __fmaf_rn(a.factor, sum[i], residual[i]);
  *reinterpret_cast<uint4*>(static_cast<T*>(a.out) + row * a.out_stride + column) = narrow<T>(sum);
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
