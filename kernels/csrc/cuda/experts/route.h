// The parts of routing.
#pragma once

#include "experts/choice.cuh"

namespace octavo {

// Logits of rows that are normed by now, and the choice.
cudaError_t router_tiles(const RouteArgs&, cudaStream_t);

// A warp's row. `room` as in Choice::choose.
template <int kHeld>
__device__ inline void choose_row(const RouteArgs& a, int64_t row, int lane, float* room) {
  const Routing& how = a.routing;
  int32_t* ids = a.ids + row * how.chosen;
  float* weights = a.lists.weights + row * how.chosen;
  if (a.slots && __ldcg(a.slots + row) < 0) {
    if (lane < how.chosen) ids[lane] = -1, weights[lane] = 0.0f;
    return;
  }
  Choice<kHeld> choice(how, lane);
  choice.score(a.logits + row * how.experts, a.correction);
  choice.choose(ids, weights, room);
}

}  // namespace octavo
