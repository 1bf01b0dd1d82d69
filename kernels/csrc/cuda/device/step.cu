// One step's inputs, unpacked from the message that the host sends: one block a sequence.
#include "device/common.cuh"
#include "device/step.h"

namespace octavo {
namespace {

constexpr int kThreads = 256;

// Moves of sequence i. Padding begins with zeros and leaves nothing.
__device__ void unpack_moves(const StepArgs& a, const StepHeader& header, int i, int thread) {
  const auto* sent = reinterpret_cast<const StepMove*>(a.message + header.sample_at + header.samples * (sizeof(StepSample) / 4));
  const auto* keeps = reinterpret_cast<const StepKeep*>(sent + header.sequences);
  StepMove move{};
  if (i < header.sequences) move = sent[i];
  else if (header.sequences > 0) move.first_keep = sent[header.sequences - 1].first_keep + sent[header.sequences - 1].keeps;
  if (thread == 0) {
    a.moves.read[i] = move.read, a.moves.write[i] = move.write;
    a.moves.keep_start[i + 1] = move.first_keep + move.keeps;
    if (i == 0) a.moves.keep_start[0] = 0;
  }
  for (int k = move.first_keep + thread; k < move.first_keep + move.keeps; k += kThreads)
    a.moves.keep_after[k] = keeps[k].after, a.moves.keep_slot[k] = keeps[k].slot;
}

// Blocks of one group of a sequence: `sent` go to its row of the tables, and all to its place in the batch.
__device__ void unpack_blocks(const StepArgs& a, const StepSequence& q, const int32_t* sent, int32_t* row, int32_t* place, int thread) {
  const int used = (q.context + a.block_size - 1) / a.block_size;
  for (int b = thread; b < used; b += kThreads) {
    const bool is_new = b >= q.first_block && b < q.first_block + q.blocks;
    const int32_t block = is_new ? sent[b - q.first_block] : row[b];
    if (is_new) row[b] = block;
    place[b] = block;
  }
}

__device__ int64_t slot_of(const int32_t* table, int position, int block_size) {
  return int64_t(table[position / block_size]) * block_size + position % block_size;
}

__global__ void __launch_bounds__(kThreads) unpack_kernel(const __grid_constant__ StepArgs a) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const StepHeader header = *reinterpret_cast<const StepHeader*>(a.message);
  const int i = blockIdx.x, thread = threadIdx.x;
  if (thread == 0)
    for (int s = i; s < max(header.samples, a.sequences); s += gridDim.x) {
      StepSample padding{};
      padding.row = s, padding.top_p = 1.0f;
      const StepSample* sent = reinterpret_cast<const StepSample*>(a.message + header.sample_at);
      const StepSample sample = s < header.samples ? sent[s] : padding;
      a.samples[s] = sample, a.sample_rows[s] = sample.row;
    }
  if (a.moves.read) unpack_moves(a, header, i, thread);
  if (i >= header.sequences) {  // padding: one token that is written nowhere and sees nothing
    if (thread == 0) {
      const int token = header.tokens + i - header.sequences;
      a.context_lens[i] = 0, a.query_start[i + 1] = token + 1, a.groups[i] = -1, a.prefix_lens[i] = 0;
      a.token_ids[token] = a.positions[token] = 0, a.slots[token] = -1, a.row_context[token] = 0;
      if (a.windows.slots) a.windows.slots[token] = -1;
    }
    return;
  }
  const StepSequence q = reinterpret_cast<const StepSequence*>(a.message + header.sequence_at)[i];
  const int64_t row = q.row * a.table_stride, place = i * a.table_stride;
  const int32_t* blocks = a.message + q.block_at;
  unpack_blocks(a, q, blocks, a.tables + row, a.block_tables + place, thread);
  if (a.windows.slots) unpack_blocks(a, q, blocks + q.blocks, a.windows.tables + row, a.windows.block_tables + place, thread);
  if (thread == 0) {
    a.context_lens[i] = q.context, a.groups[i] = q.group, a.prefix_lens[i] = q.prefix;
    a.query_start[i + 1] = q.query_start + q.queries;
    if (i == 0) a.query_start[0] = 0;
  }
  __syncthreads();
  for (int t = thread; t < q.queries; t += kThreads) {
    int64_t token = a.message[header.token_at + q.query_start + t];
    if (token < 0) token = max(a.previous[~token], int64_t(0));  // a sample without a token ends its sequence anyway
    const int position = q.context - q.queries + t;
    const int at = q.query_start + t;
    a.token_ids[at] = token;
    a.positions[at] = position, a.row_context[at] = q.row_context;
    a.slots[at] = slot_of(a.block_tables + place, position, a.block_size);
    if (a.windows.slots) a.windows.slots[at] = slot_of(a.windows.block_tables + place, position, a.block_size);
  }
}

// One side is the host's pinned memory, of which no cache may keep a copy.
__global__ void __launch_bounds__(kThreads) carry_kernel(const int32_t* from, int32_t* to, int64_t words) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < words) to[i] = __ldcv(from + i);
}

}  // namespace

cudaError_t carry(const int32_t* from, int32_t* to, int64_t words, cudaStream_t stream) {
  if (words > 0) carry_kernel<<<unsigned((words + kThreads - 1) / kThreads), kThreads, 0, stream>>>(from, to, words);
  return cudaGetLastError();
}

cudaError_t unpack_step(const StepArgs& a, cudaStream_t stream) {
  if (a.sequences == 0) return cudaSuccess;
  return launch_after(unpack_kernel, {dim3(unsigned(a.sequences)), kThreads}, stream, a);
}

}  // namespace octavo
