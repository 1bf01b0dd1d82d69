<<<<<<< HEAD
// Token choice by the Gumbel-max trick, and log-probabilities. A row belongs to one block or, in a small batch on chips
// that have them, to a cluster of blocks: each searches its part of the vocabulary for the largest logit and for the best
// token, while thresholds are found by every block on its own.
=======
// Token choice by the Gumbel-max trick. A row belongs to a few blocks, a cluster where the chip has those, each of which
// searches its part of the vocabulary.
//
// Rows without filters are read once. The others first take as much of their part into shared memory as fits, and read
// the rest again in each pass: the largest logit, a threshold for each filter, and then the noise of what is left.
// A threshold is found by histograms of 2048 ranges of values, each time of the range in which it must lie.
>>>>>>> a1cd387 (CUDA sampler: rows without filters are read once, the others from shared memory, by clusters of blocks; 16-bit logits; adjustments in one launch; block ids checked on demand)
//
// The filters are defined on sets and every step is exact (integer counts, masses in 64-bit fixed point, arithmetic
// without contraction), so the choice depends neither on an order of summation nor on the batch, and equals that of the
// CPU module (csrc/cpu/sample.h) bit for bit.
<<<<<<< HEAD
#include <cooperative_groups.h>

#include "common.cuh"
=======
#include <cfloat>

#include "noise.cuh"
#include "vocabulary.cuh"
>>>>>>> a1cd387 (CUDA sampler: rows without filters are read once, the others from shared memory, by clusters of blocks; 16-bit logits; adjustments in one launch; block ids checked on demand)

namespace octavo {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kBlocksPerMultiprocessor = 2, kMostParts = 8;
constexpr int kBins = 2048, kBinsEach = kBins / kThreads;
constexpr int kList = 2 * kBins;    // survivors of the filters that are listed where the histogram was
constexpr float kFirstRange = 8.0f;  // scaled logits this far below the largest are searched for a threshold first

// Sums of up to 57 bits in two words, since there are no atomic additions of 64 bits in shared memory.
struct Histogram {
  uint32_t low[kBins], high[kBins];

  __device__ void add(int bin, uint64_t weight) {
    const uint32_t part = uint32_t(weight), before = atomicAdd(&low[bin], part);
    const uint32_t rest = uint32_t(weight >> 32) + (before + part < part);
    if (rest > 0) atomicAdd(&high[bin], rest);
  }
<<<<<<< HEAD
  return c;
}

// A cheap bound from above.
__device__ float gumbel_bound(uint32_t x) {
  const float u = (float(x) + 0.5f) * 0x1p-32f, rest = (float(~x) + 0.5f) * 0x1p-32f;
  const float t = u >= 0.70710678f ? rest : -__logf(u);  // -log(u) >= 1 - u
  return 0.01f - __logf(t);
}

// The best value and, among equals, the lowest token: the largest key.
__device__ uint64_t candidate(float value, int token) {
  return uint64_t(key_of(__fadd_rn(value, 0.0f))) << 32 | uint32_t(~token);  // -0 and 0 are equal
}
__device__ uint64_t block_max(uint64_t x) {
  __shared__ uint64_t best[kWarps];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = x;
  __syncthreads();
  x = best[threadIdx.x % kWarps];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// The largest value among the blocks of a cluster, which all call this.
__device__ uint64_t cluster_max(uint64_t x, int blocks) {
  x = block_max(x);
#if OCTAVO_BULK_COPY
  if (blocks == 1) return x;
  __shared__ uint64_t mine;
  cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  cluster.sync();  // nobody reads what the last call left
  if (threadIdx.x == 0) mine = x;
  cluster.sync();
  for (int i = 0; i < blocks; ++i) x = max(x, *cluster.map_shared_rank(&mine, i));
  cluster.sync();  // nobody leaves while others read
#endif
  return x;
}

// Calls f(token, logit) for the tokens of every `parts`-th stretch of a row, from stretch `part` on, a few 16-byte loads
// of a thread in flight.
template <class F>
__device__ void for_tokens(const float* row, int vocab, F&& f, int part = 0, int parts = 1) {
  constexpr int kUnroll = 4;
  const int vectors = reinterpret_cast<uintptr_t>(row) % 16 == 0 ? vocab / 4 : 0;
  for (int base = part * kThreads * kUnroll + threadIdx.x; base < vectors; base += parts * kThreads * kUnroll) {
    float4 x[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      if (base + i * kThreads < vectors) x[i] = reinterpret_cast<const float4*>(row)[base + i * kThreads];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int token = (base + i * kThreads) * 4;
      if (token >= vectors * 4) break;
      f(token, x[i].x), f(token + 1, x[i].y), f(token + 2, x[i].z), f(token + 3, x[i].w);
    }
  }
  for (int token = vectors * 4 + part * kThreads + threadIdx.x; token < vocab; token += parts * kThreads)
    f(token, row[token]);
}
=======
};
>>>>>>> a1cd387 (CUDA sampler: rows without filters are read once, the others from shared memory, by clusters of blocks; 16-bit logits; adjustments in one launch; block ids checked on demand)

struct Scratch {
  union {
    Histogram bins;
    int list[kList];
  };
  uint64_t warps[kWarps];
  uint64_t exchanged[2];  // with the row's other blocks, in turn
  int found;              // where the running sum reaches the goal, and what lies before and in it
  uint64_t before, within, all;
  uint32_t lead;
  int listed;
};

__shared__ Scratch scratch;
extern __shared__ float4 held[];  // scaled logits of the first groups of the block's part

// What the blocks of a row have in common. All threads of all of them call these.
struct Team {
  int part, parts, turn;

