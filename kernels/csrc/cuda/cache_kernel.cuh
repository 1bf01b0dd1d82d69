// Writes into the paged cache, with QK-norm and rotary embedding on the way.
#pragma once

#include "cells.cuh"
#include "rope.cuh"

namespace octavo {

// Of cells in eight bits, a translation unit of its own.
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

// What the kLanes threads that share a head make of their units of K or V, x and y: the scale, that of the largest
// magnitude being the largest code, and 16 bytes, laid out as `cell_place` says. A thread's units are either the halves
// of these, or it has one half and its neighbour the other, of two such. A value that is not finite makes the scale NaN,
// so that whoever attends to the token sees it.
template <class C, int kLanes>
struct Codes {
  uint4 bytes;
  float scale;

  __device__ Codes(const float (&x)[8], const float (&y)[8], bool halves, bool odd, bool value) {
    const unsigned group = head_lanes<kLanes>();
    uint32_t most = 0;  // bits of magnitudes: what is not finite is above all others
#pragma unroll
    for (int j = 0; j < 8; ++j) most = max(most, max(__float_as_uint(fabsf(x[j])), __float_as_uint(fabsf(y[j]))));
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(group, most, step));
    const float high = __uint_as_float(most);
    const bool none = high < 1e-30f;  // the inverse of a subnormal would be infinite
    const float factor = none ? 0.0f : C::largest / high;
    scale = none ? 0.0f : most < 0x7f800000u ? high / C::largest : NAN;

    uint32_t own[2][2], low[2], later[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) own[0][i] = encode_four(C{}, x + 4 * i, factor), own[1][i] = encode_four(C{}, y + 4 * i, factor);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t other = __shfl_xor_sync(group, odd ? own[0][i] : own[1][i], 1);
      low[i] = halves || !odd ? own[0][i] : other;
      later[i] = halves || odd ? own[1][i] : other;
    }
    const uint32_t first = value ? 0x5140 : 0x5410, second = value ? 0x7362 : 0x7632;
    bytes = make_uint4(__byte_perm(low[0], later[0], first), __byte_perm(low[0], later[0], second),
                       __byte_perm(low[1], later[1], first), __byte_perm(low[1], later[1], second));
  }
};

// What a thread does with its share of one head of a token, once that is in its registers.
template <class T, class C, int D, int U, bool norms>
struct Writer {
  using Vector = Unit<U>;
  using Part = Share<D, U>;
  const WriteArgs& a;
  const Part part;
  const bool used;

  __device__ Writer(const WriteArgs& args, int thread) : a(args), part(args, thread), used(thread < Part::kUsed) {}

  // Whether heads of q and k, or of v, are stored as they came.
  __device__ bool keeps(bool query, bool value) const {
    return (value || (!a.cos_sin && !norms)) && (query || !is_scaled<C>);
  }
  __device__ C* cells(int64_t slot, bool value, int head) const {
    return static_cast<C*>(a.cache.data) + (slot >> (__ffs(a.cache.block_size) - 1)) * a.cache.block_stride +
           (value ? a.cache.kv_stride : 0) + head * a.cache.head_stride;
  }
  // Leaves a head as it is in registers, in the type of the data.
  __device__ void store(int64_t token, int64_t slot, bool query, bool value, int head, const Vector& low,
                        const Vector& high) const {
    if (!used) return;
    if (query) {
      T* to = static_cast<T*>(a.q_out) + token * a.q_out_stride + head * D;
      *reinterpret_cast<Vector*>(to + part.first * U) = low;
      *reinterpret_cast<Vector*>(to + part.second * U) = high;
    } else if constexpr (!is_scaled<C>) {
      const int offset = int(slot) & (a.cache.block_size - 1);
      T* to = cells(slot, value, head) + offset * D;
      auto at = [&](int unit) { return to + swizzle(D, offset, unit * U / 8) * 8 + unit * U % 8; };
      *reinterpret_cast<Vector*>(at(part.first)) = low;
      *reinterpret_cast<Vector*>(at(part.second)) = high;
    }
  }
  // Turns a head and stores it.
  __device__ void write(int64_t token, int64_t slot, bool query, bool value, int head, const Angles<D, U>& angles,
                        const NormWeights<T, D, U>& weights, bool normed, Vector& low, Vector& high) const {
    float x[U], y[U];
    widen_unit<T>(low, x), widen_unit<T>(high, y);
    if (!value) rotate<T, D, U, norms>(a, part, angles, weights, normed, x, y);
    if constexpr (is_scaled<C>) {
      if (!query) {
        const bool halves = part.second == part.first + 1, odd = part.first % 2 != 0;
        const Codes<C, Part::kThreads> codes(x, y, halves, odd, value);
        const int offset = int(slot) & (a.cache.block_size - 1), unit = (!halves && odd ? part.second : part.first) / 2;
        C* to = cells(slot, value, head);
        if (used) *reinterpret_cast<uint4*>(to + offset * D + swizzle_units(D / 16, offset, unit) * 16) = codes.bytes;
        if (part.first == 0) scales_of(to, D, a.cache.block_size)[offset] = codes.scale;
        return;
      }
    }
    round_unit<T>(x, low), round_unit<T>(y, high);
    store(token, slot, query, value, head, low, high);
  }
};

