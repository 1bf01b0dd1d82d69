// Writes into the paged cache, with QK-norm and rotary embedding on the way.
#pragma once

#include <algorithm>

#include "cache/args.h"
#include "cache/cells.cuh"
#include "cache/rope.cuh"

namespace octavo {

// Cells in eight bits are a translation unit of their own.
cudaError_t write_cache_cells(const WriteArgs&, cudaStream_t);

namespace {

// Four codes, the first in the lowest byte.
__device__ inline uint32_t encode_four(i8, const float* x, float factor) {
  uint32_t code[4];  // where the last bit of the sum is worth one, the last byte is the whole number
#pragma unroll
  for (int i = 0; i < 4; ++i) code[i] = __float_as_uint(__fadd_rn(__fmul_rn(x[i], factor), 12582912.0f + 128.0f));
  return __byte_perm(__byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410);
}
__device__ inline uint32_t encode_four(f8, const float* x, float factor) {
  auto two = [&](int i) {
    return __nv_cvt_float2_to_fp8x2(make_float2(x[i] * factor, x[i + 1] * factor), __NV_SATFINITE, __NV_E4M3);
  };
  return uint32_t(two(2)) << 16 | two(0);
}

// Result of the kLanes threads that share a head for their units of K or V, x and y: the scale, that of the largest
// magnitude being the largest code, and 16 bytes, laid out as `cell_place` says. A thread's units are either the halves
// of these, or it has one half and its neighbour the other, of two such. A value that is not finite makes the scale NaN,
// so that attention to the token shows it. All lanes of a warp come here.
template <class C, int kLanes>
struct Codes {
  uint4 bytes;
  float scale;

  __device__ Codes(const float (&x)[8], const float (&y)[8], bool halves, bool odd, bool value) {
    uint32_t most = 0;  // bits of magnitudes: what is not finite is above all others
#pragma unroll
    for (int j = 0; j < 8; ++j) most = max(most, max(__float_as_uint(fabsf(x[j])), __float_as_uint(fabsf(y[j]))));
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
    const float high = __uint_as_float(most);
    const bool none = high < 1e-30f;  // the inverse of a subnormal would be infinite
    const float factor = none ? 0.0f : C::largest / high;
    scale = none ? 0.0f : most < 0x7f800000u ? high / C::largest : NAN;

    uint32_t own[2][2], low[2], later[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) own[0][i] = encode_four(C{}, x + 4 * i, factor), own[1][i] = encode_four(C{}, y + 4 * i, factor);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t other = __shfl_xor_sync(~0u, odd ? own[0][i] : own[1][i], 1);
      low[i] = halves || !odd ? own[0][i] : other;
      later[i] = halves || odd ? own[1][i] : other;
    }
    const uint32_t first = value ? 0x5140 : 0x5410, second = value ? 0x7362 : 0x7632;
    bytes = make_uint4(__byte_perm(low[0], later[0], first), __byte_perm(low[0], later[0], second),
                       __byte_perm(low[1], later[1], first), __byte_perm(low[1], later[1], second));
  }
};

enum class Kind { query, key, value };

// A thread's work on its share of one head, the same for every token. `whole`: all of a head rotates in halves.
template <class T, class C, int D, int U, bool norms, bool whole, Kind kind>
struct Writer {
  using Vector = Unit<U>;
  using Part = Share<D, U>;
  static constexpr bool turns = kind != Kind::value, coded = is_scaled<C> && kind != Kind::query;
  const WriteArgs& a;
  const Part part;
  const int head;  // among those of its kind
  const bool used;
  NormWeights<T, D, U> weights;

  __device__ Writer(const WriteArgs& args, int warp_part, int lane)
      : a(args),
        part(share(args, lane % Part::kThreads)),
        head(warp_part * (32 / Part::kThreads) + lane / Part::kThreads),
        used(lane % Part::kThreads < Part::kUsed && head < (kind == Kind::query ? args.heads : args.kv_heads)),
        weights(args, part, norm(), used) {}

