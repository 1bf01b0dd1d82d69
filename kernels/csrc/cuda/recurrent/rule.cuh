// What both forms of the gated delta rule have in common, the walk and the chunks.
#pragma once

#include "recurrent/chunk_cut.cuh"

namespace octavo {

constexpr int kTaps = 4, kHead = 128;              // values of a head: columns of its matrix
constexpr int kKey = kRows / 32;                   // values of a key that a lane makes
constexpr float kLeastSquares = 1e-6f;             // added to the squares of q and k
constexpr float kRootOfRows = 0.08838834764831845f;  // 1 / sqrt(kRows)

}  // namespace octavo
