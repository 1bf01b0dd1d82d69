// Passes over rows of logits, a few wide loads of each thread in flight, and orders of (value, token).
#pragma once

#include <type_traits>

#include "device/common.cuh"
#include "sampling/args.h"

namespace octavo {

// Order-preserving map of floats to integers, and back.
__device__ inline uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// The best value and, among equals, the lowest token: the largest candidate.
__device__ inline uint64_t candidate(float value, int token) {
  return uint64_t(key_of(__fadd_rn(value, 0.0f))) << 32 | uint32_t(~token);  // -0 and 0 are equal
}
__device__ inline float value_of_candidate(uint64_t x) { return value_of(uint32_t(x >> 32)); }
__device__ inline int token_of_candidate(uint64_t x) { return int(~uint32_t(x)); }

__device__ inline uint64_t warp_max(uint64_t x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// A row of logits in groups of four tokens. Behind the vocabulary's end they are minus infinity.
template <class T>
struct Logits {
  // As they are loaded, in whole words, which are taken apart where they are used: before that, no thread waits for them.
  using Group = Elements<uint32_t, sizeof(T)>;
  const T* row;
  int vocab;

  static __device__ float4 widen(const Group& group) {
    const Elements<T, 4>& x = reinterpret_cast<const Elements<T, 4>&>(group);
    return {to_float(x.at[0]), to_float(x.at[1]), to_float(x.at[2]), to_float(x.at[3])};
  }
  // Four tokens of which the first `count` are those at `from`.
  static __device__ Group gather(const T* from, int count) {
    auto bits = [&](int i) {
      const T x = i < count ? from[i] : from_float<T>(-INFINITY);
      if constexpr (sizeof(T) == 4) return __float_as_uint(x);
      else return uint32_t(reinterpret_cast<const uint16_t&>(x));
    };
    if constexpr (sizeof(T) == 4) return {bits(0), bits(1), bits(2), bits(3)};
    else return {bits(0) | bits(1) << 16, bits(2) | bits(3) << 16};
  }
  static __device__ Group nothing() { return gather(nullptr, 0); }
  __device__ Group load(int index) const {
    const int token = 4 * index;
    if (reinterpret_cast<uintptr_t>(row) % (4 * sizeof(T)) == 0 && token + 4 <= vocab) {
      using Word = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
      const Word word = __ldcg(reinterpret_cast<const Word*>(row + token));
      return reinterpret_cast<const Group&>(word);
    }
    return gather(row + token, vocab - token);
  }
  __device__ float4 group(int index) const { return widen(load(index)); }

  // Calls f(group, logits) for the groups from `begin` to before `end`, dealt out to the block's threads, of which each
  // has `kUnroll` loads in flight.
  template <int kThreads, int kUnroll, class F>
  __device__ void stream(int begin, int end, F&& f) const {
    for (int base = begin + threadIdx.x; base < end; base += kThreads * kUnroll) {
      Group x[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        if (base + i * kThreads < end) x[i] = load(base + i * kThreads);
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        if (base + i * kThreads < end) f(base + i * kThreads, widen(x[i]));
    }
  }
};

}  // namespace octavo
