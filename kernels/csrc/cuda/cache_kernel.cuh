// Writes into the paged cache, with QK-norm and rotary embedding on the way.
#pragma once

#include "cells.cuh"
#include "rope.cuh"

namespace octavo {

// Of cells in eight bits, a translation unit of its own.
cudaError_t write_cache_cells(const WriteArgs&, cudaStream_t);

namespace {

// One of a token's heads: those of q, then of k, then of v.
struct Head {
  bool real, query, value;
  int index;  // among its kind

  __device__ Head(const WriteArgs& a, int place)
      : real(place < a.heads + 2 * a.kv_heads), query(place < a.heads), value(place >= a.heads + a.kv_heads),
        index(place - (query ? 0 : a.heads + (value ? a.kv_heads : 0))) {}
  template <class T>
  __device__ const T* row(const WriteArgs& a, int64_t token, int head_dim) const {
    const T* first = static_cast<const T*>(query ? a.q : value ? a.v : a.k);
    return first + token * (query ? a.q_stride : value ? a.v_stride : a.k_stride) + index * head_dim;
  }
  template <class T>
  __device__ const T* norm(const WriteArgs& a) const {
    return static_cast<const T*>(value ? nullptr : query ? a.q_norm : a.k_norm);
  }
  // Where the cells of its K or V begin in the block of a slot.
  template <class C>
  __device__ C* cells(const WriteArgs& a, int64_t slot) const {
    return static_cast<C*>(a.cache.data) + (slot >> (__ffs(a.cache.block_size) - 1)) * a.cache.block_stride +
           (value ? a.cache.kv_stride : 0) + index * a.cache.head_stride;
  }
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
    const int lane = threadIdx.x % 32;
    const unsigned group = (kLanes == 32 ? ~0u : (1u << kLanes % 32) - 1) << lane / kLanes * kLanes;
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

// The threads of one token take `H` heads each, whose loads are under way together.
template <int H>
constexpr int kWriteThreads = H == 1 ? 64 : 128;  // of a block; large ones leave registers unused

template <class T, class C, int D, int U, bool norms, int H>
__global__ void __launch_bounds__(kWriteThreads<H>) write_kernel(const __grid_constant__ WriteArgs a) {
  using Vector = Elements<T, U>;
  using Part = Share<D, U>;
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t token = blockIdx.x;
  const int place = blockIdx.y * blockDim.x + threadIdx.x, first = place / Part::kThreads * H;
  const Part part(a, place % Part::kThreads);
  const bool used = place % Part::kThreads < Part::kUsed;
  const int64_t slot = a.slots[token], position = a.cos_sin ? a.positions[token] : 0;

  Vector low[H]{}, high[H]{};
#pragma unroll
  for (int h = 0; h < H; ++h) {
    const Head head(a, first + h);
    if (!head.real || !used) continue;
    const T* row = head.row<T>(a, token, D);
    low[h] = *reinterpret_cast<const Vector*>(row + part.first * U);
    high[h] = *reinterpret_cast<const Vector*>(row + part.second * U);
  }
  const Angles<D, U> angles(a, part, position);
  __syncwarp();  // loads come before stores: q_out may be q
  const int offset = int(slot) & (a.cache.block_size - 1);
#pragma unroll
  for (int h = 0; h < H; ++h) {
    const Head head(a, first + h);
    const bool real = head.real && used;
    if constexpr (is_scaled<C>) {
      float x[U], y[U];
#pragma unroll
      for (int j = 0; j < U; ++j) x[j] = to_float(low[h].at[j]), y[j] = to_float(high[h].at[j]);
      rotate<T, D, U, norms>(a, part, angles, head.norm<T>(a), head.value, real, x, y);
      if (!head.query) {
        const bool halves = part.second == part.first + 1, odd = part.first % 2 != 0;
        const Codes<C, Part::kThreads> codes(x, y, halves, odd, head.value);
        if (real && slot >= 0) {
          C* cells = head.cells<C>(a, slot);
          const int unit = (!halves && odd ? part.second : part.first) / 2;
          *reinterpret_cast<uint4*>(cells + offset * D + swizzle_units(D / 16, offset, unit) * 16) = codes.bytes;
          if (part.first == 0) scales_of(cells, D, a.cache.block_size)[offset] = codes.scale;
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < U; ++j) low[h].at[j] = from_float<T>(x[j]), high[h].at[j] = from_float<T>(y[j]);
    } else {
      rotate<T, D, U, norms>(a, part, angles, head.norm<T>(a), head.value, real, low[h], high[h]);
      if (real && !head.query && slot >= 0) {
        T* row = head.cells<T>(a, slot) + offset * D;
        auto at = [&](int unit) { return row + swizzle(D, offset, unit * U / 8) * 8 + unit * U % 8; };
        *reinterpret_cast<Vector*>(at(part.first)) = low[h];
        *reinterpret_cast<Vector*>(at(part.second)) = high[h];
      }
    }
    if (!real || !head.query) continue;
    T* row = static_cast<T*>(a.q_out) + token * a.q_out_stride + head.index * D;
    *reinterpret_cast<Vector*>(row + part.first * U) = low[h];
    *reinterpret_cast<Vector*>(row + part.second * U) = high[h];
  }
}

template <class T, class C, int D, int U, bool norms, int H>
cudaError_t launch_write(const WriteArgs& a, cudaStream_t stream) {
  constexpr int most = kWriteThreads<H>;
  const int threads = (a.heads + 2 * a.kv_heads + H - 1) / H * Share<D, U>::kThreads;
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
