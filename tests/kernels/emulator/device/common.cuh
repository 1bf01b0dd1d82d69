// The part of the header of this name that kernels take, for the host.
#pragma once

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "emulator.h"
#include "operands.h"

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#ifndef OCTAVO_BULK_COPY
#define OCTAVO_BULK_COPY 0
#endif
#define OCTAVO_CLUSTERS 1
#define OCTAVO_HOPPER 1
using std::max;
using std::min;

template <class P>
P __ldcg(const P* p) {
  return *p;
}
template <class P>
P __ldg(const P* p) {
  return *p;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline void __syncwarp() {
  emulator::meet(emulator::own_warp(), emulator::lane(), 32, nullptr, [](auto&) {});
}
template <class V>
V shuffled(V value, int from) {
  struct Given {
    V value;
    int from;
    V got;
  } given{value, from, value};
  emulator::meet(emulator::own_warp(), emulator::lane(), 32, &given, [](emulator::Meeting& m) {
    for (int i = 0; i < 32; ++i) {
      auto* g = static_cast<Given*>(m.given[i]);
      g->got = static_cast<Given*>(m.given[g->from])->value;
    }
  });
  return given.got;
}
template <class V>
V __shfl_sync(unsigned, V value, int from) {
  return shuffled(value, from);
}
template <class V>
V __shfl_xor_sync(unsigned, V value, int mask) {
  return shuffled(value, emulator::lane() ^ mask);
}
template <class V>
V __shfl_down_sync(unsigned, V value, int lanes) {
  return shuffled(value, min(emulator::lane() + lanes, 31));
}
template <class V>
V __shfl_up_sync(unsigned, V value, int lanes) {
  return shuffled(value, max(emulator::lane() - lanes, 0));
}
inline unsigned __ballot_sync(unsigned, bool value) {
  unsigned all = value ? 1u << emulator::lane() : 0u;
  for (int step = 16; step > 0; step /= 2) all |= __shfl_xor_sync(0, all, step);
  return all;
}
inline int __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline int __ffs(unsigned bits) { return __builtin_ffs(int(bits)); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline void __threadfence() {}
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(0, value, step));
  return value;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __int2float_rn(int x) { return float(x); }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += int8_t(a >> i) * int8_t(b >> i);
  return sum;
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
}
inline __half __hfma(__half a, __half b, __half c) {
  return __double2half(double(__half2float(a)) * __half2float(b) + __half2float(c));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }

namespace octavo {

using bf16 = __nv_bfloat16;
using f16 = __half;
inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr float kNoScore = -1e30f;

template <class F>
cudaError_t with_half(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::bf16: return f(bf16{});
    case Dtype::f16: return f(f16{});
    default: return cudaErrorInvalidValue;
  }
}
template <class F>
cudaError_t with_dtype(Dtype dtype, F&& f) {
  if (dtype == Dtype::f32) return f(float{});
  return with_half(dtype, f);
}

constexpr int swizzle_units(int units, int token, int unit) { return units % 8 ? unit : (unit & ~7) + ((unit ^ token) & 7); }

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return __bfloat162float(x); }
inline float to_float(f16 x) { return __half2float(x); }
template <class T>
T from_float(float x) {
  if constexpr (std::is_same_v<T, bf16>) return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, f16>) return __float2half_rn(x);
  else return x;
}
template <class T>
uint32_t pack(float low, float high) {
  const T pair[2] = {from_float<T>(low), from_float<T>(high)};
  uint32_t word;
  std::memcpy(&word, pair, 4);
  return word;
}
template <class T>
float2 unpack(uint32_t word) {
  T pair[2];
  std::memcpy(pair, &word, 4);
  return {to_float(pair[0]), to_float(pair[1])};
}
inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_inverse(float x) { return 1.0f / x; }
template <class T, int N>
struct alignas(N * sizeof(T) % 16 == 0 ? 16 : N * sizeof(T) % 8 == 0 ? 8 : N * sizeof(T) % 4 == 0 ? 4 : sizeof(T))
    Elements {
  T at[N];
};
inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0, x, step);
  return x;
}
inline void transpose_quad(uint32_t (&words)[4]) {
  struct Given {
    uint32_t words[4];
  } given;
  std::memcpy(given.words, words, 16);
  uint32_t* to = words;
  struct Both {
    Given given;
    uint32_t* to;
  } both{given, to};
  emulator::meet(emulator::own_warp(), emulator::lane(), 32, &both, [](emulator::Meeting& m) {
    for (int i = 0; i < 32; ++i)
      for (int j = 0; j < 4; ++j)
        static_cast<Both*>(m.given[i])->to[j] = static_cast<Both*>(m.given[i / 4 * 4 + j])->given.words[i % 4];
  });
}