  __device__ void sync() {
#if OCTAVO_BULK_COPY
    if (parts > 1) {
      asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
      return;
    }
#endif
    __syncthreads();
  }

  // What lies at the address `mine` in block `other`.
  template <class T>
  __device__ T read(const T* mine, int other) const {
#if OCTAVO_BULK_COPY
    if (parts > 1) {
      static_assert(sizeof(T) % 8 == 0, "whole words");
      uint32_t address;
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(mine)), "r"(other));
      T value;
      uint64_t* words = reinterpret_cast<uint64_t*>(&value);
#pragma unroll
      for (int i = 0; i < int(sizeof(T) / 8); ++i)
        asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(words[i]) : "r"(address + 8 * i) : "memory");
      return value;
    }
#endif
    return *mine;
  }

  // `combine` is associative and commutative.
  template <class F>
  __device__ uint64_t reduce(uint64_t x, F&& combine) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(~0u, x, step));
    if (threadIdx.x % 32 == 0) scratch.warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch.warps[threadIdx.x % kWarps];
#pragma unroll
    for (int step = kWarps / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(~0u, x, step));
    if (threadIdx.x == 0) scratch.exchanged[turn] = x;
    sync();
    for (int i = 0; i < parts; ++i)
      if (i != part) x = combine(x, read(&scratch.exchanged[turn], i));
    turn ^= 1;
    return x;
  }
  __device__ uint64_t most(uint64_t x) {
    return reduce(x, [](uint64_t a, uint64_t b) { return max(a, b); });
  }
  __device__ uint64_t total(uint64_t x) {
    return reduce(x, [](uint64_t a, uint64_t b) { return a + b; });
  }
};

