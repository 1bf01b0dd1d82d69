// The kernels of coded_tiles.cuh, compiled apart for each kind of codes.
#pragma once

#include "coded/codes.cuh"

namespace octavo {

template <Codes kind>
cudaError_t coded_tiles_of(const CodedArgs&, const CodedTile&, const CodedSizes&, cudaStream_t);
template <>
cudaError_t coded_tiles_of<Codes::int4>(const CodedArgs&, const CodedTile&, const CodedSizes&, cudaStream_t);
template <>
cudaError_t coded_tiles_of<Codes::int8>(const CodedArgs&, const CodedTile&, const CodedSizes&, cudaStream_t);
template <>
cudaError_t coded_tiles_of<Codes::fp4>(const CodedArgs&, const CodedTile&, const CodedSizes&, cudaStream_t);
template <>
cudaError_t coded_tiles_of<Codes::fp8>(const CodedArgs&, const CodedTile&, const CodedSizes&, cudaStream_t);

}  // namespace octavo