// Of an 8 x 8 matrix of 16-bit values, of which a lane has two of row lane / 4.
inline uint32_t transpose(uint32_t pair) {
  struct Given {
    uint32_t own, got;
  } given{pair, 0};
  emulator::meet(emulator::own_warp(), emulator::lane(), 32, &given, [](emulator::Meeting& m) {
    for (int i = 0; i < 64; ++i) {
      const int row = i / 8, column = i % 8;
      const uint32_t value = static_cast<Given*>(m.given[column * 4 + row / 2])->own >> 16 * (row % 2) & 0xffff;
      static_cast<Given*>(m.given[row * 4 + column / 2])->got |= value << 16 * (column % 2);
    }
  });
  return given.got;
}
inline void hold(uint32_t&) {}

inline uint32_t shared_address(const void* p) { return emulator::shared_offset(p); }

// PTX ISA, "Matrix Fragments for mma.m16n8k16".
template <class T>
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Given {
    float* d;
    const uint32_t* a;
    uint32_t b[2];
  } given{d, a, {b0, b1}};
  emulator::meet(emulator::own_warp(), emulator::lane(), 32, &given, [](emulator::Meeting& m) {
    float left[16][16], right[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto* g = static_cast<Given*>(m.given[lane]);
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack<T>(g->a[i]);
        float* to = &left[lane / 4 + i % 2 * 8][i / 2 * 8 + lane % 4 * 2];
        to[0] = pair.x, to[1] = pair.y;
      }
      for (int i = 0; i < 2; ++i) {
        const float2 pair = unpack<T>(g->b[i]);
        right[i * 8 + lane % 4 * 2][lane / 4] = pair.x, right[i * 8 + lane % 4 * 2 + 1][lane / 4] = pair.y;
      }
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) static_cast<Given*>(m.given[lane])->d[i] += left[row][k] * right[k][column];
      }
  });
}
// Rows of four 8 x 8 matrices, of each of which a lane gets two neighbours of a row, or of a column.
template <bool kTransposed>
void load_matrices(uint32_t (&d)[4], uint32_t address) {
  struct Given {
    uint32_t* d;
    uint32_t address;
  } given{d, address};
  emulator::meet(emulator::own_warp(), emulator::lane(), 32, &given, [](emulator::Meeting& m) {
    const auto row = [&](int matrix, int at) {
      const uint32_t address = static_cast<Given*>(m.given[matrix * 8 + at])->address;
      if (address % 16) emulator::fail("ldmatrix from no multiple of 16");
      return emulator::shared_of(emulator::current->block, address, 16);
    };
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e) {
          char* to = reinterpret_cast<char*>(static_cast<Given*>(m.given[lane])->d + i) + 2 * e;
          if (kTransposed) std::memcpy(to, row(i, lane % 4 * 2 + e) + lane / 4 * 2, 2);
          else std::memcpy(to, row(i, lane / 4) + lane % 4 * 4 + 2 * e, 2);
        }
  });
}
inline void ldmatrix(uint32_t (&d)[4], uint32_t address) { load_matrices<false>(d, address); }
inline void ldmatrix_transposed(uint32_t (&d)[4], uint32_t address) { load_matrices<true>(d, address); }

// A thread's copies land when it waits for their group.
inline void copy16(uint32_t shared, const void* global, bool valid = true) {
  char* to = emulator::shared_of(emulator::current->block, shared, 16);
  if (shared % 16 || reinterpret_cast<uintptr_t>(global) % 16) emulator::fail("a copy of 16 bytes that are not aligned");
  emulator::current->copies.back().push_back([=] { valid ? std::memcpy(to, global, 16) : std::memset(to, 0, 16); });
}
inline void copy16_once(uint32_t shared, const void* global) { copy16(shared, global); }
inline uint4 load16_once(const void* global) {
  if (reinterpret_cast<uintptr_t>(global) % 16) emulator::fail("a load of 16 bytes that are not aligned");
  uint4 v;
  std::memcpy(&v, global, 16);
  return v;
}
inline uint4 load16(const void* global) { return load16_once(global); }
inline void clear16(uint32_t shared) { std::memset(emulator::shared_of(emulator::current->block, shared, 16), 0, 16); }
inline float load_float(const float* global) { return *global; }
inline uint32_t load_word(const void* global) {
  uint32_t v;
  std::memcpy(&v, global, 4);
  return v;
}
inline void store_words(void* to, uint32_t a, uint32_t b) {
  if (reinterpret_cast<uintptr_t>(to) % 8) emulator::fail("a store of 8 bytes that are not aligned");
  const uint32_t words[2] = {a, b};
  std::memcpy(to, words, 8);
}
inline void store_words(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  if (reinterpret_cast<uintptr_t>(to) % 16) emulator::fail("a store of 16 bytes that are not aligned");
  const uint32_t words[4] = {a, b, c, d};
  std::memcpy(to, words, 16);
}
inline void commit_copies() { emulator::current->copies.emplace_back(); }
template <int kPending>
void wait_copies() {
  auto& groups = emulator::current->copies;
  while (int(groups.size()) - 1 > kPending) {
    for (auto& copy : groups.front()) copy();
    groups.erase(groups.begin());
  }
}