__device__ inline float& at(float4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

template <class T>
struct Part {
  Logits<T> logits;
  int begin, end;  // groups
  float temperature, top;
  int held_groups;

  static __device__ float scaled(float logit, float temperature) {
    return __fadd_rn(temperature == 1.0f ? logit : __fdiv_rn(logit, temperature), 0.0f);  // no -0
  }
  __device__ float4 scaled(float4 x) const {
    return {scaled(x.x, temperature), scaled(x.y, temperature), scaled(x.z, temperature), scaled(x.w, temperature)};
  }

  __device__ float4 group(int index) const {
    return index - begin < held_groups ? held[index - begin] : scaled(logits.group(index));
  }
  // Calls f(token, z) for all scaled logits.
  template <class F>
  __device__ void each(F&& f) const {
    auto four = [&](int index, float4 z) {
      f(4 * index, z.x), f(4 * index + 1, z.y), f(4 * index + 2, z.z), f(4 * index + 3, z.w);
    };
    for (int i = threadIdx.x; i < held_groups; i += kThreads) four(begin + i, held[i]);
    logits.template stream<kThreads, 2>(begin + held_groups, end, [&](int index, float4 x) { four(index, scaled(x)); });
  }

  // exp(z - top) in units of 2^-40, by Cephes' exp2f polynomial; z is at most `top`.
  __device__ uint64_t mass(float z) const {
    const float c = __fmul_rn(__fsub_rn(z, top), kLog2e);
    if (!(c >= -41.0f)) return 0;
    const float rounded = __fadd_rn(c, 12582912.0f), f = __fsub_rn(c, __fsub_rn(rounded, 12582912.0f));
    float p = 1.535336188319500e-4f;
    p = __fadd_rn(__fmul_rn(p, f), 1.339887440266574e-3f);
    p = __fadd_rn(__fmul_rn(p, f), 9.618437357674640e-3f);
    p = __fadd_rn(__fmul_rn(p, f), 5.550332471162809e-2f);
    p = __fadd_rn(__fmul_rn(p, f), 2.402264791363012e-1f);
    p = __fadd_rn(__fmul_rn(p, f), 6.931472028550421e-1f);
    p = __fadd_rn(__fmul_rn(p, f), 1.0f);
    const uint32_t exponent = __float_as_uint(rounded) - 0x4b400000u + 40 + 127;
    return __float2ull_rz(__fmul_rn(p, __uint_as_float(exponent << 23)));
  }
};

// The first bin, in order of index, at which the sum over the row's blocks reaches `goal` goes to `scratch`, kBins if none
// does. Histograms may be changed again afterwards.
__device__ void find_bin(Team& team, uint64_t goal) {
  const int first = threadIdx.x * kBinsEach, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  static_assert(kBinsEach == 4, "a thread's bins are one vector");
  uint64_t sums[kBinsEach] = {};
  for (int i = 0; i < team.parts; ++i) {
    const auto low = team.read(reinterpret_cast<const Elements<uint32_t, 4>*>(scratch.bins.low + first), i);
    const auto high = team.read(reinterpret_cast<const Elements<uint32_t, 4>*>(scratch.bins.high + first), i);
#pragma unroll
    for (int j = 0; j < kBinsEach; ++j) sums[j] += uint64_t(high.at[j]) << 32 | low.at[j];
  }
  const uint64_t mine = sums[0] + sums[1] + sums[2] + sums[3];
  uint64_t inclusive = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t below = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == 31) scratch.warps[warp] = inclusive;
  if (threadIdx.x == 0) scratch.found = kBins;
  __syncthreads();
  uint64_t reached = inclusive - mine;
  for (int i = 0; i < warp; ++i) reached += scratch.warps[i];
  if (threadIdx.x == kThreads - 1) scratch.all = reached + mine;
#pragma unroll
  for (int j = 0; j < kBinsEach; ++j) {
    if (reached < goal && reached + sums[j] >= goal) scratch.found = first + j, scratch.before = reached, scratch.within = sums[j];
    reached += sums[j];
  }
  team.sync();
}

