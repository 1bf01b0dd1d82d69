// HIP's device functions on the host, with waves of 64 lanes. What happens between threads is HIP's: exchanges are of as
// many lanes as they are told, a ballot is of the wave (with anything where its other half is), and a barrier of the block
// is met by waves. All threads of a block must come to the same one, by the same calls: a wave whose halves come to two of
// them would count twice.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "emulator.h"
#include "hip/hip_runtime_api.h"

#define __device__
#define __host__
#define __global__
#define __noinline__ __attribute__((noinline))
#define __shared__ static  // blocks run one after the other

template <class T>
struct alignas(2 * sizeof(T)) Two {
  T x, y;
};
template <class T>
struct alignas(16) Four {
  T x, y, z, w;
};
using float2 = Two<float>;
using uint2 = Two<unsigned>;
using float4 = Four<float>;
using uint4 = Four<unsigned>;
using int4 = Four<int>;
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned across = 1, unsigned along = 1, unsigned deep = 1) : x(across), y(along), z(deep) {}
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Of one type: HIP takes two types for numbers in double precision.
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}

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
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline int __float2int_rn(float x) { return int(std::lrintf(x)); }
inline unsigned long long __float2ull_rz(float x) { return (unsigned long long)(x); }
inline unsigned long long __double2ull_rz(double x) { return (unsigned long long)(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= unsigned(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
}

// Threads take turns only where they wait for each other.
template <class A, class B>
A atomicAdd(A* to, B x) {
  const A before = *to;
  return *to += x, before;
}
template <class A, class B>
A atomicMax(A* to, B x) {
  const A before = *to;
  return *to = max<A>(before, x), before;
}
template <class A, class B>
A atomicMin(A* to, B x) {
  const A before = *to;
  return *to = min<A>(before, x), before;
}

namespace waves {

constexpr int kLanes = 64;
inline int lane() { return emulator::current->thread.x % kLanes; }

// Lanes of groups of `width` meet, one Meeting a group.
template <class F>
void meet(int width, void* given, F&& together) {
  if (width != 32 && width != kLanes) emulator::fail("an exchange of neither a warp nor a wave");
  auto& groups = width == 32 ? emulator::current->block->warps : emulator::current->block->waves;
  const int count = std::min(width, emulator::block_size.x - emulator::current->thread.x / width * width);
  emulator::meet(groups[emulator::current->thread.x / width], lane() % width, count, given, together);
}

template <class V>
V exchanged(V value, int from, int width) {
  struct Given {
    V value, got;
    int from;
  } given{value, value, from};
  meet(width, &given, [width](emulator::Meeting& m) {
    for (int i = 0; i < width; ++i)
      if (auto* mine = static_cast<Given*>(m.given[i])) {
        const auto* other = static_cast<Given*>(m.given[mine->from % width]);
        mine->got = other ? other->value : V{};
      }
    for (int i = 0; i < width; ++i) m.given[i] = nullptr;
  });
  return given.got;
}

// The calls by which a thread came to a barrier.
__attribute__((noinline)) inline uint64_t way() {
  uint64_t hash = 1469598103934665603u;
  const auto* frame = static_cast<void* const*>(__builtin_frame_address(0));
  const char* stack = emulator::current->stack.get();
  for (int depth = 0; depth < 64; ++depth) {
    const char* at = reinterpret_cast<const char*>(frame);
    if (at < stack || at >= stack + emulator::kStack) break;
    hash = (hash ^ reinterpret_cast<uint64_t>(frame[1])) * 1099511628211u;
    frame = static_cast<void* const*>(frame[0]);
  }
  return hash;
}

__attribute__((noinline)) inline int block_meets(int x) {
  struct Given {
    int x, sum;
    uint64_t way;
  } given{x, 0, way()};
  auto& meeting = emulator::current->block->named[0];
  emulator::meet(meeting, emulator::current->thread.x, emulator::block_size.x, &given, [](emulator::Meeting& m) {
    int sum = 0;
    for (int i = 0; i < emulator::block_size.x; ++i) {
      const auto* mine = static_cast<Given*>(m.given[i]);
      if (mine->way != static_cast<Given*>(m.given[0])->way) emulator::fail("warps came to different barriers of the block");
      sum += mine->x;
    }
    for (int i = 0; i < emulator::block_size.x; ++i) static_cast<Given*>(m.given[i])->sum = sum;
  });
  return given.sum;
}

// A launch, written as a function that takes the kernel's arguments.
template <class... Parameters>
auto launching(void (*kernel)(Parameters...), dim3 grid, int threads, int bytes, hipStream_t) {
  return [=](Parameters... arguments) {
    const emulator::Index size{int(grid.x), int(grid.y), int(grid.z)};
    emulator::launch(size, threads, bytes, 1, [&] { kernel(arguments...); });
  };
}
inline float4* dynamic_shared() { return reinterpret_cast<float4*>(emulator::current->block->shared); }
struct DynamicShared {
  operator float4*() const { return dynamic_shared(); }
};
// Shared variables lie as far from this one as 32 bits say.
inline char origin;
inline uint32_t shared_address(const void* p) { return uint32_t(static_cast<const char*>(p) - &origin); }
inline void* shared_pointer(size_t address) { return &origin + int32_t(address); }

}  // namespace waves

inline unsigned __lane_id() { return unsigned(waves::lane()); }
template <class V>
V __shfl(V value, int lane, int width) {
  return waves::exchanged(value, lane & (width - 1), width);
}
template <class V>
V __shfl_xor(V value, int mask, int width) {
  const int self = waves::lane(), other = self ^ mask;
  return waves::exchanged(value, other / width == self / width ? other % width : self % width, width);
}
template <class V>
V __shfl_up(V value, int step, int width) {
  const int self = waves::lane() % width;
  return waves::exchanged(value, self < step ? self : self - step, width);
}
inline uint64_t __ballot(int is_set) {
  struct Given {
    bool is_set;
    uint64_t bits;
  } given{is_set != 0, 0};
  waves::meet(32, &given, [](emulator::Meeting& m) {
    uint64_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= uint64_t(m.given[i] && static_cast<Given*>(m.given[i])->is_set) << i;
    for (int i = 0; i < 32; ++i)
      if (m.given[i]) static_cast<Given*>(m.given[i])->bits = bits, m.given[i] = nullptr;
  });
  const uint64_t other = emulator::random_source();
  return waves::lane() < 32 ? given.bits | other << 32 : given.bits << 32 | (other & 0xffffffffu);
}
#define __syncthreads() void(waves::block_meets(0))
#define __syncthreads_or(x) waves::block_meets((x) != 0)
#define __syncthreads_count(x) waves::block_meets((x) != 0)
#define __builtin_amdgcn_fence(order, scope)
#define __builtin_amdgcn_wave_barrier() waves::meet(32, nullptr, [](auto&) {})
