// Which experts one row takes, by one warp. The rule is that of csrc/cpu/route.cpp: of equal keys the lowest expert, one that is no
// number last. Scores are in float32 here, so that weights differ from the CPU's in their last bits.
#pragma once

#include "device/common.cuh"
#include "experts/args.h"

namespace octavo {

constexpr int kMostExperts = 512, kMostChosen = 32, kMostGroups = 32;
constexpr unsigned kAll = ~0u;

inline __device__ float exponential(float x) { return expf(x); }
inline __device__ float sigmoid_of(float x) { return 1.0f / (1.0f + exponential(-x)); }

// Numbers in the order of keys, all above 0.
inline __device__ uint32_t ordered(float key) {
  const uint32_t bits = __float_as_uint(key == key ? key + 0.0f : -INFINITY);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// A row's keys and scores: lane l has those of the experts l, 32 + l, ...
template <int kHeld>
struct Choice {
  const Routing& how;
  int lane;
  float scores[kHeld], keys[kHeld];
  uint32_t taken = 0;  // of this lane's

  __device__ Choice(const Routing& routing, int own) : how(routing), lane(own) {}
  __device__ bool has(int i) const { return i * 32 + lane < how.experts; }

  // Loads come first, so that all are under way together.
  __device__ void score(const float* logits, const float* correction) {
    float corrections[kHeld], largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) scores[i] = has(i) ? __ldcg(logits + i * 32 + lane) : -INFINITY;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) corrections[i] = correction && has(i) ? __ldg(correction + i * 32 + lane) : 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) keys[i] = scores[i], largest = fmaxf(largest, scores[i]);
    if (how.score == Score::softmax) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, step));
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        scores[i] = has(i) ? exponential(scores[i] - largest) : 0.0f;
        sum += scores[i];
      }
      sum = warp_sum(sum);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) scores[i] /= sum;
    } else if (how.score == Score::sigmoid) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) scores[i] = sigmoid_of(scores[i]);
    }
    if (!correction && how.top_groups == how.groups) return;  // scores are in the order of logits
#pragma unroll
    for (int i = 0; i < kHeld; ++i) keys[i] = !has(i) ? -INFINITY : correction ? scores[i] + corrections[i] : scores[i];
  }

  // The best expert from `first` on, of `count`, that is not taken. All lanes get it.
  __device__ int best(int first, int count) const {
    uint32_t most = 0, place = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int e = i * 32 + lane;
      if (e < first || e >= first + count || taken >> i & 1) continue;
      const uint32_t key = ordered(keys[i]);
      if (key > most) most = key, place = ~uint32_t(e);
    }
    const uint32_t all = __reduce_max_sync(kAll, most);
    return int(~__reduce_max_sync(kAll, most == all ? place : 0u));
  }
  __device__ void take(int expert) {
    if (expert % 32 == lane) taken |= 1u << expert / 32;
  }
  __device__ float key_of(int expert) const {
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (expert / 32 == i) mine = keys[i];
    return __shfl_sync(kAll, mine, expert % 32);
  }

  // Takes the experts of all groups but the best ones out of the choice. A group's score is the sum of its best keys; lane g has
  // that of group g.
  __device__ void drop_groups() {
    const int size = how.experts / how.groups;
    float own = 0.0f;
    for (int g = 0; g < how.groups; ++g) {
      float sum = 0.0f;
      for (int i = 0; i < how.group_best; ++i) {
        const int e = best(g * size, size);
        take(e);
        sum += key_of(e);
      }
      taken = 0;
      if (lane == g) own = sum;
    }
    uint32_t kept = 0;
    for (int i = 0; i < how.top_groups; ++i) {
      const uint32_t key = lane < how.groups && !(kept >> lane & 1) ? ordered(own) : 0u;
      const uint32_t all = __reduce_max_sync(kAll, key);
      kept |= 1u << int(~__reduce_max_sync(kAll, key == all ? ~uint32_t(lane) : 0u));
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (has(i) && !(kept >> (i * 32 + lane) / size & 1)) taken |= 1u << i;
  }

  // Chooses, and stores the experts, ascending, -1 of padding, and their weights. `room` has kMostChosen numbers of this warp's.
  __device__ void choose(bool is_padding, const float* factors, int32_t* ids, float* weights, float* room) {
    if (how.top_groups < how.groups) drop_groups();
    uint32_t mine = 0;
    for (int j = 0; j < how.chosen; ++j) {
      const int e = best(0, how.experts);
      take(e);
      if (e % 32 == lane) mine |= 1u << e / 32;
    }
    int before = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const bool is_mine = mine >> i & 1;
      const uint32_t with = __ballot_sync(kAll, is_mine);
      const int rank = before + __popc(with & ((1u << lane) - 1));
      if (is_mine) ids[rank] = is_padding ? -1 : i * 32 + lane, room[rank] = scores[i];
      before += __popc(with);
    }
    __syncwarp();
    const float weight = weigh(room);
    if (lane < how.chosen) weights[lane] = is_padding ? 0.0f : factors ? weight * factors[ids[lane]] : weight;
    __syncwarp();
  }
  // Of the expert that is this lane's by rank.
  __device__ float weigh(const float* room) const {
    const int n = how.chosen;
    float weight = lane < n ? room[lane] : 0.0f;
    if (how.score == Score::chosen_softmax) {
      float largest = -INFINITY, sum = 0.0f;
      for (int j = 0; j < n; ++j) largest = fmaxf(largest, room[j]);
      weight = lane < n ? exponential(weight - largest) : 0.0f;
      for (int j = 0; j < n; ++j) sum += __shfl_sync(kAll, weight, j);
      weight /= sum;
    }
    if (how.normalised) {
      float sum = 0.0f;
      for (int j = 0; j < n; ++j) sum += __shfl_sync(kAll, weight, j);
      weight /= fmaxf(sum + how.eps, how.least);
    }
    return weight * how.scale;
  }
};

// A warp's row. `room` as in Choice::choose.
template <int kHeld>
__device__ inline void choose_row(const RouterLogits& of, int64_t row, int lane, int32_t* ids, float* weights, float* room) {
  Choice<kHeld> choice(of.routing, lane);
  const float* logits = of.logits + row * of.routing.experts;
  // Without a branch, so that it is not waited for before the logits are.
  const int64_t slot = __ldcg(of.slots ? of.slots + row : reinterpret_cast<const int64_t*>(of.logits));
  choice.score(logits, of.correction);
  choice.choose(of.slots && slot < 0, of.factors, ids, weights, room);
}

}  // namespace octavo
