// Token choice by the Gumbel-max trick. A row belongs to a few blocks, a cluster where the chip has those, each of
// which searches its part of the vocabulary.
//
// Every row is read once where that is enough. Without filters, a token's noise is compared with what it would take to
// beat the best token so far, and few are looked at further. With filters, samples of a part bound its largest logits
// from below; what reaches the bound is listed, and the row's first block chooses from all lists. Where lists are too
// short for the filters, or too long, the row is read again and again: a threshold for each filter is found by
// histograms of 2048 ranges of values, each time of the range in which it must lie, with as much of a part in shared
// memory as fits.
//
// The filters are defined on sets and every step is exact (integer counts, masses in 64-bit fixed point, arithmetic
// without contraction), so the choice depends neither on an order of summation nor on the batch, and equals that of the
// CPU module (csrc/cpu/sample.h) bit for bit.
#include <cfloat>

#include "noise.cuh"
#include "vocabulary.cuh"

namespace octavo {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kBlocksPerMultiprocessor = 2, kMostParts = 8;
constexpr int kBins = 2048, kBinsEach = kBins / kThreads;
constexpr int kList = 3 * kBins;         // survivors of the filters that are listed where the histogram was
constexpr int kEntries = 3 * kBins / 2;  // of the largest tokens, in the same place
constexpr int kOwnEntries = kEntries / kThreads;
constexpr int kSamples = 4;      // groups of each thread
constexpr int kMostRanks = 128;  // what samples can bound with so few entries
constexpr int kRankBins = 256;
constexpr int kMostTokens = 1 << 18; // of a part
constexpr float kFirstRange = 8.0f;  // scaled logits this far below the largest are searched for a threshold first

// Sums of weights of up to 42 bits in limbs of 14: the 2^18 tokens of a part at most cannot make one overflow, and no
// addition waits for another one's carry.
struct alignas(16) Histogram {
  uint32_t limbs[3][kBins];

