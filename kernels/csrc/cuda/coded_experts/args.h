// Arguments of mixtures whose experts' matrices are codes.
#pragma once

#include "coded/args.h"
#include "experts/args.h"

namespace octavo {

// Strips of all experts, one expert's below the other's; `columns` are those of one. `scales` may be bfloat16 where each of them
// is a number of it below 2^32: of four-bit integers, of four-bit floats in groups of 32, and of eight-bit floats.
struct CodedExpertStrips {
  CodedMatrix matrix;
  bool short_scales;
};

// `matrix.weight` and `matrix.stride` of the operands are not for these.
struct CodedExpertsUpArgs : ExpertsUpArgs {
  CodedExpertStrips coded;
};
struct CodedExpertsDownArgs : ExpertsDownArgs {
  CodedExpertStrips coded;
};

// All of these refuse by cudaErrorInvalidValue what they do not take, and need code for 90a. Columns of an expert (of each half,
// of the first product) are whole strips.
cudaError_t coded_experts_up_few(const CodedExpertsUpArgs&, cudaStream_t);
cudaError_t coded_experts_down_few(const CodedExpertsDownArgs&, cudaStream_t);
cudaError_t coded_experts_up_many(const CodedExpertsUpArgs&, cudaStream_t);
cudaError_t coded_experts_down_many(const CodedExpertsDownArgs&, cudaStream_t);  // makes `parts`

}  // namespace octavo
