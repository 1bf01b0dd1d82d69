// The kernels of one kind of codes.
#pragma once

#include "coded_experts/few_down.cuh"
#include "coded_experts/few_up.cuh"
#include "coded_experts/kinds.h"
#include "coded_experts/many.cuh"

namespace octavo {
namespace {

// Short scales have kernels where checkpoints have such.
constexpr bool may_be_short(Codes kind, int groups) { return kind == Codes::int4 || groups == 4 || kind == Codes::fp8; }

// Calls f with the groups of a brick and the type of scales, where there are kernels for these.
template <Codes kind, class F>
cudaError_t with_groups(const CodedExpertStrips& strips, int groups, F&& f) {
  return with_codes(kind, groups, [&](auto of, auto number) {
    if constexpr (decltype(of)::value == kind) {
      if constexpr (may_be_short(kind, decltype(number)::value))
        if (strips.short_scales) return f(number, ShortScale{});
      return strips.short_scales ? cudaErrorInvalidValue : f(number, LongScale{});
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace

template <Codes kind>
cudaError_t CodedExperts<kind>::up_few(const CodedExpertsUpArgs& a, int groups, const Device& device, cudaStream_t stream) {
  return with_groups<kind>(a.coded, groups, [&](auto n, auto scale) { return launch_up_few<kind, decltype(n)::value, decltype(scale)>(a, device, stream); });
}
template <Codes kind>
cudaError_t CodedExperts<kind>::down_few(const CodedExpertsDownArgs& a, int groups, const Device& device, cudaStream_t stream) {
  return with_groups<kind>(a.coded, groups, [&](auto n, auto scale) { return launch_down_few<kind, decltype(n)::value, decltype(scale)>(a, device, stream); });
}
template <Codes kind>
cudaError_t CodedExperts<kind>::up_many(const CodedExpertsUpArgs& a, int groups, const Device& device, cudaStream_t stream) {
  const CodedManyArgs many{a.matrix, a.coded.matrix.zeros != nullptr, sizes_of(a.coded.matrix).grouping.shift, a.x, a.x_stride, a.sources,
                           a.starts, a.activation, a.clamped, a.out, a.out_stride};
  return with_groups<kind>(a.coded, groups, [&](auto n, auto scale) {
    return launch_many<kind, decltype(n)::value, End::gated, decltype(scale)>(a.dtype, many, a.coded.matrix, a.rows, a.chosen, device, stream);
  });
}
template <Codes kind>
cudaError_t CodedExperts<kind>::down_many(const CodedExpertsDownArgs& a, int groups, const Device& device, cudaStream_t stream) {
  const CodedManyArgs many{a.matrix, a.coded.matrix.zeros != nullptr, sizes_of(a.coded.matrix).grouping.shift, a.x, a.x_stride, nullptr,
                           a.lists.starts, 0, 0.0f, a.parts, a.parts_stride};
  return with_groups<kind>(a.coded, groups, [&](auto n, auto scale) {
    return launch_many<kind, decltype(n)::value, End::plain, decltype(scale)>(a.dtype, many, a.coded.matrix, a.rows, a.chosen, device, stream);
  });
}

}  // namespace octavo
