// Lists of a row's largest logits, one of each block, and the choice from them.
#pragma once

#include "sampling/sample_thresholds.cuh"

namespace octavo {
namespace {

// The list for a bound: tokens whose scaled logit is that of a token at the bound reach it, too.
__device__ inline float least_listed(float bound) {
  return fmaxf(bound - 1e-6f * fabsf(bound) - FLT_MIN, -FLT_MAX);
}

// Lists the tokens of a part that reach its bound, and perhaps a few more. As many tokens as are wanted reach it, since
// the samples of that many threads do, or it is the lowest there is. Returns the bound; the largest logit goes to
// `scratch`.
template <class T>
__device__ __noinline__ float list_largest(const Part<T> part) {
  constexpr int kUnroll = 4;
  const int wanted = scratch.by_rank ? min(scratch.top_k, kMostRanks) : kMostRanks;
  const int stretch = (part.end - part.begin + kThreads - 1) / kThreads, first = part.begin + threadIdx.x;
  auto largest = [](const float4& x) { return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)); };
  using Row = Logits<T>;
  auto load = [&](int index) { return index < part.end ? part.logits.load(index) : Row::nothing(); };
  typename Row::Group loaded[kUnroll], next[kUnroll];
  static_assert(kSamples <= kUnroll);
#pragma unroll
  for (int i = 0; i < kSamples; ++i) next[i] = load(first + stretch * i / kSamples * kThreads);
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) loaded[i] = load(first + i * kThreads);
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSamples; ++i) top = fmaxf(top, largest(Row::widen(next[i])));
  uint32_t reached = 0;
  for (int bit = 31; bit >= 16; --bit) {
    const uint32_t key = reached | 1u << bit;
    if (__syncthreads_count(key_of(top) >= key) >= wanted) reached = key;
  }
  const float bound = value_of(max(reached, key_of(-FLT_MAX))), least = least_listed(bound);
  const int held_groups = scratch.by_rank ? 0 : scratch.held_groups;
#pragma unroll 1
  for (int base = first; base < part.end; base += kThreads * kUnroll) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) next[i] = load(base + (kUnroll + i) * kThreads);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int index = base + i * kThreads;
      float4 x = Row::widen(loaded[i]);
      if (index - part.begin < held_groups) held[index - part.begin] = x;
      const float most = largest(x);
      if (!(most >= least)) continue;
      top = fmaxf(top, most);
      int count = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) count += at(x, j) >= least;
      int place = atomicAdd(&scratch.listed, count);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!(at(x, j) >= least)) continue;
        if (place < kEntries) scratch.entries[place] = {at(x, j), 4 * index + j};
        ++place;
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) loaded[i] = next[i];
  }
  const uint32_t most = __reduce_max_sync(~0u, key_of(top));
  if (threadIdx.x % 32 == 0) atomicMax(&scratch.largest, most);
  return bound;
}

// The largest key from `floor` on that `wanted` of the threads' keys reach; `floor` where fewer reach that.
__device__ inline uint32_t key_of_rank(const uint32_t (&keys)[kOwnEntries], uint32_t floor, uint32_t end, int wanted) {
  const int lane = threadIdx.x % 32;
  for (uint32_t begin = floor;;) {
    const int shift = max(0, 32 - __clz(end - 1 - begin) - 8);
    __syncthreads();
    if (threadIdx.x < kRankBins) scratch.ranks[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwnEntries; ++i)
      if (keys[i] >= begin && keys[i] < end) atomicAdd(&scratch.ranks[(end - 1 - keys[i]) >> shift], 1);
    __syncthreads();
    const int4* ranks = reinterpret_cast<const int4*>(scratch.ranks) + 2 * lane;
    const int4 low = ranks[0], high = ranks[1];
    const int own[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += own[j];
    int reached = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, reached, step);
      if (lane >= step) reached += below;
    }
    const unsigned reaching = __ballot_sync(~0u, reached >= wanted);
    if (!reaching) return floor;
    int before = reached - sum, bin = 0, within = own[0];
#pragma unroll
    for (int j = 1; j < 8; ++j)
      if (bin == j - 1 && before + within < wanted) before += within, bin = j, within = own[j];
    const int owner = __ffs(int(reaching)) - 1;
    bin = __shfl_sync(~0u, 8 * lane + bin, owner);
    wanted -= __shfl_sync(~0u, before, owner);
    end -= uint32_t(bin) << shift;
    begin = end - begin > 1u << shift ? end - (1u << shift) : begin;
    if (shift == 0 || __shfl_sync(~0u, within, owner) == wanted) return begin;
  }
}

constexpr uint64_t kUnknown = ~uint64_t(0);  // no candidate is this large

