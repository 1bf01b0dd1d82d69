// The kernels of one kind of codes.
#pragma once

#include "coded_experts/few_down.cuh"
#include "coded_experts/few_up.cuh"
#include "coded_experts/kinds.h"
#include "coded_experts/many.cuh"

namespace octavo {
namespace {

// Calls f with the groups of a brick as a type, where there are kernels for these.
template <Codes kind, class F>
cudaError_t with_groups(int groups, F&& f) {
  return with_codes(kind, groups, [&](auto of, auto number) {
    if constexpr (decltype(of)::value == kind) return f(number);
    else return cudaErrorInvalidValue;
  });
}

}  // namespace

template <Codes kind>
cudaError_t CodedExperts<kind>::up_few(const CodedExpertsUpArgs& a, int groups, const Device& device, cudaStream_t stream) {
  return with_groups<kind>(groups, [&](auto n) { return launch_up_few<kind, decltype(n)::value>(a, device, stream); });
}
template <Codes kind>
cudaError_t CodedExperts<kind>::down_few(const CodedExpertsDownArgs& a, int groups, const Device& device, cudaStream_t stream) {
  return with_groups<kind>(groups, [&](auto n) { return launch_down_few<kind, decltype(n)::value>(a, device, stream); });
}
template <Codes kind>
cudaError_t CodedExperts<kind>::up_many(const CodedExpertsUpArgs& a, int groups, const Device& device, cudaStream_t stream) {
  const CodedManyArgs many{a.matrix, a.coded.zeros != nullptr, sizes_of(a.coded).grouping.shift, a.x, a.x_stride, a.sources,
                           a.starts, a.activation, a.clamped, a.out, a.out_stride};
  return with_groups<kind>(groups, [&](auto n) {
    return launch_many<kind, decltype(n)::value, End::gated>(a.dtype, many, a.coded, a.rows, a.chosen, device, stream);
  });
}
template <Codes kind>
cudaError_t CodedExperts<kind>::down_many(const CodedExpertsDownArgs& a, int groups, const Device& device, cudaStream_t stream) {
  const CodedManyArgs many{a.matrix, a.coded.zeros != nullptr, sizes_of(a.coded).grouping.shift, a.x, a.x_stride, nullptr,
                           a.lists.starts, 0, 0.0f, a.parts, a.parts_stride};
  return with_groups<kind>(groups, [&](auto n) {
    return launch_many<kind, decltype(n)::value, End::plain>(a.dtype, many, a.coded, a.rows, a.chosen, device, stream);
  });
}

}  // namespace octavo
