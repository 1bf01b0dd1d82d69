// Types of the cache's cells, and where the cells and scales of a block lie.
#pragma once

#include <cuda_fp8.h>

#include "attention/args.h"
#include "device/common.cuh"

namespace octavo {

// In eight bits: whole numbers, raised by 128, or floats of four exponent and three mantissa bits (e4m3fn). `encode`
// rounds to nearest, ties to even.
struct i8 {
  static constexpr float largest = 127.0f;
  uint8_t code;
  __device__ static i8 encode(float x) { return {uint8_t(__float2int_rn(x) + 128)}; }
};
struct f8 {
  static constexpr float largest = 448.0f;
  uint8_t code;
  __device__ static f8 encode(float x) { return {__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)}; }
};

template <class C>
inline constexpr bool is_scaled = sizeof(C) == 1;

__device__ inline float to_float(i8 x) { return float(x.code) - 128.0f; }
__device__ inline float to_float(f8 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.code, __NV_E4M3)));
}

// Calls f with a value of the type of the cache's cells.
template <class F>
inline cudaError_t with_cells(Dtype dtype, Cells cells, F&& f) {
  switch (cells) {
    case Cells::plain: return with_dtype(dtype, f);
    case Cells::i8: return f(i8{});
    case Cells::f8: return f(f8{});
  }
  return cudaErrorInvalidValue;
}

// Element of a token's row of K, or of V, at which column `column` lies. Units of 16 bytes are permuted as everywhere.
// Inside a unit of eight-bit cells, four bytes are what one thread holds of it as a fragment of the tensor cores: of K
// the columns 2t, 2t + 1, 2t + 8, 2t + 9, of V, once transposed, two tokens' columns g and g + 8.
template <class C>
__device__ inline int cell_place(int head_dim, int token, int column, bool value) {
  constexpr int per_unit = 16 / int(sizeof(C));
  if (head_dim % per_unit != 0) return column;
  int within = column % per_unit;
  if (is_scaled<C>) within = value ? within % 8 * 2 + within / 8 : within % 8 / 2 * 4 + within % 2 + within / 8 * 2;
  return swizzle_units(head_dim / per_unit, token, column / per_unit) * per_unit + within;
}

// Four columns of the row of a token in a block.
template <class C>
__device__ inline void load_cells(const C* row, int head_dim, int token, int column, bool value, float (&x)[4]) {
  if constexpr (is_scaled<C>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = to_float(row[cell_place<C>(head_dim, token, column + i, value)]);
  } else {
    const auto cells = *reinterpret_cast<const Elements<C, 4>*>(row + cell_place<C>(head_dim, token, column, value));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = to_float(cells.at[i]);
  }
}

// The scales [block_size] behind the cells of K or V of one block and head.
template <class C>
__device__ inline float* scales_of(C* cells, int head_dim, int block_size) {
  return reinterpret_cast<float*>(cells + int64_t(block_size) * head_dim);
}

// The columns of a latent's row that have no codes, behind the scales: [block_size][columns].
template <class T, class C>
__device__ inline T* exact_of(C* cells, int coded, int block_size) {
  return reinterpret_cast<T*>(scales_of(cells, coded, block_size) + block_size);
}

// Four cells as two pairs of float16: the first and second byte, the third and fourth; or, `by_turns`, the first and
// third, the second and fourth.
template <bool by_turns>
__device__ inline void widen(i8, uint32_t cells, uint32_t& low, uint32_t& high) {
  const uint32_t base = 0x64806480u;  // 0x64vv is 1024 + vv
  const __half2 zero = *reinterpret_cast<const __half2*>(&base);
  uint32_t out[2] = {__byte_perm(cells, 0x64646464u, by_turns ? 0x4240 : 0x4140),
                     __byte_perm(cells, 0x64646464u, by_turns ? 0x4341 : 0x4342)};
#pragma unroll
  for (uint32_t& x : out) {
    const __half2 value = __hsub2(*reinterpret_cast<const __half2*>(&x), zero);
    x = *reinterpret_cast<const uint32_t*>(&value);
  }
  low = out[0], high = out[1];
}
template <bool by_turns>
__device__ inline void widen(f8, uint32_t cells, uint32_t& low, uint32_t& high) {
  if (by_turns) cells = __byte_perm(cells, 0, 0x3120);
#if OCTAVO_WIDENS_F8
  widen_f8(cells, low, high);
#else
  // Exponent and fraction one place lower are those of a float16 that is 2^8 too small.
  const uint32_t factor = 0x5c005c00u;
  const __half2 unit = *reinterpret_cast<const __half2*>(&factor);
  uint32_t out[2] = {__byte_perm(cells, 0, 0x1404), __byte_perm(cells, 0, 0x3424)};
#pragma unroll
  for (uint32_t& x : out) {
    x = (x & 0x80008000u) | (x & 0x7f007f00u) >> 1;
    const __half2 value = __hmul2(*reinterpret_cast<const __half2*>(&x), unit);
    x = *reinterpret_cast<const uint32_t*>(&value);
  }
  low = out[0], high = out[1];
#endif
}

// Bytes of a slice of K or V, with the scales of cells in eight bits.
template <class C, int D>
constexpr int slice_bytes = kSlice*(D* int(sizeof(C)) + (is_scaled<C> ? int(sizeof(float)) : 0));

// The pieces of memory that make up the slice from token `offset` of a block on: calls f(place in the slice, address,
// bytes) for each. In a block of one slice the scales lie right behind the cells.
template <class C, int D, class F>
__device__ inline void slice_pieces(const C* block, int offset, int block_size, F&& f) {
  constexpr int cell_bytes = kSlice * D * int(sizeof(C));
  if (!is_scaled<C> || (OCTAVO_BULK_COPY && block_size == kSlice)) {
    f(0, block + offset * D, slice_bytes<C, D>);
  } else {
    f(0, block + offset * D, cell_bytes);
    f(cell_bytes, block + block_size * D + offset * int(sizeof(float)), slice_bytes<C, D> - cell_bytes);
  }
}

// Four values of a row in the data's own type.
__device__ inline void load_values(Dtype dtype, const void* row, int64_t at, float (&x)[4]) {
  auto load = [&](auto tag) {
    using T = decltype(tag);
    const auto values = *reinterpret_cast<const Elements<T, 4>*>(static_cast<const T*>(row) + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = to_float(values.at[i]);
  };
  if (dtype == Dtype::f32) load(float{});
  else if (dtype == Dtype::bf16) load(bf16{});
  else load(f16{});
}
__device__ inline void store_values(Dtype dtype, void* row, int64_t at, const float (&x)[4]) {
  auto store = [&](auto tag) {
    using T = decltype(tag);
    Elements<T, 4> values;
#pragma unroll
    for (int i = 0; i < 4; ++i) values.at[i] = from_float<T>(x[i]);
    *reinterpret_cast<Elements<T, 4>*>(static_cast<T*>(row) + at) = values;
  };
  if (dtype == Dtype::f32) store(float{});
  else if (dtype == Dtype::bf16) store(bf16{});
  else store(f16{});
}

}  // namespace octavo