// A bound of z such that the tokens at or above it are the fewest of the largest ones, ties included, whose weights reach
// the goal that `aim` makes of the weight of all tokens at or above `floor`. `floor` itself where they do not reach it.
template <class T, class Weight, class Aim>
__device__ __noinline__ float threshold(Team& team, const Part<T> part, float floor, Weight&& weight, Aim&& aim) {
  const uint32_t last = key_of(floor);
  uint32_t end = key_of(part.top) + 1, begin = max(last, key_of(__fadd_rn(part.top, -kFirstRange)));
  uint64_t above = 0, goal = 0;  // weight of the keys from `end` on
  for (bool first = true;; first = false) {
    const int shift = max(0, 32 - __clz(end - 1 - begin) - 11);
    for (int i = threadIdx.x; i < kBins; i += kThreads) scratch.bins.low[i] = scratch.bins.high[i] = 0;
    __syncthreads();
    uint64_t sum = 0;
    part.each([&](int, float z) {
      if (!(z >= floor)) return;
      const uint32_t key = key_of(z);
      const bool inside = key >= begin && key < end;
      if (!inside && !first) return;
      const uint64_t w = weight(z);
      sum += w;
      if (inside && w > 0) scratch.bins.add((end - 1 - key) >> shift, w);
    });
    if (first) {
      goal = aim(team.total(sum));
    } else {
      team.sync();
    }
    find_bin(team, goal - above);
    const int bin = scratch.found;
    if (bin == kBins) {
      if (begin == last) return floor;
      above += scratch.all, end = begin, begin = last;
    } else {
      above += scratch.before, end -= uint32_t(bin) << shift;
      begin = end - begin > 1u << shift ? end - (1u << shift) : begin;
      const float least = value_of(begin);
      const uint64_t smallest = weight(least);  // of the range, but for the polynomial's last bits
      // Without any one of the range the goal is not reached: all of it stays.
      if (shift == 0 || above + scratch.within - goal + (smallest >> 18) + 1 < smallest || (smallest == 1 && above + scratch.within == goal))
        return least;
    }
    __syncthreads();  // what was found has been read
  }
}

// Bounds of the noise that a random word makes: `most` is at least -log(-log(u)), since -log(u) >= 1 - u.
struct NoiseBounds {
  float most, rest;

  __device__ explicit NoiseBounds(uint32_t word) {
    rest = __fsub_rn(__uint_as_float(0x3f800000u | ~word >> 9), 1.0f);  // 1 - u, rounded down
    float log2;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2) : "f"(rest));
    most = fmaf(log2, -0.69314718f, 0.02f);
  }
  // For u >= 1/2, -log(u) <= 1.387 (1 - u); near u = 1 the word has more bits than `rest`.
  __device__ float least() const { return rest <= 0.5f ? fminf(most, 13.8f) - 0.6f : -INFINITY; }
};

// The best candidate among the tokens of a part. `approximate(group)` gives scaled logits with a relative error of 2^-22,
// minus infinity for what is filtered out; `exact(token)` the true one.
template <int kUnroll, class Approximate, class Exact>
__device__ __noinline__ uint64_t best_of_all(int begin, int end, const Noise noise, const Approximate approximate,
                                             const Exact exact) {
  if (threadIdx.x == 0) scratch.lead = 0;
  __syncthreads();
  uint64_t best = 0;
  float lead = -FLT_MAX;  // minus infinity never leads
  for (int base = begin; base < end; base += kThreads * kUnroll) {
    float4 bound[kUnroll];
    uint32_t likely = 0;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int group = base + i * kThreads + int(threadIdx.x);
      bound[i] = group < end ? approximate(group) : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    }
    float least = -INFINITY;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const uint4 words = noise.words(base + i * kThreads + int(threadIdx.x));
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const NoiseBounds g(word[j]);
        float& z = at(bound[i], j);
        const float size = fminf(fabsf(z), FLT_MAX);
        if (base == begin) least = fmaxf(least, fmaf(size, -1e-6f, z) + g.least());
        z = fmaf(size, 1e-6f, z) + g.most;
      }
    }
    lead = fmaxf(lead, least);
    uint32_t shared = __reduce_max_sync(~0u, key_of(lead));
    if (threadIdx.x % 32 == 0) shared = max(shared, atomicMax(&scratch.lead, shared));
    lead = value_of(__shfl_sync(~0u, shared, 0));
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        likely |= uint32_t(!(at(bound[i], j) < lead)) << (4 * i + j);  // NaN stays
    for (; likely > 0; likely &= likely - 1) {
      const int i = __ffs(int(likely)) - 1, token = 4 * (base + i / 4 * kThreads + int(threadIdx.x)) + i % 4;
      const float value = __fadd_rn(exact(token), noise.of(token));
      if (!(value >= lead)) continue;
      best = max(best, candidate(value, token));
      lead = value;
    }
  }
  return best;
}

