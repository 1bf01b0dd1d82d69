// Whole operations: the work of a call cut into tasks for the thread pool. What a task computes never depends on the
// number of threads.
#pragma once

#include <utility>
#include <vector>

#include "args.h"

namespace octavo {

void launch_write(const WriteArgs& a);
void launch_attention(const AttentionArgs& a);
void launch_linear(const LinearArgs& a);
void launch_quantised(const QuantisedArgs& a);
void launch_rms_norm(const NormArgs& a);
void launch_layer_norm(const NormArgs& a);
void launch_activation(const ActivationArgs& a);
void launch_adjust(const AdjustArgs& a);
void launch_sample(const SampleArgs& a);
void launch_logprobs(const LogprobArgs& a);
void launch_masses(const MassArgs& a);
void launch_sum(const SumArgs& a);
void launch_route(const RouteArgs& a);
// Products of one matrix of several experts: rows of x from `starts[e]` on meet the e-th part of the weight, of so many
// columns, depth, bias and all as `a` says; `out` has a row for each of x.
void launch_grouped_linear(const LinearArgs& a, const int32_t* starts, int experts);
void launch_grouped_quantised(const QuantisedArgs& a, const int32_t* starts, int experts);
void launch_combine(const CombineArgs& a);
void launch_recurrence(ConvolutionArgs convolution, RecurrenceArgs recurrence);
void launch_short_convolution(ConvolutionArgs convolution);
void launch_copy(char* cache, int64_t block_bytes, const int64_t* pairs, int64_t n);

}  // namespace octavo
