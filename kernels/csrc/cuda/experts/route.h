// The parts of routing.
#pragma once

#include "experts/choice.cuh"

namespace octavo {

// Logits of rows that are normed by now.
cudaError_t router_tiles(const RouteArgs&, cudaStream_t);
// The choice by logits.
cudaError_t choose_rows(const RouteArgs&, cudaStream_t);

// A warp's row into memory.
template <int kHeld>
__device__ inline void choose_row(const RouteArgs& a, int64_t row, int lane, float* room) {
  const int64_t at = row * a.routing.chosen;
  choose_row<kHeld>(a, row, lane, a.ids + at, a.lists.weights + at, room);
}

}  // namespace octavo
