// The kernels for a few rows of one kind of codes.
#pragma once

#include "coded_experts/few_down.cuh"
#include "coded_experts/few_up.cuh"
#include "coded_experts/groups.cuh"
#include "coded_experts/kinds.h"

namespace octavo {

template <Codes kind>
cudaError_t FewExperts<kind>::up(const CodedExpertsUpArgs& a, const Device& device, cudaStream_t stream) {
  return with_groups<kind>(a.coded, [&](auto groups, auto scale) {
    return launch_up_few<kind, decltype(groups)::value, decltype(scale)>(a, device, stream);
  });
}
template <Codes kind>
cudaError_t FewExperts<kind>::down(const CodedExpertsDownArgs& a, const Device& device, cudaStream_t stream) {
  return with_groups<kind>(a.coded, [&](auto groups, auto scale) {
    return launch_down_few<kind, decltype(groups)::value, decltype(scale)>(a, device, stream);
  });
}

}  // namespace octavo
