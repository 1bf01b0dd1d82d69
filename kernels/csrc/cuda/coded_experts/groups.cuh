// The forms of codes that experts' kernels are compiled for.
#pragma once

#include "coded_experts/checks.h"

namespace octavo {

// Short scales have kernels where checkpoints have such.
constexpr bool may_be_short(Codes kind, int groups) { return kind == Codes::int4 || groups == 4 || kind == Codes::fp8; }

// Calls f with the groups of a brick and the type of scales, where there are kernels for these.
template <Codes kind, class F>
cudaError_t with_groups(const CodedExpertStrips& strips, F&& f) {
  return with_codes(kind, sizes_of(strips.matrix).grouping.of_brick, [&](auto of, auto groups) {
    if constexpr (decltype(of)::value == kind) {
      if constexpr (may_be_short(kind, decltype(groups)::value))
        if (strips.short_scales) return f(groups, ShortScale{});
      return strips.short_scales ? cudaErrorInvalidValue : f(groups, LongScale{});
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace octavo
