// Lists of pairs, by expert and then by row, from the experts that rows take.
#pragma once

#include "experts/choice.cuh"

namespace octavo {

constexpr int kMaskedRows = 64;

// By one block of any number of warps, of so many rows at most: an expert's rows are bits of words.
struct MaskedLists {
  uint32_t rows[kMostExperts][kMaskedRows / 32];
  int32_t starts[kMostExperts], totals[kMostExperts / 32];
  int16_t ids[kMaskedRows * kMostChosen];

  __device__ void make(const RouteArgs& a) {
    const int count = a.rows * a.routing.chosen, experts = a.routing.experts;
    for (int e = threadIdx.x; e < experts; e += blockDim.x) rows[e][0] = rows[e][1] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const int e = __ldcg(a.ids + i), row = i / a.routing.chosen;
      ids[i] = int16_t(e);
      if (e >= 0) atomicOr(&rows[e][row / 32], 1u << row % 32);
    }
    __syncthreads();
    scan(a.lists.starts, experts);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const int e = ids[i], row = i / a.routing.chosen;
      const int place = e < 0 ? -1 : place_of(e, row);
      a.lists.places[i] = place;
      if (place >= 0) a.lists.sources[place] = row;
    }
  }

 private:
  __device__ int place_of(int e, int row) const {
    const int earlier = row < 32 ? 0 : __popc(rows[e][0]);
    return starts[e] + earlier + __popc(rows[e][row / 32] & ((1u << row % 32) - 1));
  }
  // Warps have 32 experts each at a time, and then what the ones before add up to.
  __device__ void scan(int32_t* out, int experts) {
    const int lane = threadIdx.x % 32;
    for (int e = threadIdx.x; e < (experts + 31) / 32 * 32; e += blockDim.x) {
      const int own = e < experts ? __popc(rows[e][0]) + __popc(rows[e][1]) : 0;
      int sum = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAll, sum, step);
        if (lane >= step) sum += other;
      }
      if (e < experts) starts[e] = sum - own;
      if (lane == 31) totals[e / 32] = sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e <= experts; e += blockDim.x) {
      int before = 0;
      for (int i = 0; i < e / 32; ++i) before += totals[i];
      if (e < experts) before = starts[e] += before;
      else for (int i = e / 32; i < (experts + 31) / 32; ++i) before += totals[i];
      out[e] = before;
    }
  }
};

}  // namespace octavo
