// The best of many tokens, each with its noise.
#pragma once

#include "sampling/sample_row.cuh"

namespace octavo {
namespace {

// Logits that pass a filter: the others become minus infinity.
template <class T>
struct Filtered {
  using Group = float4;
  const Part<T> part;
  const float floor;

  static __device__ float4 widen(const float4& x) { return x; }
  static __device__ float4 nothing() { return {-INFINITY, -INFINITY, -INFINITY, -INFINITY}; }
  __device__ float4 load(int index) const {
    float4 x = part.group(index);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!(part.scaled(at(x, i)) >= floor)) at(x, i) = -INFINITY;
    return x;
  }
};

// The best candidate among the tokens of a part, from a source that gives logits as `Logits` does.
//
// With u the random number, a score z - log(-log(u)) above s takes -log(u) <= exp(z - s), and -log(u) is 1 - u or more:
// few tokens pass, once s is the best score of some, and those that do are looked at exactly.
template <class T, class Source>
__device__ __noinline__ uint64_t best_of_all(const Part<T> part, const Source source) {
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
  typename Source::Group next[kUnroll];
  float4 x[kUnroll];
  auto load = [&](int base) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      next[i] = base + i * kThreads < part.end ? source.load(base + i * kThreads) : Source::nothing();
  };
  auto take = [&] {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) x[i] = Source::widen(next[i]);
  };
  int base = part.begin + threadIdx.x;
  load(base), take();
  if (threadIdx.x == 0) scratch.bar = key_of(-INFINITY);
  __syncthreads();
  int largest = 0;
#pragma unroll
  for (int i = 1; i < 4; ++i)
    if (at(x[0], i) > pick(x[0], largest)) largest = i;
  consider(base, x[0], noise.words(base), largest);
  __syncthreads();

  for (; base < part.end; base += kThreads * kUnroll) {
    load(base + kThreads * kUnroll);
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
    take();
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
  if (listed > kList) return best_of_all(part, Filtered<T>{part, floor});
  uint64_t best = 0;
  for (int i = threadIdx.x; i < listed; i += kThreads) {
    const int token = scratch.list[i];
    const float logit = pick(part.group(token / 4), token % 4);
    best = max(best, candidate(__fadd_rn(part.scaled(logit), noise.of(token)), token));
  }
  return best;
}

}  // namespace
}  // namespace octavo
