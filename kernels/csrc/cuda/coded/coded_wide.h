// The kernels of coded_wide.cuh, compiled apart for each kind of codes.
#pragma once

#include "coded/codes.cuh"

namespace octavo {

template <Codes kind>
cudaError_t coded_wide_of(const CodedArgs&, const CodedWideTile&, const CodedSizes&, const Device&, cudaStream_t);
template <>
cudaError_t coded_wide_of<Codes::int4>(const CodedArgs&, const CodedWideTile&, const CodedSizes&, const Device&, cudaStream_t);
template <>
cudaError_t coded_wide_of<Codes::int8>(const CodedArgs&, const CodedWideTile&, const CodedSizes&, const Device&, cudaStream_t);
template <>
cudaError_t coded_wide_of<Codes::fp4>(const CodedArgs&, const CodedWideTile&, const CodedSizes&, const Device&, cudaStream_t);
template <>
cudaError_t coded_wide_of<Codes::fp8>(const CodedArgs&, const CodedWideTile&, const CodedSizes&, const Device&, cudaStream_t);

}  // namespace octavo