  static __device__ Part share(const WriteArgs& a, int thread) {
    if constexpr (whole) return Part(thread);
    return Part(a, thread);
  }
  __device__ const T* norm() const {
    return static_cast<const T*>(kind == Kind::query ? a.q_norm : kind == Kind::key ? a.k_norm : nullptr);
  }
  __device__ bool rotates() const { return turns && (whole || a.cos_sin); }
  __device__ const T* source(int token) const {
    return static_cast<const T*>(kind == Kind::query ? a.q : kind == Kind::key ? a.k : a.v) +
           token * source_stride() + head * D;
  }
  __device__ int64_t source_stride() const {
    return kind == Kind::query ? a.q_stride : kind == Kind::key ? a.k_stride : a.v_stride;
  }
  __device__ C* cells(int slot) const {
    return static_cast<C*>(a.cache.data) + int64_t(slot >> (__ffs(a.cache.block_size) - 1)) * a.cache.block_stride +
           (kind == Kind::value ? a.cache.kv_stride : 0) + head * a.cache.head_stride;
  }

  // Turns a head by the `cosines` and sines of its position and stores it. All lanes of the warp come here.
  __device__ void write(int token, int slot, const float* cosines, Vector& low, Vector& high) const {
    if constexpr (turns || coded) {
      float x[U], y[U];
      widen_unit<T>(low, x), widen_unit<T>(high, y);
      if constexpr (turns) {
        const Angles<D, U> angles(a, part, cosines);
        rotate<T, D, U, norms>(a, part, angles, weights, norm() != nullptr, false, x, y);
      }
      if constexpr (coded) return store_codes(slot, x, y);
      round_unit<T>(x, low), round_unit<T>(y, high);
    }
    if constexpr (!coded)
      if (used) store(token, slot, low, high);
  }

 private:
  __device__ void store(int token, int slot, const Vector& low, const Vector& high) const {
    if constexpr (kind == Kind::query) {
      T* to = static_cast<T*>(a.q_out) + token * a.q_out_stride + head * D;
      store_unit(to + part.first * U, low), store_unit(to + part.second * U, high);
    } else {
      if (slot < 0) return;
      const int offset = slot & (a.cache.block_size - 1);
      T* to = cells(slot) + offset * D;
      auto at = [&](int unit) { return to + swizzle(D, offset, unit * U / 8) * 8 + unit * U % 8; };
      store_unit(at(part.first), low), store_unit(at(part.second), high);
    }
  }
  __device__ void store_codes(int slot, const float (&x)[U], const float (&y)[U]) const {
    const bool halves = part.second == part.first + 1, odd = part.first % 2 != 0;
    const Codes<C, Part::kThreads> codes(x, y, halves, odd, kind == Kind::value);
    if (!used || slot < 0) return;
    const int offset = slot & (a.cache.block_size - 1), unit = (!halves && odd ? part.second : part.first) / 2;
    C* to = cells(slot);
    *reinterpret_cast<uint4*>(to + offset * D + swizzle_units(D / 16, offset, unit) * 16) = codes.bytes;
    if (part.first == 0) scales_of(to, D, a.cache.block_size)[offset] = codes.scale;
  }
};

// Of a block, of a multiprocessor: few enough for blocks to have even work, enough for angles to come from L1. Of twenty
// forms the fastest on an H200.
constexpr int kWriteWarps = 6, kWriteBlocks = 4;
// Kernels that do not fit into as many registers.
template <class C, int D, bool norms, bool whole>
constexpr bool is_large = norms && !whole && (D == 96 || (D == 256 && is_scaled<C>));
constexpr int kStages = 2;  // for each warp: tokens on their way, and the one it works on

// Facts of one token, for one warp: two units a thread, and the cosines and sines of its position.
template <int D, int U>
struct alignas(16) Stage {
  Unit<U> low[32], high[32];
  float angles[D];
};

// Data that no other warp wants passes by L1.
template <int U>
__device__ inline void copy_unit(void* shared, const void* global) {
  if constexpr (U == 8) copy16(shared_address(shared), global);
  else copy_async<sizeof(Unit<U>)>(shared, global);
}

// The heads of a warp, of every step-th token.
template <class T, class C, int D, int U, bool norms, bool whole, Kind kind>
__device__ inline void write_heads(const WriteArgs& a, int part, int token, int step, Stage<D, U> (&stages)[kStages]) {
  using Ring = Stage<D, U>;
  const int lane = threadIdx.x % 32, tokens = int(a.tokens);
  Writer<T, C, D, U, norms, whole, kind> writer(a, part, lane);
  const T* source = writer.source(token) + writer.part.first * U;
  int64_t ahead = step * writer.source_stride();
  uint32_t ring = shared_address(stages), own = lane;
  hold(ahead), hold(ring), hold(own), writer.weights.hold_all();
  auto position_of = [&](int at) { return writer.rotates() && at < tokens ? int(a.positions[at]) : 0; };
  int position = position_of(token);
  auto stage = [&](int at) -> Ring& { return static_cast<Ring*>(shared_pointer(ring))[at]; };
  auto feed_units = [&](int at, int next) {
    if (next < tokens && writer.used) {
      copy_unit<U>(&stage(at).low[own], source);
      copy_unit<U>(&stage(at).high[own], source + (writer.part.second - writer.part.first) * U);
    }
    source += ahead;
    // Not earlier: blocks of the next kernel would take places beside some of these, and come to lie unevenly.
    if (next + step >= tokens) launch_next_kernel();
  };
  auto feed_angles = [&](int at, int next) {
    if (next < tokens && writer.rotates()) {
      const float* angles = a.cos_sin + position * a.cos_sin_stride;
#pragma unroll
      for (int first = 0; first < D; first += 128) {
        const int i = first + own * 4;
        if ((whole && D % 128 == 0) || i < a.rotary_dim) copy_async<16>(&stage(at).angles[i], angles + i);
      }
    }
    position = position_of(next + step);
  };
  // Positions are older than what this waits for; their angles come after them.
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) feed_angles(i, token + i * step);
  wait_for_previous_kernel();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) feed_units(i, token + i * step), commit_copies();

  auto slot_of = [&](int at) { return kind != Kind::query && at < tokens ? int(a.slots[at]) : 0; };
  for (int at = 0, slot = slot_of(token); token < tokens; token += step) {
    const int before = at == 0 ? kStages - 1 : at - 1;
    wait_copies<kStages - 2>();
    __syncwarp();  // all have what was copied, and have read the stage before this one
    feed_units(before, token + (kStages - 1) * step);
    feed_angles(before, token + (kStages - 1) * step);
    commit_copies();
    Unit<U> low{}, high{};
    if (writer.used) low = stage(at).low[own], high = stage(at).high[own];
    writer.write(token, slot, writer.rotates() ? stage(at).angles : nullptr, low, high);
    slot = slot_of(token + step), at = at == kStages - 1 ? 0 : at + 1;
  }
}

