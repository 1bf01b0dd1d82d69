// The work lists of a step's attention: how long they can get, which the host must know, and the kernel that writes them.
#pragma once

#include "attention/args.h"

namespace octavo {

struct PlanArgs;

// The largest batch that a plan is made for, and the layers that use it.
struct PlanShape {
  int sequences, tokens, chunks;  // the latter as `chunk_count` counts them
  int heads, kv_heads, head_dim;
  int max_queries;  // of one sequence
  int window;       // 0: unbounded
  bool shared_prefixes, uniform;
  int few_rows;  // a group with more query rows goes to the prefix kernel
};

// A plan: what its layers do, and its lists in memory that the caller provides.
class AttentionPlan {
 public:
  explicit AttentionPlan(const PlanShape&);

  const PlanShape shape;
  const int group;      // query heads of a KV head
  const bool decodes;   // whether sequences of few queries go to the decode kernel
  const bool extends;   // whether there may be longer ones
  const bool groups;    // whether prefixes that sequences share are read once
  const int rows;       // of queries, the most of a decode item
  const int chunks, tiles;  // the most in the lists
  const int spared;         // in batches of up to so many sequences no group ever has tiles

  // The lists begin as zeros; partial results need not.
  size_t list_bytes() const { return list_bytes_; }
  size_t partial_bytes() const { return size_t(partial_rows()) * (shape.head_dim + 2) * sizeof(float); }
  void place(void* lists, void* partial);

  int32_t* arrivals() const { return arrivals_; }
  PlanArgs args() const;
  void fill(AttentionArgs&) const;

 private:
  int64_t partial_rows() const { return int64_t(chunks) * shape.kv_heads * rows; }
  // Calls f with each list and the number of its items.
  template <class F>
  void for_each_list(F&& f);
  int without_tiles() const;

  size_t list_bytes_ = 0;
  PlanHeader* header_ = nullptr;
  DecodeItem* decode_ = nullptr;
  FoldItem* folds_ = nullptr;
  ExtendItem* extend_ = nullptr;
  PrefixItem* prefix_ = nullptr;
  GroupState* group_states_ = nullptr;
  GroupRow* group_rows_ = nullptr;
  int32_t* arrivals_ = nullptr;
  float* partial_ = nullptr;
};

// The chunks that a plan needs room for, of sequences that end with `queries` of `contexts` tokens: one per kChunk keys of
// each, and as many for each further part of queries that are split.
int64_t chunk_count(const int32_t* contexts, const int32_t* queries, int64_t count, int group);
// True if none of these sequences is computed as decodes are, because its queries are few, or split.
bool only_prompts(const int32_t* contexts, const int32_t* queries, int64_t count, int group);

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

cudaError_t plan_attention(const PlanArgs&, cudaStream_t);

}  // namespace octavo
