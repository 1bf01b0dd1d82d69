// The blocks that search a row of logits for its token: what each has in shared memory, its part of the row, and how
// they meet.
#pragma once

#include <cfloat>

#include "sampling/noise.cuh"
#include "sampling/vocabulary.cuh"

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
    cluster_meet();
    return;
  }
#endif
  __syncthreads();
}

// The value at the address `mine` of shared memory in block `other` of the row.
__device__ inline uint4 read(const uint4* mine, [[maybe_unused]] int other) {
#if OCTAVO_BULK_COPY
  if (parts() > 1) return load_words_of(other, mine);
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

}  // namespace
}  // namespace octavo