template <class T>
__device__ auto exact_score(const Part<T>& part) {
  return [row = part.logits.row, temperature = part.temperature](int token) {
    return Part<T>::scaled(to_float(row[token]), temperature);
  };
}

// The best candidate among the tokens at or above `floor`.
template <class T>
__device__ __noinline__ uint64_t best_of_some(const Part<T> part, float floor, const Noise& noise) {
  if (threadIdx.x == 0) scratch.listed = 0;
  __syncthreads();
  part.each([&](int token, float z) {
    if (!(z >= floor)) return;
    const int place = atomicAdd(&scratch.listed, 1);
    if (place < kList) scratch.list[place] = token;
  });
  __syncthreads();
  const int listed = scratch.listed;
  if (listed > kList) {
    auto filtered = [=](int index) {
      float4 z = part.group(index);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!(at(z, i) >= floor)) at(z, i) = -INFINITY;
      return z;
    };
    return best_of_all<2>(part.begin, part.end, noise, filtered, exact_score(part));
  }
  uint64_t best = 0;
  for (int i = threadIdx.x; i < listed; i += kThreads) {
    const int token = scratch.list[i];
    float4 z = part.group(token / 4);
    best = max(best, candidate(__fadd_rn(at(z, token % 4), noise.of(token)), token));
  }
  return best;
}

// Without filters: one pass.
template <class T>
__device__ uint64_t best_unfiltered(const Part<T>& part, const Noise& noise) {
  const float inverse = 1.0f / part.temperature;
  return best_of_all<4>(
      part.begin, part.end, noise,
      [=](int index) {
        const float4 x = part.logits.group(index);
        return float4{x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse};
      },
      exact_score(part));
}

template <class T>
__device__ uint64_t best_logit(const Part<T>& part) {
  float best = -INFINITY;
  int where = 0;
  part.logits.template stream<kThreads, 4>(part.begin, part.end, [&](int index, float4 x) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (at(x, i) > best) best = at(x, i), where = 4 * index + i;
  });
  return candidate(best, where);
}

// Takes scaled logits into shared memory. Returns the largest.
template <class T>
__device__ __noinline__ float hold(const Part<T> part) {
  float top = -INFINITY;
  part.logits.template stream<kThreads, 4>(part.begin, part.end, [&](int index, float4 x) {
    const float4 z = part.scaled(x);
    if (index - part.begin < part.held_groups) held[index - part.begin] = z;
    top = fmaxf(top, fmaxf(fmaxf(z.x, z.y), fmaxf(z.z, z.w)));
  });
  return top;
}

