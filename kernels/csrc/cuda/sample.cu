// Token choice by the Gumbel-max trick, and log-probabilities. A row belongs to one block or, in a small batch on chips
// that have them, to a cluster of blocks: each searches its part of the vocabulary for the largest logit and for the best
// token, while thresholds are found by every block on its own.
//
// The filters are defined on sets and every step is exact (integer counts, masses in 64-bit fixed point, arithmetic
// without contraction), so the choice depends neither on an order of summation nor on the batch, and equals that of the
// CPU module (csrc/cpu/sample.h) bit for bit.
#include <cooperative_groups.h>

#include "common.cuh"

namespace octavo {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kBins = 2048;             // of scaled logits by distance from the largest
constexpr float kBinsPerUnit = 64.0f;
constexpr int kList = 4096;             // tokens of one bin that are held in shared memory
constexpr float kMaxNoise = 23.0f;      // -log(-log(1 - 2^-33)) = 22.88

// Order-preserving map of floats to integers, and back.
__device__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ float value_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ float exact_exp2(float x) {
  const float c = fminf(127.0f, fmaxf(-126.0f, x));
  const int n = __float2int_rn(c);
  const float f = __fsub_rn(c, float(n));
  float p = 1.535336188319500e-4f;
  p = __fadd_rn(__fmul_rn(p, f), 1.339887440266574e-3f);
  p = __fadd_rn(__fmul_rn(p, f), 9.618437357674640e-3f);
  p = __fadd_rn(__fmul_rn(p, f), 5.550332471162809e-2f);
  p = __fadd_rn(__fmul_rn(p, f), 2.402264791363012e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 6.931472028550421e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 1.0f);
  return x < -126.0f ? 0.0f : __fmul_rn(p, __uint_as_float(uint32_t(n + 127) << 23));
}

// log(m) for m = f + 1, plus e * log(2): Cephes' logf.
__device__ float exact_log(float f, float e) {
  const float z = __fmul_rn(f, f);
  float p = 7.0376836292e-2f;
  p = __fadd_rn(__fmul_rn(p, f), -1.1514610310e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 1.1676998740e-1f);
  p = __fadd_rn(__fmul_rn(p, f), -1.2420140846e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 1.4249322787e-1f);
  p = __fadd_rn(__fmul_rn(p, f), -1.6668057665e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 2.0000714765e-1f);
  p = __fadd_rn(__fmul_rn(p, f), -2.4999993993e-1f);
  p = __fadd_rn(__fmul_rn(p, f), 3.3333331174e-1f);
  p = __fmul_rn(__fmul_rn(p, f), z);
  p = __fadd_rn(p, __fmul_rn(e, -2.12194440e-4f));
  p = __fsub_rn(p, __fmul_rn(z, 0.5f));
  return __fadd_rn(__fadd_rn(f, p), __fmul_rn(e, 0.693359375f));
}

// Splits a positive normal x into 1 + f in [sqrt(1/2), sqrt(2)) and an exponent.
__device__ void split(float x, float& f, float& e) {
  const uint32_t bits = __float_as_uint(x) + (0x3f800000u - 0x3f3504f3u);
  e = float(int(bits >> 23) - 127);
  f = __fsub_rn(__uint_as_float((bits & 0x007fffffu) + 0x3f3504f3u), 1.0f);
}

// -log(-log(u)), u = (x + 1/2) / 2^32. Near u = 1, log(u) is taken from the exactly known 1 - u.
__device__ float gumbel(uint32_t x) {
  const float u = __fmul_rn(__fadd_rn(__uint2float_rn(x), 0.5f), 0x1p-32f);
  const float rest = __fmul_rn(__fadd_rn(__uint2float_rn(~x), 0.5f), 0x1p-32f);
  float f, e;
  split(u, f, e);
  if (u >= 0.70710678f) f = -rest, e = 0.0f;
  const float t = -exact_log(f, e);
  split(t, f, e);
  return -exact_log(f, e);
}

// Philox4x32-10 (Salmon et al., SC 2011): key = seed, counter = (token / 4, position, sequence index, 0).
__device__ uint4 philox(uint32_t group, uint32_t position, uint32_t index, uint64_t seed) {
  uint4 c = make_uint4(group, position, index, 0);
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    c = make_uint4(__umulhi(0xcd9e8d57u, c.z) ^ c.y ^ key0, 0xcd9e8d57u * c.z,
                   __umulhi(0xd2511f53u, c.x) ^ c.w ^ key1, 0xd2511f53u * c.x);
    key0 += 0x9e3779b9u, key1 += 0xbb67ae85u;
  }
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

struct Scratch {
  unsigned long long bins[kBins];
  unsigned long long sums[kWarps];
  float list[kList];
  int listed, found;
  unsigned long long before;
};

struct Row {
  const float* logits;
  int vocab;
  float temperature, top;  // top: largest scaled logit

