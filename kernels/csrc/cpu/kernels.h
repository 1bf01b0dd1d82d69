// All kernels of one instruction-set level. Include a simd_*.h header (and specialisations) first.
#pragma once

#include "activation.h"
#include "attention.h"
#include "cache.h"
#include "combine.h"
#include "linear.h"
#include "norm.h"
#include "quantised.h"
#include "recurrent.h"
#include "sample.h"

namespace octavo {
namespace {

constexpr Kernels level_kernels() {
  return {write,  attention_rows, attention_scratch, attention_partial, attention, attention_merge, linear_plan,
          linear_pack, linear, quantised_plan, quantised_pack, quantised, rms_norm, layer_norm, activation, sample, logprobs,
          masses, sum, combine, convolve, recurrence_prepare, recurrence_advance, recurrence_finish};
}

}  // namespace
}  // namespace octavo