template <class T>
__device__ uint64_t best_filtered(Team& team, Part<T>& part, const Noise& noise, int top_k, float top_p, float min_p) {
  part.top = value_of(uint32_t(team.most(key_of(hold(part)))));
  float floor = -FLT_MAX;  // what is minus infinity stays out
  if (top_k > 0 && top_k < part.logits.vocab)
    floor = threshold(
        team, part, floor, [](float) { return uint64_t(1); }, [&](uint64_t) { return uint64_t(top_k); });
  if (top_p < 1.0f)
    floor = threshold(
        team, part, floor, [&](float z) { return part.mass(z); },
        [&](uint64_t total) {
          const uint64_t goal = __double2ull_rz(__dmul_rn(double(total), double(fmaxf(top_p, 0.0f))));
          return goal > 0 ? goal : 1;
        });
  if (min_p > 0.0f) floor = fmaxf(floor, __fadd_rn(part.top, float(log(double(min_p)))));
  return best_of_some(part, floor, noise);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    sample_kernel(const __grid_constant__ SampleArgs a, int held_groups) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t r = blockIdx.y;
<<<<<<< HEAD
  const int part = blockIdx.x, parts = gridDim.x;
  const float* logits = a.logits + r * a.stride;
  uint64_t best = 0;
  for_tokens(
      logits, a.vocab, [&](int token, float logit) { best = max(best, candidate(logit, token)); }, part, parts);
  best = cluster_max(best, parts);
  const float largest = value_of(uint32_t(best >> 32)), temperature = a.temperature[r];
  if (!(temperature > 0.0f) || !(largest > -INFINITY)) {
    if (part == 0 && threadIdx.x == 0) a.tokens[r] = largest > -INFINITY ? int64_t(~uint32_t(best)) : 0;
    return;
  }
  const Row row{logits, a.vocab, temperature, __fdiv_rn(largest, temperature)};
  float floor = -INFINITY;
  const int top_k = a.top_k[r];
  const float top_p = a.top_p[r], min_p = a.min_p[r];
  if (top_k > 0 && top_k < a.vocab)
    floor = threshold(s, row, floor, [](float) { return 1ull; }, [&](unsigned long long) { return uint64_t(top_k); });
  if (top_p < 1.0f)
    floor = threshold(s, row, floor, [&](float z) { return row.mass(z); }, [&](unsigned long long total) {
      const uint64_t goal = __double2ull_rz(__dmul_rn(double(total), double(fmaxf(top_p, 0.0f))));
      return goal > 0 ? goal : 1;
    });
  if (min_p > 0.0f) floor = fmaxf(floor, __fadd_rn(row.top, float(log(double(min_p)))));

  const uint64_t seed = uint64_t(a.seeds[r]);
  const uint32_t position = uint32_t(a.positions[r]), index = uint32_t(a.indices[r]);
  // The noise of the likeliest token is a first bar for the others.
  const int likeliest = int(~uint32_t(best));
  const uint4 drawn = philox(likeliest / 4, position, index, seed);
  const uint32_t word = likeliest % 4 == 0 ? drawn.x : likeliest % 4 == 1 ? drawn.y : likeliest % 4 == 2 ? drawn.z : drawn.w;
  float lead = __fadd_rn(row.top, gumbel(word));
  best = candidate(lead, likeliest);
  for (int group = part * kThreads + threadIdx.x; group * 4 < a.vocab; group += parts * kThreads) {
    float z[4], most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = group * 4 + i;
      z[i] = token < a.vocab ? row.scaled(logits[token]) : -INFINITY;
      if (!(z[i] >= floor)) z[i] = -INFINITY;
      most = fmaxf(most, z[i]);
    }
    // No noise could lift these tokens to the best one so far.
    if (!(most > -INFINITY) || __fadd_rn(most, kMaxNoise) < lead) continue;
    const uint4 words = philox(group, position, index, seed);
    const uint32_t noise[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!(z[i] + gumbel_bound(noise[i]) >= lead)) continue;
      const float value = __fadd_rn(z[i], gumbel(noise[i]));
      best = max(best, candidate(value, group * 4 + i));
      lead = fmaxf(lead, value);
    }
  }
  best = cluster_max(best, parts);
  if (part == 0 && threadIdx.x == 0) a.tokens[r] = int64_t(~uint32_t(best));
