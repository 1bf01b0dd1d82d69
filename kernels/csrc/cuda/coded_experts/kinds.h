// The kernels of this folder, compiled apart for each kind of codes.
#pragma once

#include "coded_experts/args.h"
#include "device/common.cuh"

namespace octavo {

template <Codes kind>
struct FewExperts {
  static cudaError_t up(const CodedExpertsUpArgs&, const Device&, cudaStream_t);
  static cudaError_t down(const CodedExpertsDownArgs&, const Device&, cudaStream_t);
};
template <Codes kind>
struct ManyExperts {
  static cudaError_t up(const CodedExpertsUpArgs&, const Device&, cudaStream_t);
  static cudaError_t down(const CodedExpertsDownArgs&, const Device&, cudaStream_t);
};

}  // namespace octavo
