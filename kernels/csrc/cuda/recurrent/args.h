// Arguments of recurrent layers: what lies between a layer's two products (octavo_kernels/recurrent).
#pragma once

#include <cuda_runtime_api.h>

#include "operands.h"

namespace octavo {

// Slots of a step's sequences, which begin at `query_start`: `Moves` of octavo_kernels/recurrent/operands.py.
struct Moves {
  int sequences;
  const int32_t *query_start, *read, *write, *keep_start, *keep_after, *keep_slot;
};
// A layer's part of slot 0, and elements from one slot to the next.
struct Slots {
  void* data;
  int64_t stride;
};
struct Convolution {
  const void *weight, *bias;  // [taps][channels], [channels]; no bias: null
  int taps, channels;
};
struct GatedNorm {
  const float* weight;  // null: the gate alone
  int group;
  float eps;
  bool gate_first;
};
// Rows of a step, columns of the convolution, and what a step does with them: the same for every kind of layer.
struct RecurrentArgs {
  Dtype dtype;
  const void* x;
  int64_t x_stride;
  int rows;
  Slots columns;
  Moves moves;
  Convolution convolution;
  void* out;
  int64_t out_stride;
};

// Room for what chunks of prompts are made into (chunk.h); null: every token is walked.
struct ChunkRoom {
  void* data;
  int64_t bytes;
  int tiles;  // chunks at a time
};

struct DeltaArgs {
  RecurrentArgs step;
  Slots matrices;
  GatedNorm norm;
  int key_heads, heads, key_dim, value_dim;
  const float *rates, *dt_bias;
  float beta_scale;
  int cut;  // into blocks, 1 to 5 (delta.cu); 0: as the step needs it. No bit depends on it
  ChunkRoom room;
};

struct SsmArgs {
  RecurrentArgs step;
  Slots matrices;
  GatedNorm norm;
  int groups, heads, size, head_dim;
  const float *rates, *dt_bias, *skip;
  float least, most;  // of dt
  float* y;           // [rows][heads * head_dim]: room for what the recurrence makes
  ChunkRoom room;
};

// All of these refuse by cudaErrorInvalidValue what they do not take, and need Hopper. Words of `Moves`, matrices and weights must
// be older than the stream's previous kernel.
cudaError_t delta_step(const DeltaArgs&, cudaStream_t);
// In two launches: heads share the convolution's columns, and groups of a norm may be whole rows.
cudaError_t ssm_step(const SsmArgs&, cudaStream_t);
cudaError_t conv_step(const RecurrentArgs&, cudaStream_t);

}  // namespace octavo
