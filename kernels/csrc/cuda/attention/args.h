// Arguments of attention, and the work lists that the plan kernel writes for it.
#pragma once

#include <cuda_runtime_api.h>

#include "operands.h"

namespace octavo {

// Attention walks a sequence in chunks that lie on absolute positions, so how a sequence is split depends on nothing
// but its own length, and a batch never changes a sequence's result.
inline constexpr int kChunk = 512;
inline constexpr int kRun = 4;      // chunks that are merged first, one after the other
inline constexpr int kRunDim = 128;  // the widest heads for that, and for warps that take items alone
inline constexpr int kSlice = 16;       // tokens that one warp takes at a time; block sizes are multiples of it
inline constexpr int kDecodeRows = 16;  // query rows (tokens x grouped heads) of one tensor-core tile

// A query of few rows would keep few multiprocessors busy with whole tiles. Up to kFewRows rows, or kSplitRows after
// kSplitContext tokens, it is split along its keys, as decodes are: each part of kDecodeRows rows is to the decode kernel and
// to the fold a sequence of its own.
inline constexpr int kFewRows = 32;
inline constexpr int kSplitRows = 128;
inline constexpr int kSplitContext = 1024;
constexpr bool is_split(int context, int queries, int group) {
  return queries * group <= (context - queries >= kSplitContext ? kSplitRows : kFewRows);
}

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

// The plan's notes on a group of sequences while it works.
struct GroupState {
  int rows, leader, next_row, padding;
};

// One query row of a group: its token, its place among the sequence's packed rows (token x grouped head), and the slot of the
// sequence's first chunk.
struct alignas(16) GroupRow {
  int token, row, first_partial, padding;
};

// One tile of packed query rows of a longer query.
struct ExtendItem {
  int sequence, tile, context, query_row;
  int queries, padding[3];
};

// The fold of one sequence, the last step of decoding: `chunks` partial results from `first_partial` on, and as many for
// each further part of its queries. The first `runs` runs of kRun chunks may be merged by the decode kernel already, or the
// first `shared_runs` by the prefix kernel, in their first slots.
struct alignas(16) FoldItem {
  int first_partial, chunks, query_row, queries;
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

// A block of one layer holds, for each KV head, K [block_size][head_dim] and V [block_size][head_dim]. Inside a row the
// 16-byte units are permuted (`swizzle` in elements.cuh), so a slice copied as it is lies free of bank conflicts in shared
// memory.
struct AttentionArgs : AttentionOperands {
  int value_dim;  // that of the heads, but where values are the first elements of keys
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
  bool history_ready;     // keys and values of tokens before the queries are older than the stream's previous kernel
};

// All of a decode step's attention. Of `attention`, q is not used: the rotated queries stay in the chip.
struct DecodeStepArgs {
  WriteArgs write;
  AttentionArgs attention;
  int32_t* arrivals;  // [sequences][kv_heads], zero between launches
};

// A launch of a shape that a kernel does not cover is cudaErrorInvalidValue, and launches nothing.
cudaError_t decode_attention(const AttentionArgs&, cudaStream_t);
cudaError_t prefix_attention(const AttentionArgs&, cudaStream_t);
cudaError_t extend_attention(const AttentionArgs&, cudaStream_t);
// Attention that those three do not take: float32, other head dims, other cells. No groups.
cudaError_t simt_attention(const AttentionArgs&, bool decodes, bool extends, cudaStream_t);
// write_cache, then decode_attention, of sequences with one query each; cudaErrorNotSupported: launched nothing
cudaError_t decode_step(const DecodeStepArgs&, cudaStream_t);

}  // namespace octavo