constexpr int kWriteThreads = 64;  // of a block; large ones leave registers unused

// A thread takes its share of one head of one token.
template <class T, class C, int D, int U, bool norms>
__global__ void __launch_bounds__(kWriteThreads) write_kernel(const __grid_constant__ WriteArgs a) {
  using Vector = Unit<U>;
  using Part = Share<D, U>;
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t token = blockIdx.x;
  const int index = blockIdx.y * blockDim.x + threadIdx.x, place = index / Part::kThreads;  // among heads of q, k, v
  if (place >= a.heads + 2 * a.kv_heads) return;
  const bool query = place < a.heads, value = place >= a.heads + a.kv_heads;
  const int head = query ? place : value ? place - a.heads - a.kv_heads : place - a.heads;
  const int64_t slot = query ? 0 : a.slots[token], position = a.cos_sin && !value ? a.positions[token] : 0;
  const Writer<T, C, D, U, norms> writer(a, index % Part::kThreads);
  const Part& part = writer.part;

  Vector low{}, high{};
  if (writer.used) {
    const T* row = static_cast<const T*>(query ? a.q : value ? a.v : a.k) +
                   token * (query ? a.q_stride : value ? a.v_stride : a.k_stride) + head * D;
    low = *reinterpret_cast<const Vector*>(row + part.first * U);
    high = *reinterpret_cast<const Vector*>(row + part.second * U);
  }
  // Loads come before stores, as q_out may be q, and before those that wait for the position.
  __syncwarp(head_lanes<Part::kThreads>());
  const Angles<D, U> angles(a, part, a.cos_sin && !value ? a.cos_sin + position * a.cos_sin_stride : nullptr);
  const T* norm = static_cast<const T*>(value ? nullptr : query ? a.q_norm : a.k_norm);
  const NormWeights<T, D, U> weights(a, part, norm, writer.used);
  if (slot < 0) return;
  if (writer.keeps(query, value)) {
    writer.store(token, slot, query, value, head, low, high);
  } else {
    writer.write(token, slot, query, value, head, angles, weights, norm != nullptr, low, high);
  }
}

template <class T, class C, int D, int U>
cudaError_t launch_write(const WriteArgs& a, cudaStream_t stream) {
  const int threads = (a.heads + 2 * a.kv_heads) * Share<D, U>::kThreads;
  const int parts = (threads + kWriteThreads - 1) / kWriteThreads, warps = ((threads + parts - 1) / parts + 31) / 32;
  const dim3 grid{unsigned(a.tokens), unsigned(parts)};
  return a.q_norm || a.k_norm ? launch_after(write_kernel<T, C, D, U, true>, grid, warps * 32, 0, stream, a)
                              : launch_after(write_kernel<T, C, D, U, false>, grid, warps * 32, 0, stream, a);
}

}  // namespace
}  // namespace octavo
