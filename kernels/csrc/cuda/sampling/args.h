// Arguments of sampling, and of the adjustment of logits before it.
#pragma once

#include <cuda_runtime_api.h>

#include "messages.h"
#include "operands.h"

namespace octavo {

struct SampleArgs {
  Dtype dtype;
  const void* logits;
  int64_t stride, rows;
  int vocab;
  const StepSample* samples;  // [rows]
  int64_t* tokens;
  // A part of the vocabulary: its first token, a multiple of 4, and where its candidates go instead, chosen without
  // filters; null: the row is whole.
  int first = 0;
  uint64_t* reached = nullptr;
};

struct BestPartArgs {
  const uint64_t* reached;  // [parts, rows]
  int64_t parts, rows;
  int64_t* tokens;
};

struct AdjustArgs {
  float* logits;
  int64_t stride, rows;
  int vocab;
  const int32_t* message;  // [rows] of AdjustRow, then entries
  const int64_t* latest;   // null: none; one more token of each row's output, or -1
  const int32_t* allowed;  // null: none; one bit a token
  int64_t allowed_stride;
};

struct LogprobArgs {
  Dtype dtype;
  const void* logits;
  int64_t stride, rows;
  int vocab;
  const int64_t* tokens;
  int top;
  float* chosen;     // [rows]
  int64_t* top_ids;  // [rows, top]
  float* top_values;
};

cudaError_t sample(const SampleArgs&, cudaStream_t);
cudaError_t best_part(const BestPartArgs&, cudaStream_t);
cudaError_t adjust(const AdjustArgs&, cudaStream_t);
cudaError_t logprobs(const LogprobArgs&, cudaStream_t);

}  // namespace octavo
