// Thresholds of top-k and top-p over all of a row, by histograms, and the masses that top-p is about.
#pragma once

#include "sampling/sample_row.cuh"

namespace octavo {
namespace {

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

}  // namespace
}  // namespace octavo
