// Tiles of wide heads, as the plan and the kernels count them.
#pragma once

#include "attention/wide.h"
#include "device/common.cuh"

namespace octavo {
namespace {

constexpr int over(int n, int by) { return (n + by - 1) / by; }

struct WideSequence {
  int context, row, queries;

  __device__ WideSequence(const int32_t* context_lens, const int32_t* query_start, int s)
      : context(max(context_lens[s], 0)), row(query_start[s]), queries(query_start[s + 1] - row) {}
  // None of a sequence without keys, which is padding.
  __device__ int tiles(int group, int kv_heads) const {
    return context > 0 ? over(queries * group, kWideRows) * kv_heads : 0;
  }
  // Tiles of keys that some row sees.
  __device__ int key_tiles(int row_tile, int group) const {
    const int last = min(queries - 1, (row_tile * kWideRows + kWideRows - 1) / group);
    return max(1, over(context - queries + last + 1, kWideKeys));
  }
};

}  // namespace
}  // namespace octavo
