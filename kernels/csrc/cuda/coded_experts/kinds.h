// The kernels of this folder, compiled apart for each kind of codes.
#pragma once

#include "coded_experts/args.h"
#include "device/common.cuh"

namespace octavo {

template <Codes kind>
struct CodedExperts {
  static cudaError_t up_few(const CodedExpertsUpArgs&, int groups, const Device&, cudaStream_t);
  static cudaError_t down_few(const CodedExpertsDownArgs&, int groups, const Device&, cudaStream_t);
  static cudaError_t up_many(const CodedExpertsUpArgs&, int groups, const Device&, cudaStream_t);
  static cudaError_t down_many(const CodedExpertsDownArgs&, int groups, const Device&, cudaStream_t);
};

}  // namespace octavo
