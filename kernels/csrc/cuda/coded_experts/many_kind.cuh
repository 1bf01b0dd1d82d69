// The kernels for many rows of one kind of codes.
#pragma once

#include "coded_experts/groups.cuh"
#include "coded_experts/kinds.h"
#include "coded_experts/many.cuh"

namespace octavo {

template <Codes kind>
cudaError_t ManyExperts<kind>::up(const CodedExpertsUpArgs& a, const Device& device, cudaStream_t stream) {
  const CodedMatrix& m = a.coded.matrix;
  const CodedManyArgs many{a.matrix, m.zeros != nullptr, sizes_of(m).grouping.shift, a.x, a.x_stride, a.sources, a.starts,
                           a.activation, a.clamped, a.out, a.out_stride};
  return with_groups<kind>(a.coded, [&](auto groups, auto scale) {
    constexpr auto with_gate = launch_many<kind, decltype(groups)::value, End::gated, decltype(scale)>;
    constexpr auto without = launch_many<kind, decltype(groups)::value, End::plain, decltype(scale)>;
    return (is_gate(a.activation) ? with_gate : without)(a.dtype, many, m, a.rows, a.chosen, device, stream);
  });
}
template <Codes kind>
cudaError_t ManyExperts<kind>::down(const CodedExpertsDownArgs& a, const Device& device, cudaStream_t stream) {
  const CodedMatrix& m = a.coded.matrix;
  const CodedManyArgs many{a.matrix, m.zeros != nullptr, sizes_of(m).grouping.shift, a.x, a.x_stride, nullptr, a.lists.starts,
                           0, 0.0f, a.parts, a.parts_stride};
  return with_groups<kind>(a.coded, [&](auto groups, auto scale) {
    return launch_many<kind, decltype(groups)::value, End::plain, decltype(scale)>(a.dtype, many, m, a.rows, a.chosen, device,
                                                                                     stream);
  });
}

}  // namespace octavo
