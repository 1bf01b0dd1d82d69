// Records of the messages that the host packs for the device, in 32-bit words. Python reads their layout from the module.
#pragma once

#include <cstdint>

namespace octavo {

// A step's message: a header, then records, then block ids; 32-bit words, places count words from the header on.
struct StepHeader {
  int32_t sequences, tokens, samples;
  int32_t sequence_at, token_at, sample_at;  // a token below zero is ~i: what sample i of the previous step chose
};
struct StepSequence {
  int32_t row, context, query_start, queries;
  int32_t first_block, blocks, block_at;  // `blocks` ids at `block_at` go to the row's table from `first_block` on; as many
                                          // behind them to that of layers with a window, if these have blocks of their own
  int32_t group, prefix;                  // its group, -1 for none; what group i of record i shares, in tokens
  int32_t row_context;                    // of each of its rows
};
// Of a model that keeps states, in order behind the records of samples: one record a sequence, then all keeps.
struct StepMove {
  int32_t read, write;         // slots
  int32_t first_keep, keeps;   // its `keeps` of all keeps, from `first_keep` on
};
struct StepKeep {
  int32_t after, slot;  // the state after so many of the sequence's tokens goes to this slot
};
struct StepSample {
  uint32_t seed_low, seed_high;
  int32_t row, index, position;
  float temperature;
  int32_t top_k;
  float top_p, min_p;
};

// Record of the message about rows of logits: a row's parameters, then its `entries` from `first` of the list on.
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

}  // namespace octavo