  __device__ void add(int bin, uint64_t weight) {
    const uint32_t parts[] = {uint32_t(weight) & 0x3fff, uint32_t(weight >> 14) & 0x3fff, uint32_t(weight >> 28)};
#pragma unroll
    for (int i = 0; i < 3; ++i)
      if (parts[i] > 0) atomicAdd(&limbs[i][bin], parts[i]);
  }
  template <int kLimbs>
  __device__ void clear() {
    for (int i = threadIdx.x; i < kLimbs * kBins / 4; i += kThreads) reinterpret_cast<uint4*>(limbs)[i] = {};
  }
};

struct alignas(8) Entry {
  float logit;
  int token;
};

struct Scratch {
  union {
    Histogram bins;
    int list[kList];
    alignas(16) Entry entries[kEntries];
  };
  uint64_t warps[kWarps];
  uint4 exchanged[5];  // with the row's other blocks, for each purpose
  int found;           // where the running sum reaches the goal, and what lies before and in it
  uint64_t before, within, all;
  int listed, counts[kMostParts];    // entries of the block's list, and of those of the row's blocks
  alignas(16) int ranks[kRankBins];
  uint32_t largest, chosen;  // key of the largest logit, and of the scaled one that is chosen
  uint32_t bar;     // key of the best score so far, scaled by log2(e)
  Noise noise;
  int top_k;
  bool by_rank, by_mass;  // which filters there are
  float top_p, log_min_p;
  float top;    // the largest scaled logit
  float bound;  // logit from which on the row's lists are complete
  bool fit;     // the lists name all that they should
  int held_groups;  // how many of the part's groups are held
};

__shared__ Scratch scratch;
extern __shared__ float4 held[];  // logits of the first groups of the block's part

// The blocks of a row are those of a cluster. All threads of all of them call what follows.
__device__ inline int parts() { return int(gridDim.x); }

__device__ inline void row_sync() {
#if OCTAVO_BULK_COPY
  if (parts() > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

// What lies at the address `mine` of shared memory in block `other` of the row.
__device__ inline uint4 read(const uint4* mine, int other) {
#if OCTAVO_BULK_COPY
  if (parts() > 1) {
    uint32_t address;
    uint4 v;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(mine)), "r"(other));
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
  }
#endif
  return *mine;
}

enum class Purpose { total, choice, slice, before, within };

// Over the block. `combine` is associative and commutative.
template <class F>
__device__ uint64_t reduce_block(uint64_t x, F&& combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(~0u, x, step));
  __syncthreads();  // what was there has been read
  if (threadIdx.x % 32 == 0) scratch.warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = scratch.warps[threadIdx.x % kWarps];
#pragma unroll
  for (int step = kWarps / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Over the row. One purpose serves once between two times at which all of a row's blocks meet.
template <Purpose purpose, class F>
__device__ uint64_t reduce(uint64_t x, F&& combine) {
  x = reduce_block(x, combine);
  uint4& mine = scratch.exchanged[int(purpose)];
  if (threadIdx.x == 0) mine.x = uint32_t(x), mine.y = uint32_t(x >> 32);
  row_sync();
  x = 0;
  for (int i = 0; i < parts(); ++i) {
    const uint4 other = read(&mine, i);
    x = combine(x, uint64_t(other.y) << 32 | other.x);
  }
  return x;
}
struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Most {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return max(a, b); }
};

__device__ __noinline__ uint64_t total_of(uint64_t x) { return reduce<Purpose::total>(x, Sum{}); }
__device__ __noinline__ uint64_t choice_of(uint64_t x) { return reduce<Purpose::choice>(x, Most{}); }

// The first for places known to the compiler, the second for others: references to those would lie in memory.
__device__ inline float& at(float4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ inline float pick(const float4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ inline float scaled(float logit, float temperature) {
  return __fadd_rn(temperature == 1.0f ? logit : __fdiv_rn(logit, temperature), 0.0f);  // no -0
}

template <class T>
struct Part {
  Logits<T> logits;
  int begin, end;  // groups
  float temperature;

  __device__ float scaled(float logit) const { return octavo::scaled(logit, temperature); }

  __device__ float4 group(int index) const {
    return index - begin < scratch.held_groups ? held[index - begin] : logits.group(index);
  }
  // Calls f(token, z) for all scaled logits of at least `floor`, perhaps for more. A division costs more than reading,
  // and most are below.
  template <class F>
  __device__ void each(float floor, F&& f) const {
    const float product = floor * temperature, least = product - 1e-6f * fabsf(product) - FLT_MIN;
    auto four = [&](int index, float4 x) {
      if (!(fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)) >= least)) return;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (at(x, i) >= least) f(4 * index + i, scaled(at(x, i)));
    };
    const int held_groups = scratch.held_groups;
    for (int i = threadIdx.x; i < held_groups; i += kThreads) four(begin + i, held[i]);
    logits.template stream<kThreads, 1>(begin + held_groups, end, four);
  }
};

// The first bin, in order of index, at which the sum over the row's blocks reaches `goal` goes to `scratch`, kBins if
// none does. Histograms may be changed again afterwards. Each block sums a slice of the bins over all blocks: memory of
// another block is far away.
template <int kLimbs>
__device__ __noinline__ void find_bin(uint64_t goal) {
  static_assert(kBinsEach == 4, "a thread's bins are one vector");
  const int count = parts(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int vector = int(blockIdx.x) * (kThreads / count) + threadIdx.x / count;
  uint64_t sums[kBinsEach] = {};
#pragma unroll
  for (int i = 0; i < kLimbs; ++i) {
    const uint4 limb = read(reinterpret_cast<const uint4*>(scratch.bins.limbs[i]) + vector, threadIdx.x % count);
    sums[0] += uint64_t(limb.x) << 14 * i, sums[1] += uint64_t(limb.y) << 14 * i;
    sums[2] += uint64_t(limb.z) << 14 * i, sums[3] += uint64_t(limb.w) << 14 * i;
  }
  for (int step = 1; step < count; step *= 2) {
#pragma unroll
    for (int i = 0; i < kBinsEach; ++i) sums[i] += __shfl_xor_sync(~0u, sums[i], step);
  }
  const bool first = threadIdx.x % count == 0;  // of the threads that now hold the same sums
  const uint64_t mine = first ? sums[0] + sums[1] + sums[2] + sums[3] : 0;
  uint64_t reached = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t below = __shfl_up_sync(~0u, reached, step);
    if (lane >= step) reached += below;
  }
  if (lane == 31) scratch.warps[warp] = reached;
  __syncthreads();
  for (int i = 0; i < warp; ++i) reached += scratch.warps[i];
  uint4& slice = scratch.exchanged[int(Purpose::slice)];
  if (threadIdx.x == kThreads - 1) slice.x = uint32_t(reached), slice.y = uint32_t(reached >> 32);
  reached -= mine;
  row_sync();
  uint64_t all = 0;
  int owner = -1;
  for (int i = 0; i < count; ++i) {
    const uint4 other = read(&slice, i);
    const uint64_t total = uint64_t(other.y) << 32 | other.x;
    if (i == int(blockIdx.x)) reached += all;
    if (all < goal && all + total >= goal) owner = i;
    all += total;
  }
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) {
    if (first && reached < goal && reached + sums[i] >= goal) {
      const uint32_t bin = uint32_t(kBinsEach * vector + i);
      scratch.exchanged[int(Purpose::before)] = {uint32_t(reached), uint32_t(reached >> 32), bin, 0};
      scratch.exchanged[int(Purpose::within)] = {uint32_t(sums[i]), uint32_t(sums[i] >> 32), 0, 0};
    }
    reached += sums[i];
  }
  row_sync();
  if (threadIdx.x == 0) {
    scratch.found = kBins, scratch.all = all;
    if (owner >= 0) {
      const uint4 before = read(&scratch.exchanged[int(Purpose::before)], owner);
      const uint4 within = read(&scratch.exchanged[int(Purpose::within)], owner);
      scratch.found = int(before.z), scratch.before = uint64_t(before.y) << 32 | before.x;
      scratch.within = uint64_t(within.y) << 32 | within.x;
    }
  }
  __syncthreads();
}

