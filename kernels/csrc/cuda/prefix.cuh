// What the two kernels for shared prefixes know of each other.
#pragma once

#include "args.h"

namespace octavo {

// The kernel for Hopper, in builds for 90a. cudaErrorInvalidValue: it does not cover these arguments.
cudaError_t prefix_attention_wgmma(const AttentionArgs&, cudaStream_t);

}  // namespace octavo
