// A step's inputs, unpacked from the host's message.
#pragma once

#include <cuda_runtime_api.h>

#include "messages.h"

namespace octavo {

// Where moves of states go: `Moves` of recurrent/args.h, as the kernels of recurrent layers read them. No states: all null.
struct StepMoves {
  int32_t *read, *write, *keep_start, *keep_after, *keep_slot;
};

// Where blocks of layers with a window go, in a model that keeps them apart. One group of blocks: all null.
struct StepWindows {
  int32_t *tables, *block_tables;  // as those of the first group, with their stride
  int64_t* slots;
};

struct StepArgs {
  const int32_t* message;
  int32_t* tables;  // [rows][table_stride], kept from step to step
  int64_t table_stride;
  const int64_t* previous;
  int sequences;  // with padding
  int block_size;
  int64_t *token_ids, *positions, *slots;
  int32_t *block_tables, *context_lens, *query_start, *groups, *prefix_lens, *row_context;  // block_tables has the rows' stride, too
  int64_t* sample_rows;
  StepSample* samples;
  StepMoves moves;
  StepWindows windows;
};

cudaError_t unpack_step(const StepArgs&, cudaStream_t);
// Copies words between pinned and device memory by a kernel, which begins sooner than a copy engine.
cudaError_t carry(const int32_t* from, int32_t* to, int64_t words, cudaStream_t);

}  // namespace octavo