// exp(z - top) in units of 2^-40, by Cephes' exp2f polynomial; z is at most `top`.
__device__ inline uint64_t mass(float z, float top) {
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

// Weights of tokens, and what those of the tokens that pass a filter must sum up to.
struct Count {
  static constexpr bool kNeedsTotal = false;
  static constexpr int kLimbs = 1;
  __device__ uint64_t of(float) const { return 1; }
  __device__ uint64_t goal(uint64_t) const { return uint64_t(scratch.top_k); }
};

struct Mass {
  const float top = scratch.top;
  static constexpr bool kNeedsTotal = true;
  static constexpr int kLimbs = 3;
  __device__ uint64_t of(float z) const { return mass(z, top); }
  __device__ uint64_t goal(uint64_t total) const {
    return max(uint64_t(1), uint64_t(__double2ull_rz(__dmul_rn(double(total), double(fmaxf(scratch.top_p, 0.0f))))));
  }
};

// Adds the tokens whose keys lie in [begin, end) to the bins, and returns the weight of a thread's tokens of at least
// `floor`.
template <class Weight, class T>
__device__ __noinline__ uint64_t fill_bins(const Part<T> part, float floor, uint32_t begin, uint32_t end, int shift) {
  const Weight weight;
  uint64_t sum = 0;
  part.each(floor, [&](int, float z) {
    if (!(z >= floor)) return;
    const uint32_t key = key_of(z);
    const uint64_t w = weight.of(z);
    sum += w;
    if (key - begin < end - begin) scratch.bins.add((end - 1 - key) >> shift, w);
  });
  return sum;
}

// A bound of z such that the tokens at or above it are the fewest of the largest ones, ties included, whose weights
// reach the goal; `floor` where all of at least `floor` together do not.
template <class Weight, class T>
__device__ __noinline__ float threshold(const Part<T> part, float floor) {
  const uint32_t last = key_of(floor);
  uint32_t end = key_of(scratch.top) + 1, begin = max(last, key_of(__fadd_rn(scratch.top, -kFirstRange)));
  uint64_t goal = Weight{}.goal(0);  // less the weight of the keys from `end` on
  for (bool total = Weight::kNeedsTotal;; total = false) {
    const int shift = max(0, 32 - __clz(end - 1 - begin) - 11);
    scratch.bins.clear<Weight::kLimbs>();
    __syncthreads();
    const uint64_t sum = fill_bins<Weight>(part, total ? floor : value_of(begin), begin, end, shift);
    if (total) {
      goal = Weight{}.goal(reduce<Purpose::total>(sum, Sum{}));
    } else {
      row_sync();
    }
    find_bin<Weight::kLimbs>(goal);
    const int bin = scratch.found;
    if (bin == kBins) {
      if (begin == last) return floor;
      goal -= scratch.all, end = begin, begin = last;
    } else {
      goal -= scratch.before, end -= uint32_t(bin) << shift;
      begin = end - begin > 1u << shift ? end - (1u << shift) : begin;
      if (shift == 0) return value_of(begin);
      // Where the goal is not reached without any one of the range, all of it stays. Its smallest weight is known but
      // for the last bits of the polynomial.
      const uint64_t smallest = Weight{}.of(value_of(begin)), surplus = scratch.within - goal;
      if (surplus < smallest - (smallest >> 18)) return value_of(begin);
    }
    __syncthreads();  // what was found has been read
  }
}

// The best candidate among the tokens of a part; `group(index)` gives logits, minus infinity for what is filtered out.
//
// With u the random number, a score z - log(-log(u)) above s takes -log(u) <= exp(z - s), and -log(u) is 1 - u or more:
// few tokens pass, once s is the best score of some, and those that do are looked at exactly.
template <class T, class Group>
__device__ __noinline__ uint64_t best_of_all(const Part<T> part, const Group group) {
  constexpr int kUnroll = 2;
  const Noise noise = scratch.noise;
  const float factor = kLog2e / part.temperature;
  uint64_t best = 0;
  auto word_of = [](const uint4& w, int i) { return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w; };
  auto consider = [&](int index, const float4& x, const uint4& words, int i) {
    const float logit = pick(x, i);
    if (!(logit > -INFINITY)) return;
    const float score = __fadd_rn(part.scaled(logit), gumbel(word_of(words, i)));
    best = max(best, candidate(score, 4 * index + i));
    atomicMax(&scratch.bar, key_of(score * kLog2e));
  };
  float4 x[kUnroll], next[kUnroll];
  auto load = [&](float4(&to)[kUnroll], int base) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      to[i] = base + i * kThreads < part.end ? group(base + i * kThreads)
                                             : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  };
  int base = part.begin + threadIdx.x;
  load(x, base);
  if (threadIdx.x == 0) scratch.bar = key_of(-INFINITY);
  __syncthreads();
  int largest = 0;
#pragma unroll
  for (int i = 1; i < 4; ++i)
    if (at(x[0], i) > pick(x[0], largest)) largest = i;
  consider(base, x[0], noise.words(base), largest);
  __syncthreads();

  for (; base < part.end; base += kThreads * kUnroll) {
    load(next, base + kThreads * kUnroll);
    const float bar = value_of(*const_cast<volatile uint32_t*>(&scratch.bar));
    const float offset = 0.01f + 2e-6f * (fabsf(bar) + 40.0f) - bar;
    // Where something is not a number, all pass.
    auto passes = [&](float logit, uint32_t word) {
      const float rest = 0x1.fffffep0f - __uint_as_float((word >> 9) + 0x3f800000u);  // at most 1 - u
      return !(rest > fast_exp2(fmaf(logit, factor, offset)));
    };
    uint32_t passed = 0;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const uint4 words = noise.words(base + i * kThreads);
      bool any = false;
#pragma unroll
      for (int j = 0; j < 4; ++j) any |= passes(at(x[i], j), word_of(words, j));
      passed |= any ? 1u << i : 0;
    }
    while (passed) {
      const int i = __ffs(int(passed)) - 1;
      passed &= passed - 1;
      const float4 logits = i == 0 ? x[0] : x[1];
      const uint4 words = noise.words(base + i * kThreads);
#pragma unroll 1
      for (int j = 0; j < 4; ++j)
        if (passes(pick(logits, j), word_of(words, j))) consider(base + i * kThreads, logits, words, j);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) x[i] = next[i];
  }
  return best;
}