=======
  Team team{int(blockIdx.x), int(gridDim.x), 0};
  const int groups = (a.vocab + 3) / 4;
  Part<T> part{Logits<T>(static_cast<const T*>(a.logits) + r * a.stride, a.vocab), 0, 0, a.temperature[r], 0.0f, 0};
  part.begin = int(int64_t(groups) * team.part / team.parts);
  part.end = int(int64_t(groups) * (team.part + 1) / team.parts);
  part.held_groups = min(held_groups, part.end - part.begin);
  const int top_k = a.top_k[r];
  const float top_p = a.top_p[r], min_p = a.min_p[r];
  const Noise noise{uint64_t(a.seeds[r]), uint32_t(a.positions[r]), uint32_t(a.indices[r])};
  uint64_t best;
  if (!(part.temperature > 0.0f)) {
    best = best_logit(part);
  } else if ((top_k > 0 && top_k < a.vocab) || top_p < 1.0f || min_p > 0.0f) {
    best = best_filtered(team, part, noise, top_k, top_p, min_p);
  } else {
    best = best_unfiltered(part, noise);
  }
  best = team.most(best);
  if (team.part == 0 && threadIdx.x == 0) a.tokens[r] = value_of_candidate(best) > -INFINITY ? token_of_candidate(best) : 0;
  team.sync();  // nobody leaves while others read
>>>>>>> a1cd387 (CUDA sampler: rows without filters are read once, the others from shared memory, by clusters of blocks; 16-bit logits; adjustments in one launch; block ids checked on demand)
}

// Blocks of a row: enough to fill the chip and to hold the row, on chips where they can work together.
int parts_of(const SampleArgs& a, const Device& device, int held_groups) {
  if (device.major < 9) return 1;
  const int64_t groups = (int64_t(a.vocab) + 3) / 4, blocks = kBlocksPerMultiprocessor * device.multiprocessors;
  int parts = 1;
  while (parts < kMostParts && groups > parts * 512 &&
         (2 * parts * a.rows <= blocks || (parts < 4 && groups > int64_t(parts) * held_groups * 3 / 2)))
    parts *= 2;
  return parts;
}

template <class T>
cudaError_t launch(const SampleArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  constexpr int kReserved = 1024;  // bytes of each block
  const int available = device.shared_per_multiprocessor / kBlocksPerMultiprocessor - kReserved;
  const int held_bytes = (min(available, device.shared_per_block) - int(sizeof(Scratch))) / 16 * 16;
  cudaError_t error = cudaFuncSetAttribute(sample_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, held_bytes);
  if (error != cudaSuccess) return error;
  const unsigned parts = unsigned(parts_of(a, device, held_bytes / 16));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {parts, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(parts, unsigned(a.rows)), config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = size_t(held_bytes), config.stream = stream;
  config.attrs = attributes, config.numAttrs = device.major < 9 ? 0 : parts > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, sample_kernel<T>, a, held_bytes / 16);
}

}  // namespace

cudaError_t sample(const SampleArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
<<<<<<< HEAD
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  int parts = 1;  // the blocks of a cluster: as many as there are multiprocessors for
  if (device.major >= 9)
    while (parts < 8 && 2 * parts * a.rows <= device.multiprocessors) parts *= 2;
  if (parts == 1) return launch_after(sample_kernel, dim3(1, unsigned(a.rows)), kThreads, 0, stream, a);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {unsigned(parts), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(parts), unsigned(a.rows)), config.blockDim = dim3(kThreads), config.stream = stream;
  config.attrs = attributes, config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, sample_kernel, a);
}

cudaError_t logprobs(const LogprobArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return launch_after(logprobs_kernel, dim3(unsigned(a.rows)), kThreads, 0, stream, a);
=======
  return with_dtype(a.dtype, [&](auto tag) { return launch<decltype(tag)>(a, stream); });
>>>>>>> a1cd387 (CUDA sampler: rows without filters are read once, the others from shared memory, by clusters of blocks; 16-bit logits; adjustments in one launch; block ids checked on demand)
}

}  // namespace octavo
