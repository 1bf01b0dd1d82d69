// Which file has the kernels of a kind of codes, and what they take.
#include "coded_experts/checks.h"
#include "coded_experts/kinds.h"
#include "experts/activation.cuh"

namespace octavo {
namespace {

// Calls f with the kind of codes as a type.
template <class F>
cudaError_t with_kind(Codes kind, F&& f) {
  switch (kind) {
    case Codes::int4: return f(std::integral_constant<Codes, Codes::int4>{});
    case Codes::int8: return f(std::integral_constant<Codes, Codes::int8>{});
    case Codes::fp4: return f(std::integral_constant<Codes, Codes::fp4>{});
    case Codes::fp8: return f(std::integral_constant<Codes, Codes::fp8>{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t coded_experts_up_few(const CodedExpertsUpArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (!takes_choice(a) || !takes_activation(a.activation) ||
      !takes_codes(device, a.coded.matrix, a.matrix, is_gate(a.activation), a.chosen, a.x, a.x_stride))
    return cudaErrorInvalidValue;
  return with_kind(a.coded.matrix.kind, [&](auto kind) { return FewExperts<decltype(kind)::value>::up(a, device, stream); });
}

cudaError_t coded_experts_down_few(const CodedExpertsDownArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (!takes_choice(a) || !takes_codes(device, a.coded.matrix, a.matrix, false, a.chosen, a.x, a.x_stride))
    return cudaErrorInvalidValue;
  return with_kind(a.coded.matrix.kind, [&](auto kind) { return FewExperts<decltype(kind)::value>::down(a, device, stream); });
}

cudaError_t coded_experts_up_many(const CodedExpertsUpArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (!takes_activation(a.activation) ||
      !takes_codes(device, a.coded.matrix, a.matrix, is_gate(a.activation), a.chosen, a.x, a.x_stride) ||
      !in_units(a.out, a.out_stride))
    return cudaErrorInvalidValue;
  return with_kind(a.coded.matrix.kind, [&](auto kind) { return ManyExperts<decltype(kind)::value>::up(a, device, stream); });
}

cudaError_t coded_experts_down_many(const CodedExpertsDownArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (!takes_codes(device, a.coded.matrix, a.matrix, false, a.chosen, a.x, a.x_stride) || !in_units(a.parts, a.parts_stride))
    return cudaErrorInvalidValue;
  return with_kind(a.coded.matrix.kind, [&](auto kind) { return ManyExperts<decltype(kind)::value>::down(a, device, stream); });
}

}  // namespace octavo