  __device__ float scaled(float logit) const { return __fdiv_rn(logit, temperature); }
  __device__ int bin(float z) const {
    const float distance = __fmul_rn(__fsub_rn(top, z), kBinsPerUnit);
    return distance < float(kBins - 1) ? int(distance) : kBins - 1;
  }
  // exp(z - top) in units of 2^-40.
  __device__ unsigned long long mass(float z) const {
    return __float2ull_rz(__fmul_rn(exact_exp2(__fmul_rn(__fsub_rn(z, top), kLog2e)), 0x1p40f));
  }
};

// Finds the first bin (in order of index) at which the running sum reaches `goal`, and the sum before it.
__device__ void find_bin(Scratch& s, int count, unsigned long long goal) {
  const int each = count / kThreads, first = threadIdx.x * each, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned long long mine = 0;
  for (int i = 0; i < each; ++i) mine += s.bins[first + i];
  unsigned long long inclusive = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned long long below = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == 31) s.sums[warp] = inclusive;
  if (threadIdx.x == 0) s.found = count - 1, s.before = 0;
  __syncthreads();
  unsigned long long reached = inclusive - mine;
  for (int i = 0; i < warp; ++i) reached += s.sums[i];
  for (int i = 0; i < each; ++i) {
    const unsigned long long next = reached + s.bins[first + i];
    if (reached < goal && next >= goal) s.found = first + i, s.before = reached;
    reached = next;
  }
  __syncthreads();
}

__device__ void clear_bins(Scratch& s) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) s.bins[i] = 0;
  __syncthreads();
}

// The largest value v among the `each` values such that the weights of all values >= v reach `goal`: radix selection on
// the bits, largest first, 11 + 11 + 10 of them at a time.
template <class Each, class Weight>
__device__ float select(Scratch& s, Each&& each, unsigned long long goal, Weight&& weight) {
  uint32_t prefix = 0, known = 0;
  for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
    const int width = shift == 0 ? 10 : 11;
    clear_bins(s);
    each([&](float z) {
      const uint32_t key = ~key_of(z);
      if ((key & known) == prefix) atomicAdd(&s.bins[key >> shift & ((1u << width) - 1)], weight(z));
    });
    __syncthreads();
    find_bin(s, kBins, goal);
    goal -= s.before;
    prefix |= uint32_t(s.found) << shift;
    known |= ((1u << width) - 1) << shift;
    __syncthreads();
    if (shift == 0) break;
  }
  return value_of(~prefix);
}

// Smallest scaled logit to keep, such that the weights of all tokens at or above it first reach the goal that `aim`
// makes of their total.
template <class Weight, class Aim>
__device__ float threshold(Scratch& s, const Row& row, float floor, Weight&& weight, Aim&& aim) {
  clear_bins(s);
  for_tokens(row.logits, row.vocab, [&](int, float logit) {
    const float z = row.scaled(logit);
    if (z >= floor) atomicAdd(&s.bins[row.bin(z)], weight(z));
  });
  __syncthreads();
  unsigned long long total = 0;
  for (int i = threadIdx.x; i < kBins; i += kThreads) total += s.bins[i];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
  if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = total;
  __syncthreads();
  total = 0;
  for (int i = 0; i < kWarps; ++i) total += s.sums[i];
  __syncthreads();
  const unsigned long long goal = aim(total);
  find_bin(s, kBins, goal);
  const int bin = s.found;
  const unsigned long long rest = goal - s.before;
  if (threadIdx.x == 0) s.listed = 0;
  __syncthreads();
  for_tokens(row.logits, row.vocab, [&](int, float logit) {
    const float z = row.scaled(logit);
    if (!(z >= floor) || row.bin(z) != bin) return;
    const int place = atomicAdd(&s.listed, 1);
    if (place < kList) s.list[place] = z;
  });
  __syncthreads();
  const int listed = s.listed;
  if (listed <= kList)
    return select(s, [&](auto&& f) {
      for (int i = threadIdx.x; i < listed; i += kThreads) f(s.list[i]);
    }, rest, weight);
  return select(s, [&](auto&& f) {
    for_tokens(row.logits, row.vocab, [&](int, float logit) {
      const float z = row.scaled(logit);
      if (z >= floor && row.bin(z) == bin) f(z);
    });
  }, rest, weight);
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ SampleArgs a) {
  __shared__ Scratch s;
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t r = blockIdx.y;
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
}

__global__ void __launch_bounds__(kThreads) logprobs_kernel(const __grid_constant__ LogprobArgs a) {
  __shared__ float sums[kWarps];
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t r = blockIdx.x;
  const float* logits = a.logits + r * a.stride;
  uint64_t best = 0;
  for_tokens(logits, a.vocab, [&](int token, float logit) { best = max(best, candidate(logit, token)); });
  best = block_max(best);
  const float top = value_of(uint32_t(best >> 32));
  float sum = 0.0f;
  for_tokens(logits, a.vocab, [&](int, float logit) { sum += fast_exp2((logit - top) * kLog2e); });
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const float log_sum = top + logf(warp_sum(threadIdx.x % 32 < kWarps ? sums[threadIdx.x % 32] : 0.0f));
  if (threadIdx.x == 0) a.chosen[r] = logits[a.tokens[r]] - log_sum;
  for (int i = 0; i < a.top; ++i) {  // the best one below the last
    if (threadIdx.x == 0) {
      a.top_ids[r * a.top + i] = int64_t(~uint32_t(best));
      a.top_values[r * a.top + i] = value_of(uint32_t(best >> 32)) - log_sum;
    }
    if (i + 1 == a.top) break;
    const uint64_t last = best;
    best = 0;
    for_tokens(logits, a.vocab, [&](int token, float logit) {
      const uint64_t x = candidate(logit, token);
      if (x < last) best = max(best, x);
    });
    best = block_max(best);
  }
}

}  // namespace

cudaError_t sample(const SampleArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
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
}

}  // namespace octavo