// The best candidate among the tokens at or above `floor`.
template <class T>
__device__ __noinline__ uint64_t best_of_some(const Part<T> part, float floor) {
  const Noise noise = scratch.noise;
  if (threadIdx.x == 0) scratch.listed = 0;
  __syncthreads();
  part.each(floor, [&](int token, float z) {
    if (!(z >= floor)) return;
    const int place = atomicAdd(&scratch.listed, 1);
    if (place < kList) scratch.list[place] = token;
  });
  __syncthreads();
  const int listed = scratch.listed;
  if (listed > kList) {
    return best_of_all(part, [=](int index) {
      float4 x = part.group(index);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!(part.scaled(at(x, i)) >= floor)) at(x, i) = -INFINITY;
      return x;
    });
  }
  uint64_t best = 0;
  for (int i = threadIdx.x; i < listed; i += kThreads) {
    const int token = scratch.list[i];
    const float logit = pick(part.group(token / 4), token % 4);
    best = max(best, candidate(__fadd_rn(part.scaled(logit), noise.of(token)), token));
  }
  return best;
}

template <class T>
__device__ __noinline__ uint64_t best_logit(const Part<T> part) {
  float best = -INFINITY;
  int where = 0;
  part.logits.template stream<kThreads, 4>(part.begin, part.end, [&](int index, float4 x) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (at(x, i) > best) best = at(x, i), where = 4 * index + i;
  });
  return candidate(best, where);
}