// Chooses from the row's lists, which name all tokens from `complete` on. `total`: mass of all tokens of the row, where
// top-p comes without top-k. The filters keep what is large, so the best of all is the choice unless a filter stops it,
// and then all that is not larger is stopped, too: on average top-p takes 1 / p rounds.
__device__ __noinline__ uint64_t best_listed(float temperature, uint32_t complete, uint64_t total) {
  const Mass mass;
  const Noise noise = scratch.noise;
  const bool everything = complete == key_of(-FLT_MAX), by_rank = scratch.by_rank, by_mass = scratch.by_mass;
  const int count = scratch.listed;
  uint32_t keys[kOwnEntries];
  uint64_t scores[kOwnEntries];
#pragma unroll
  for (int i = 0; i < kOwnEntries; ++i) {
    keys[i] = 0, scores[i] = 0;
    const int place = threadIdx.x + i * kThreads;
    if (place >= count) continue;
    const Entry entry = scratch.entries[place];
    const float z = scaled(entry.logit, temperature);
    if (key_of(z) < complete) continue;
    keys[i] = key_of(z), scores[i] = candidate(__fadd_rn(z, noise.of(entry.token)), entry.token);
  }
  const uint32_t floor = by_rank ? key_of_rank(keys, complete, key_of(scratch.top) + 1, scratch.top_k) : complete;
  auto mass_from = [&](uint32_t least) {
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kOwnEntries; ++i)
      if (keys[i] >= least) sum += mass.of(value_of(keys[i]));
    return reduce_block(sum, Sum{});
  };
  uint64_t goal = 0;
  if (by_mass) {
    const uint64_t listed = mass_from(floor);
    goal = mass.goal(by_rank ? listed : total);
    if (!by_rank && !everything && listed < goal) return kUnknown;
  }
  uint32_t least = key_of(fmaxf(value_of(floor), __fadd_rn(scratch.top, scratch.log_min_p)));
  if (!by_rank && !by_mass && !everything && least == floor) return kUnknown;
  for (;;) {
    uint64_t best = 0;
    uint32_t key = 0;
#pragma unroll
    for (int i = 0; i < kOwnEntries; ++i)
      if (keys[i] >= least && scores[i] > best) best = scores[i], key = keys[i];
    const uint64_t mine = best;
    best = reduce_block(best, Most{});
    if (best == 0 || !by_mass) return best;
    if (mine == best) scratch.chosen = key;
    __syncthreads();
    key = scratch.chosen;
    if (mass_from(key + 1) < goal) return best;
    least = key + 1;
  }
}

// Tells the row's blocks of this block's list, complete from `bound` on, and learns of theirs.
__device__ __noinline__ void share_lists(float bound, float temperature) {
  __syncthreads();
  uint4& slice = scratch.exchanged[int(Purpose::slice)];
  if (threadIdx.x == 0) slice = {uint32_t(scratch.listed), __float_as_uint(bound), scratch.largest, 0};
  row_sync();
  uint32_t largest = 0;
  bool fit = !scratch.by_rank || scratch.top_k <= kMostRanks;
  for (int i = 0; i < parts(); ++i) {
    const uint4 other = read(&slice, i);
    fit &= other.x <= kEntries, bound = fmaxf(bound, __uint_as_float(other.y)), largest = max(largest, other.z);
    if (threadIdx.x == 0) scratch.counts[i] = int(other.x);
  }
  if (threadIdx.x == 0)
    scratch.fit = fit, scratch.bound = bound, scratch.top = scaled(value_of(largest), temperature);
  __syncthreads();
}

// Appends what the lists of the row's other blocks hold from `least` on. Warps take those blocks by turns.
__device__ __noinline__ void gather_lists(float least) {
  const int others = parts() - 1, warp = threadIdx.x / 32;
  if (others == 0) return;
  const int other = warp % others, of_other = (kWarps - other + others - 1) / others, count = scratch.counts[1 + other];
  for (int pair = warp / others * 32 + threadIdx.x % 32; pair < (count + 1) / 2; pair += of_other * 32) {
    const uint4 two = read(reinterpret_cast<const uint4*>(scratch.entries) + pair, 1 + other);
    auto take = [&](float logit, int token) {
      if (!(logit >= least)) return;
      const int place = atomicAdd(&scratch.listed, 1);
      if (place < kEntries) scratch.entries[place] = {logit, token};
    };
    take(__uint_as_float(two.x), int(two.y));
    if (2 * pair + 1 < count) take(__uint_as_float(two.z), int(two.w));
  }
}

// The row's choice by its lists, or kUnknown.
template <class T>
__device__ __noinline__ uint64_t best_short(const Part<T> part) {
  if (!scratch.fit) return kUnknown;
  uint64_t total = 0;
  if (scratch.by_mass && !scratch.by_rank) {
    total = total_of(mass_of_all(part));
  }
  uint4& chosen = scratch.exchanged[int(Purpose::choice)];
  if (blockIdx.x == 0) {
    gather_lists(least_listed(scratch.bound));
    __syncthreads();
    const uint32_t complete = max(key_of(part.scaled(scratch.bound)), key_of(-FLT_MAX));
    const uint64_t best = scratch.listed <= kEntries ? best_listed(part.temperature, complete, total) : kUnknown;
    if (threadIdx.x == 0) chosen = {uint32_t(best), uint32_t(best >> 32), 0, 0};
  }
  row_sync();
  const uint4 best = read(&chosen, 0);
  return uint64_t(best.y) << 32 | best.x;
}

}  // namespace
}  // namespace octavo