inline void barrier_sync(int id, int threads) {
  emulator::meet(emulator::current->block->named[id], 0, threads, nullptr, [](auto&) {});
}
inline void barrier_init(uint32_t barrier, int count) {
  emulator::shared_of(emulator::current->block, barrier, 8);
  emulator::current->block->barriers[barrier] = {count, count, 0, 0};
}
inline void arrive(emulator::Block* block, uint32_t barrier, int64_t bytes) {
  auto& b = emulator::barrier_at(block, barrier);
  if (b.pending == 0) emulator::fail("more arrivals than a barrier counts");
  b.bytes += bytes, --b.pending;
  emulator::settle(b);
}
inline void barrier_expect(uint32_t barrier, uint32_t bytes) { arrive(emulator::current->block, barrier, bytes); }
inline void barrier_arrive_once(uint32_t barrier) { arrive(emulator::current->block, barrier, 0); }
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (emulator::barrier_at(emulator::current->block, barrier).phase == (parity & 1)) emulator::yield();
}
// A copy to a block, whose barrier hears of it.
template <class F>
void copy_later(emulator::Block* block, uint32_t barrier, uint32_t bytes, F&& copy) {
  emulator::under_way.emplace_back(block, [=] {
    copy();
    auto& b = emulator::barrier_at(block, barrier);
    b.bytes -= bytes;
    emulator::settle(b);
  });
}
inline void prefetch_bulk(const void*, uint32_t) {}
inline void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  if (shared % 16 || bytes % 16 || reinterpret_cast<uintptr_t>(global) % 16) emulator::fail("a bulk copy that is not aligned");
  char* to = emulator::shared_of(emulator::current->block, shared, int(bytes));
  copy_later(emulator::current->block, barrier, bytes, [=] { std::memcpy(to, global, bytes); });
}
inline uint64_t read_once_policy() { return 0; }
inline void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier, uint64_t) {
  copy_bulk(shared, global, bytes, barrier);
}
inline void fence_bulk() {}
inline void cluster_meet() {
  emulator::meet(emulator::cluster_meeting, 0, emulator::cluster_threads, nullptr, [](auto&) {});
}
inline float4 load_of(int rank, uint32_t address) {
  float4 v;
  std::memcpy(&v, emulator::shared_of(emulator::current->block->cluster[rank], address, 16), 16);
  return v;
}
#if !EMULATED_LINEAR  // which has one
inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
#endif

template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}
inline void launch_next_kernel() {}
inline void wait_for_previous_kernel() {}

struct Device {
  int major, multiprocessors, shared_per_multiprocessor, shared_per_block;
};
inline int multiprocessors = 4;  // of each GPU
inline cudaError_t describe(Device& d) {
  d = {9, multiprocessors, 233472, 232448};
  return cudaSuccess;
}
inline bool runs_hopper_code(const Device&) { return true; }

struct Launch {
  dim3 grid;
  int threads, shared_bytes = 0;
  int cluster = 1;
  int share = 0;
};
template <class... Parameters>
cudaError_t clusters_at_once(void (*)(Parameters...), const Launch& how, int& clusters) {
  clusters = multiprocessors / how.cluster;
  return cudaSuccess;
}
template <class... Parameters, class... Arguments>
cudaError_t launch_after(void (*kernel)(Parameters...), const Launch& how, cudaStream_t, const Arguments&... arguments) {
  if (how.shared_bytes > 232448) return cudaErrorInvalidValue;
  emulator::launch({int(how.grid.x), 1, 1}, how.threads, how.shared_bytes, how.cluster, [&] { kernel(arguments...); });
  return cudaSuccess;
}

}  // namespace octavo

inline unsigned atomicOr(unsigned* at, unsigned bits) { return std::exchange(*at, *at | bits); }
inline unsigned atomicAdd(unsigned* at, unsigned count) { return std::exchange(*at, *at + count); }
inline void __syncthreads() { octavo::barrier_sync(0, emulator::block_size.x); }