// Takes logits into shared memory.
template <class T>
__device__ __noinline__ void hold(const Part<T> part) {
  part.logits.template stream<kThreads, 4>(part.begin, part.begin + scratch.held_groups,
                                           [&](int index, float4 x) { held[index - part.begin] = x; });
}

// Not inlined: it would cost the rest of the kernel its registers.
__device__ __noinline__ float log_of(float x) { return float(log(double(x))); }

// What is listed for a bound: tokens whose scaled logit is that of a token at the bound reach it, too.
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
  auto logits_of = [&](int index) {
    return index < part.end ? part.logits.group(index) : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  };
  float4 x[kUnroll], next[kUnroll];
#pragma unroll
  for (int i = 0; i < kSamples; ++i) next[i] = logits_of(first + stretch * i / kSamples * kThreads);
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) x[i] = logits_of(first + i * kThreads);
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSamples; ++i) top = fmaxf(top, largest(next[i]));
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
    for (int i = 0; i < kUnroll; ++i) next[i] = logits_of(base + (kUnroll + i) * kThreads);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int index = base + i * kThreads;
      if (index - part.begin < held_groups) held[index - part.begin] = x[i];
      const float most = largest(x[i]);
      if (!(most >= least)) continue;
      top = fmaxf(top, most);
      int count = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) count += at(x[i], j) >= least;
      int place = atomicAdd(&scratch.listed, count);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!(at(x[i], j) >= least)) continue;
        if (place < kEntries) scratch.entries[place] = {at(x[i], j), 4 * index + j};
        ++place;
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) x[i] = next[i];
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

// Mass of a thread's tokens. Quotients are rounded as a division rounds them: two corrections from the reciprocal make
// that sure (Markstein, IBM J. Res. Dev. 34, 1990) where nothing comes near the ends of the range of floats.
template <class T>
__device__ __noinline__ uint64_t mass_of_all(const Part<T> part) {
  constexpr float most = 0x1p60f, least = 0x1p-60f;
  const Mass mass;
  const float divisor = part.temperature, inverse = __frcp_rn(divisor);
  const bool usual = divisor < most && divisor > least;
  uint64_t sum = 0;
  auto add = [&](int, float4 x) {
    const float a = fabsf(x.x), b = fabsf(x.y), c = fabsf(x.z), d = fabsf(x.w);
    if (usual && fmaxf(fmaxf(a, b), fmaxf(c, d)) < most && fminf(fminf(a, b), fminf(c, d)) > least) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float z = __fmul_rn(at(x, i), inverse);
#pragma unroll
        for (int step = 0; step < 2; ++step) z = __fmaf_rn(__fmaf_rn(-z, divisor, at(x, i)), inverse, z);
        sum += mass.of(z);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < 4; ++i)
        if (const float z = part.scaled(pick(x, i)); z >= -FLT_MAX) sum += mass.of(z);
    }
  };
  const int held_groups = scratch.held_groups;
  for (int i = threadIdx.x; i < held_groups; i += kThreads) add(i, held[i]);
  part.logits.template stream<kThreads, 4>(part.begin + held_groups, part.end, add);
  return sum;
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

