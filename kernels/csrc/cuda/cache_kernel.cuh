// Writes into the paged cache, with QK-norm and rotary embedding on the way.
#pragma once

#include "cells.cuh"
#include "rope.cuh"

namespace octavo {

// Of cells in eight bits, a translation unit of its own.
cudaError_t write_cache_cells(const WriteArgs&, cudaStream_t);

namespace {

// Up to H heads of a token that lie side by side, all of q, of k or of v.
template <int H>
struct Heads {
  enum Kind { kQuery, kKey, kValue } kind;
  int first, count;

  // `place`: among those of all heads, which begin with those of q.
  __device__ Heads(const WriteArgs& a, int place) {
    const int of_q = (a.heads + H - 1) / H, of_kv = (a.kv_heads + H - 1) / H;
    kind = place < of_q ? kQuery : place < of_q + of_kv ? kKey : kValue;
    first = (place - (kind == kQuery ? 0 : kind == kKey ? of_q : of_q + of_kv)) * H;
    count = min(H, (kind == kQuery ? a.heads : a.kv_heads) - first);
  }
  static int places(const WriteArgs& a) { return (a.heads + H - 1) / H + 2 * ((a.kv_heads + H - 1) / H); }
};

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

// A thread takes a share of H heads, whose loads are under way together; most of what it needs beside them it reads once.
template <int H>
constexpr int kWriteThreads = H == 1 ? 64 : 96;  // of a block; large ones leave registers unused

template <class T, class C, int D, int U, bool norms, int H>
__global__ void __launch_bounds__(kWriteThreads<H>) write_kernel(const __grid_constant__ WriteArgs a) {
  using Vector = Unit<U>;
  using Part = Share<D, U>;
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t token = blockIdx.x;
  const int index = blockIdx.y * blockDim.x + threadIdx.x;
  const Heads<H> heads(a, index / Part::kThreads);
  const bool used = index % Part::kThreads < Part::kUsed, query = heads.kind == heads.kQuery,
             value = heads.kind == heads.kValue;
  const int64_t slot = query ? 0 : a.slots[token];
  if (heads.count <= 0 || slot < 0) return;
  const Part part(a, index % Part::kThreads);

  Vector low[H]{}, high[H]{};
  const T* row = static_cast<const T*>(query ? a.q : value ? a.v : a.k) +
                 token * (query ? a.q_stride : value ? a.v_stride : a.k_stride) + heads.first * D;
#pragma unroll
  for (int h = 0; h < H; ++h) {
    if (h >= heads.count || !used) break;
    low[h] = *reinterpret_cast<const Vector*>(row + h * D + part.first * U);
    high[h] = *reinterpret_cast<const Vector*>(row + h * D + part.second * U);
  }
  __syncwarp(head_lanes<Part::kThreads>());  // loads come before stores: q_out may be q

  const int offset = int(slot) & (a.cache.block_size - 1);
  C* cells = static_cast<C*>(a.cache.data) + (slot >> (__ffs(a.cache.block_size) - 1)) * a.cache.block_stride +
             (value ? a.cache.kv_stride : 0) + heads.first * a.cache.head_stride;
  // Leaves a head as it is in registers, in the type of the data.
  auto store = [&](int h) {
    if (!used) return;
    if (query) {
      T* to = static_cast<T*>(a.q_out) + token * a.q_out_stride + (heads.first + h) * D;
      *reinterpret_cast<Vector*>(to + part.first * U) = low[h];
      *reinterpret_cast<Vector*>(to + part.second * U) = high[h];
    } else if constexpr (!is_scaled<C>) {
      T* to = cells + h * a.cache.head_stride + offset * D;
      auto at = [&](int unit) { return to + swizzle(D, offset, unit * U / 8) * 8 + unit * U % 8; };
      *reinterpret_cast<Vector*>(at(part.first)) = low[h];
      *reinterpret_cast<Vector*>(at(part.second)) = high[h];
    }
  };
  if ((value || (!a.cos_sin && !norms)) && (query || !is_scaled<C>)) {
#pragma unroll
    for (int h = 0; h < H; ++h)
      if (h < heads.count) store(h);
    return;
  }
  const Angles<D, U> angles(a, part, a.cos_sin && !value ? a.positions[token] : 0);
  const T* norm = static_cast<const T*>(value ? nullptr : query ? a.q_norm : a.k_norm);
  const NormWeights<T, D, U> weights(a, part, norm, used);
#pragma unroll
  for (int h = 0; h < H; ++h) {
    if (h >= heads.count) break;
    float x[U], y[U];
    widen_unit<T>(low[h], x), widen_unit<T>(high[h], y);
    if (!value) rotate<T, D, U, norms>(a, part, angles, weights, norm != nullptr, x, y);
    if constexpr (is_scaled<C>) {
      if (!query) {
        const bool halves = part.second == part.first + 1, odd = part.first % 2 != 0;
        const Codes<C, Part::kThreads> codes(x, y, halves, odd, value);
        C* to = cells + h * a.cache.head_stride;
        const int unit = (!halves && odd ? part.second : part.first) / 2;
        if (used) *reinterpret_cast<uint4*>(to + offset * D + swizzle_units(D / 16, offset, unit) * 16) = codes.bytes;
        if (part.first == 0) scales_of(to, D, a.cache.block_size)[offset] = codes.scale;
        continue;
      }
    }
    round_unit<T>(x, low[h]), round_unit<T>(y, high[h]);
    store(h);
  }
}

template <class T, class C, int D, int U, bool norms, int H>
cudaError_t launch_write(const WriteArgs& a, cudaStream_t stream) {
  constexpr int most = kWriteThreads<H>;
  const int threads = Heads<H>::places(a) * Share<D, U>::kThreads;
  const int parts = (threads + most - 1) / most, warps = ((threads + parts - 1) / parts + 31) / 32;
  return launch_after(write_kernel<T, C, D, U, norms, H>, dim3(unsigned(a.tokens), parts), warps * 32, 0, stream, a);
}

template <class T, class C, int D, int U>
cudaError_t launch_write(const WriteArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const bool norms = a.q_norm || a.k_norm;
  // Where there is more than a chip takes at once, threads with several heads each have more loads under way.
  if constexpr (U == 8 && D % 64 == 0)
    if (a.tokens * (a.heads + 2 * a.kv_heads) * Share<D, U>::kThreads > int64_t(2048) * device.multiprocessors)
      return norms ? launch_write<T, C, D, U, true, 4>(a, stream) : launch_write<T, C, D, U, false, 4>(a, stream);
  return norms ? launch_write<T, C, D, U, true, 1>(a, stream) : launch_write<T, C, D, U, false, 1>(a, stream);
}

}  // namespace
}  // namespace octavo