// A warp takes some heads of one kind of every step-th token. What bounds this is how many bytes are on their way, and
// shared memory holds more of them than registers.
template <class T, class C, int D, int U, bool norms, bool whole>
__global__ void __launch_bounds__(kWriteWarps * 32, is_large<C, D, norms, whole> ? 1 : kWriteBlocks)
    write_kernel(const __grid_constant__ WriteArgs a, int query_parts, int cache_parts, int step) {
  __shared__ Stage<D, U> stages[kWriteWarps][kStages];
  const int warp = threadIdx.x / 32, index = blockIdx.x * kWriteWarps + warp, parts = query_parts + 2 * cache_parts;
  const int part = index % parts, token = index / parts < step ? index / parts : int(a.tokens);
  if (part < query_parts) {
    write_heads<T, C, D, U, norms, whole, Kind::query>(a, part, token, step, stages[warp]);
  } else if (part < query_parts + cache_parts) {
    write_heads<T, C, D, U, norms, whole, Kind::key>(a, part - query_parts, token, step, stages[warp]);
  } else {
    write_heads<T, C, D, U, norms, whole, Kind::value>(a, part - query_parts - cache_parts, token, step, stages[warp]);
  }
}

template <class T, class C, int D, int U>
cudaError_t launch_write(const WriteArgs& a, cudaStream_t stream) {
  constexpr int heads = 32 / Share<D, U>::kThreads;
  const int query_parts = (a.heads + heads - 1) / heads, cache_parts = (a.kv_heads + heads - 1) / heads;
  const int parts = query_parts + 2 * cache_parts;
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const int64_t most = std::max(1, device.multiprocessors * kWriteBlocks * kWriteWarps / parts);
  const int64_t rounds = (a.tokens + most - 1) / most, step = (a.tokens + rounds - 1) / rounds;
  auto launch = [&](auto kernel) {
    const dim3 grid{unsigned((step * parts + kWriteWarps - 1) / kWriteWarps)};
    return launch_after(kernel, {grid, kWriteWarps * 32}, stream, a, query_parts, cache_parts, int(step));
  };
  const bool norms = a.q_norm || a.k_norm;
  if constexpr (U == 8)
    if (a.cos_sin && a.rotary_dim == D)
      return norms ? launch(write_kernel<T, C, D, U, true, true>) : launch(write_kernel<T, C, D, U, false, true>);
  return norms ? launch(write_kernel<T, C, D, U, true, false>) : launch(write_kernel<T, C, D, U, false, false>);
}

}  // namespace
}  // namespace octavo