template <class T>
__device__ uint64_t best_filtered(const Part<T>& part) {
  share_lists(list_largest(part), part.temperature);
  const uint64_t best = best_short(part);
  if (best != kUnknown) return best;
  row_sync();  // what was exchanged has been read
  hold(part);
  __syncthreads();
  float floor = -FLT_MAX;  // what is minus infinity stays out
  if (scratch.by_rank) floor = threshold<Count>(part, floor);
  if (scratch.by_mass) floor = threshold<Mass>(part, floor);
  return choice_of(best_of_some(part, fmaxf(floor, __fadd_rn(scratch.top, scratch.log_min_p))));
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    sample_kernel(const __grid_constant__ SampleArgs a, int held_groups) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t r = blockIdx.y;
  const int groups = (a.vocab + 3) / 4;
  const T* row = static_cast<const T*>(a.logits) + r * a.stride;
  const int begin = int(int64_t(groups) * int(blockIdx.x) / parts());
  const int end = int(int64_t(groups) * (int(blockIdx.x) + 1) / parts());
  const Part<T> part{Logits<T>{row, a.vocab}, begin, end, a.temperature[r]};
  if (threadIdx.x == 0) {
    scratch.held_groups = min(held_groups, part.end - part.begin), scratch.listed = 0, scratch.largest = 0;
    scratch.noise = {uint64_t(a.seeds[r]), uint32_t(a.positions[r]), uint32_t(a.indices[r])};
    scratch.top_k = a.top_k[r], scratch.top_p = a.top_p[r];
    scratch.by_rank = scratch.top_k > 0 && scratch.top_k < a.vocab, scratch.by_mass = scratch.top_p < 1.0f;
    scratch.log_min_p = a.min_p[r] > 0.0f ? log_of(a.min_p[r]) : -INFINITY;
  }
  __syncthreads();
  const bool filtered = scratch.by_rank || scratch.by_mass || scratch.log_min_p > -INFINITY;
  uint64_t best;
  if (!(part.temperature > 0.0f)) {
    best = choice_of(best_logit(part));
  } else if (filtered) {
    best = best_filtered(part);
  } else {
    best = choice_of(best_of_all(part, [=](int index) { return part.logits.group(index); }));
  }
  if (blockIdx.x == 0 && threadIdx.x == 0)
    a.tokens[blockIdx.y] = value_of_candidate(best) > -INFINITY ? token_of_candidate(best) : 0;
  row_sync();  // nobody leaves while others read
}

// Blocks of a row: enough to fill the chip, where they can work together. Clusters of more than two leave places empty,
// an eleventh of an H200's: one row more than fits would take as long as twice the rows.
int parts_of(const SampleArgs& a, const Device& device) {
  if (device.major < 9) return 1;
  const int64_t groups = (int64_t(a.vocab) + 3) / 4, blocks = kBlocksPerMultiprocessor * device.multiprocessors;
  int parts = 1;
  while (parts < kMostParts && groups > parts * 512 &&
         2 * parts * a.rows <= (parts > 1 ? blocks * 10 / 11 : blocks))
    parts *= 2;
  return parts;
}

template <class T>
cudaError_t launch(const SampleArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const unsigned parts = unsigned(parts_of(a, device));
  // Blocks that all fit side by side are not to share a multiprocessor.
  const bool apart = parts <= 2 && parts * a.rows <= device.multiprocessors;
  constexpr int kReserved = 1024;  // bytes of each block
  const int available = device.shared_per_multiprocessor / (apart ? 1 : kBlocksPerMultiprocessor) - kReserved;
  const int held_bytes = (min(available, device.shared_per_block) - int(sizeof(Scratch))) / 16 * 16;
  cudaError_t error = cudaFuncSetAttribute(sample_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, held_bytes);
  if (error != cudaSuccess) return error;
  if (a.vocab > int64_t(kMostTokens) * parts) return cudaErrorInvalidValue;
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
  return with_dtype(a.dtype, [&](auto tag) { return launch<decltype(tag)>(a, stream); });
}

}  // namespace octavo
