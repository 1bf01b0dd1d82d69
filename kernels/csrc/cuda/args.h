// What the Python module hands to the kernels: pointers, strides in elements, sizes, an element type and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "../operands.h"

namespace octavo {

// Attention walks a sequence in chunks that lie on absolute positions, so how a sequence is split depends on nothing
// but its own length, and a batch never changes a sequence's result.
inline constexpr int kChunk = 512;
inline constexpr int kRun = 4;      // chunks that are merged first, one after the other
inline constexpr int kRunDim = 128;  // the widest heads for that, and for warps that take items alone
inline constexpr int kSlice = 16;       // tokens that one warp takes at a time; block sizes are multiples of it
inline constexpr int kDecodeRows = 16;  // query rows (tokens x grouped heads) of one tensor-core tile

// A query of few rows after many cached tokens would keep few multiprocessors busy with whole tiles. Up to kSplitRows rows
// after kSplitContext tokens it is split along its keys, as decodes are: each part of kDecodeRows rows is to the decode
// kernel and to the fold a sequence of its own.
inline constexpr int kSplitRows = 128;
inline constexpr int kSplitContext = 1024;

// Groups of few query rows are the decode kernel's. Up to kFewTimes as many are few, too, as long as those of all such groups
// come to kFewItems items for each KV head: they run side by side, and what they read several times is little.
inline constexpr int kFewTimes = 2, kFewItems = 20;

// Query rows of a tile of the kernels for prompts: heads of 64 leave registers for three warpgroups.
constexpr int extend_rows(int head_dim) { return head_dim == 64 ? 192 : 128; }

// Query rows of a tile of the prefix kernel.
constexpr int prefix_rows(int head_dim) { return head_dim > 128 ? 64 : 128; }

// One chunk of one sequence that fits the decode kernel. `slot` is the place of its partial result; `chunks` counts those
// of the sequence. Or one chunk of a prefix for `group_rows` rows of a group: then `sequence` is one of the group's,
// `slot` the first of those rows in the list of rows, and `context` the length of the prefix.
struct DecodeItem {
  int sequence, chunk, slot, group_rows;
  int context, query_row, queries, chunks;
};

// One chunk of a prefix, or a run from `chunk` on, for `rows` rows of a group, from `first_row` of the list of rows on. Or
// one chunk of the keys that all queries of a split sequence see: then `first_row` is kOwnRows plus the first of its packed
// rows.
inline constexpr int kOwnRows = 1 << 30;
struct PrefixItem {
  int sequence, chunk, first_row, rows;
};

// What the plan notes of a group of sequences while it works.
struct GroupState {
  int rows, leader, next_row, padding;
};

// One query row of a group: its token, its place among the sequence's packed rows (token x grouped head), and the slot of the
// sequence's first chunk.
struct alignas(16) GroupRow {
  int token, row, first_slot, padding;
};

// One tile of packed query rows of a longer query.
struct ExtendItem {
  int sequence, tile, context, query_row;
  int queries, padding[3];
};

// What the last step of decoding folds for one sequence: `chunks` partial results from `first_slot` on, and as many for
// each further part of its queries. The first `runs` runs of kRun chunks may be merged by the decode kernel already, or the
// first `shared_runs` by the prefix kernel, in their first slots.
struct alignas(16) FoldItem {
  int first_slot, chunks, query_row, queries;
  int runs, shared_runs, padding[2];
};

struct PlanHeader {
  int tiles_left;  // of a launch of the prefix kernel, whose registers do without an address if it comes first; zero between
  int decode_items, extend_items, prefix_items;
  int next_decode;  // how many items of a launch have been handed out beyond those of each block; zero between
  int decode_tokens;  // that the decode items cover
  int runs, first_run;  // so many times kRun items, from `first_run` on, are a run of chunks of one sequence
  int alone;            // whether the items are so many and so short that warps take them alone
  int prefix_runs;      // so many prefix items, which come first, are runs of kRun chunks
};

struct PlanArgs {
  const int32_t *context_lens, *query_start;
  int sequences, group, window;
  const int32_t *groups, *prefix_lens;  // null: none; group of each sequence or -1, shared tokens of each group
  int decode_rows;  // of one part
  int head_dim, kv_heads;
  PlanHeader* header;
  DecodeItem* decode;
  FoldItem* folds;  // [sequence_capacity]
  ExtendItem* extend;
  PrefixItem* prefix;        // [decode_capacity]
  GroupState* group_states;  // [sequence_capacity]
  GroupRow* rows;            // of all groups: kSplitRows or decode_rows a sequence, whichever is more
  int few_rows;              // a group with more rows than these goes to the prefix kernel
  int run_blocks;            // of the decode kernel, each of which has as many runs
  int alone_items;           // from so many on warps take short ones alone
  int run_multiprocessors;   // those of a chip whose prefix kernel merges runs; otherwise 0
  int decode_capacity, extend_capacity, sequence_capacity;
};

// A block of one layer holds, for each KV head, K [block_size][head_dim] and V [block_size][head_dim]. Inside a row the
// 16-byte units are permuted (`swizzle` in common.cuh), so a slice copied as it is lies free of bank conflicts in shared
// memory.
struct AttentionArgs : AttentionOperands {
  PlanHeader* header;
  const DecodeItem* decode;
  const FoldItem* folds;  // [sequences]
  const ExtendItem* extend;
  const PrefixItem* prefix;  // null: no groups
  const GroupRow* rows;
  float* partial;      // [slots][kv_heads][partial_rows][head_dim], then [slots][kv_heads][partial_rows][2]
  float* partial_sums;
  int partial_rows;
  bool decodes, extends;  // which lists the plan has
  bool settled;           // keys and values of tokens before the queries are older than the stream's previous kernel
};

// All of a decode step's attention. Of `attention`, q is not used: the rotated queries stay in the chip.
struct DecodeStepArgs {
  WriteArgs write;
  AttentionArgs attention;
  int32_t* arrivals;  // [sequences][kv_heads], zero between launches
};

struct LinearArgs {
  Dtype dtype;
  const void* weight;
  int64_t weight_stride;
  int columns, depth;
  bool gated;  // [gate; up], for activation(x gate^T) * (x up^T), [rows, columns / 2]
  const void* x;
  int64_t x_stride;
  int rows;
  const void *bias, *residual;  // null: none
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
  Activation activation;
  const void* norm;  // null: none; otherwise the product is that of x's RMS norm, with these weights
  float eps, offset;
  unsigned* counter;  // null: none; one zero, which is zero again when the launch has ended, for one stream
};

struct SampleArgs {
  Dtype dtype;
  const void* logits;
  int64_t stride, rows;
  int vocab;
  const int64_t* seeds;
  const int32_t *indices, *positions;
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p;
  int64_t* tokens;
};

// Of the message about rows of logits: a row's parameters, then its `entries` from `first` of the list on.
struct AdjustRow {
  int32_t first, entries;
  float repetition, presence, frequency;
  int32_t masked;
};
inline constexpr int32_t kSeen = 1, kForbidden = 2;
struct AdjustEntry {
  int32_t token;
  float bias;
  int32_t count, flags;
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

// A step's message: a header, then records, then block ids; 32-bit words, places count words from the header on.
struct StepHeader {
  int32_t sequences, tokens, samples;
  int32_t sequence_at, token_at, sample_at;  // a token below zero is ~i: what sample i of the previous step chose
};
struct StepSequence {
  int32_t row, context, query_start, queries;
  int32_t first_block, blocks, block_at;  // `blocks` ids at `block_at` go to the row's table from `first_block` on
  int32_t group, prefix;                  // its group, -1 for none; what group i of record i shares, in tokens
};
struct StepSample {
  uint32_t seed_low, seed_high;
  int32_t row, index, position;
  float temperature;
  int32_t top_k;
  float top_p, min_p;
};

struct StepArgs {
  const int32_t* message;
  int32_t* tables;  // [rows][table_stride], kept from step to step
  int64_t table_stride;
  const int64_t* previous;
  int sequences;  // with padding
  int block_size;
  int64_t *token_ids, *positions, *slots;
  int32_t *block_tables, *context_lens, *query_start, *groups, *prefix_lens;  // block_tables has the rows' stride, too
  int64_t *sample_rows, *seeds;
  int32_t *indices, *sample_positions;
  float* temperature;
  int32_t* top_k;
  float *top_p, *min_p;
};

// Each returns the error of its launch. A shape that a kernel does not cover is cudaErrorInvalidValue.
cudaError_t plan_attention(const PlanArgs&, cudaStream_t);
cudaError_t decode_attention(const AttentionArgs&, cudaStream_t);
cudaError_t prefix_attention(const AttentionArgs&, cudaStream_t);
cudaError_t extend_attention(const AttentionArgs&, cudaStream_t);
// What those three do not take: float32, other head dims, other cells. No groups.
cudaError_t simt_attention(const AttentionArgs&, bool decodes, bool extends, cudaStream_t);
cudaError_t write_cache(const WriteArgs&, cudaStream_t);
cudaError_t simt_write(const WriteArgs&, cudaStream_t);  // what that one does not take
// write_cache, then decode_attention, of sequences with one query each; cudaErrorNotSupported: launched nothing
cudaError_t decode_step(const DecodeStepArgs&, cudaStream_t);
cudaError_t copy_blocks(void* cache, int64_t block_bytes, const int64_t* pairs, int64_t count, cudaStream_t);
cudaError_t rms_norm(const NormArgs&, cudaStream_t);
cudaError_t layer_norm(const NormArgs&, cudaStream_t);
cudaError_t sample(const SampleArgs&, cudaStream_t);
cudaError_t adjust(const AdjustArgs&, cudaStream_t);
cudaError_t logprobs(const LogprobArgs&, cudaStream_t);
cudaError_t activation(const ActivationArgs&, cudaStream_t);
cudaError_t unpack_step(const StepArgs&, cudaStream_t);
// Copies words between pinned and device memory by a kernel, which begins sooner than a copy engine.
cudaError_t carry(const int32_t* from, int32_t* to, int64_t words, cudaStream_t);
// One asynchronous copy a pair (source block, target block), of `block_bytes` each.
cudaError_t swap_blocks(const void* source, void* target, int64_t block_bytes, const int64_t* pairs, int64_t count,
                        cudaStream_t);
cudaError_t linear_uniform(const LinearArgs&, cudaStream_t);  // in builds for 90a, on Hopper
// In builds for 90a: parts of the product along its depth, out being float32 [parts, rows, columns].
cudaError_t linear_parts(const LinearArgs&, int parts, cudaStream_t);
cudaError_t linear_row(const LinearArgs&, cudaStream_t);  // what `linear` does with one row: a kernel of its own
cudaError_t linear(const LinearArgs&, cudaStream_t);  // cudaErrorNotSupported: launched nothing, another is to do it

}  // namespace octavo
