// What a layer keeps of a token with latent attention, and the rotated part of its queries, in one launch: one warp a token and
// head, and one for the row that is kept. And such rows as they are read back, for keys and values that are made of them.
#include "cache/args.h"
#include "cache/cells.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 8;

// Rotates `columns` values in halves: calls put(column, value) for each.
template <class T, class F>
__device__ void rotate(const T* x, int columns, const float* cosine, F&& put) {
  const int half = columns / 2;
  for (int i = threadIdx.x % 32; i < half; i += 32) {
    const float a = to_float(x[i]), b = to_float(x[half + i]), c = cosine[i], s = cosine[half + i];
    put(i, __fmaf_rn(a, c, -__fmul_rn(b, s))), put(half + i, __fmaf_rn(a, s, __fmul_rn(b, c)));
  }
}

// Codes of a latent, `normed(column)`, and their scale, in a block's cells. What is not finite makes the scale NaN.
template <class C, class F>
__device__ void encode(C* cells, int rank, int token, int block_size, F&& normed) {
  const int lane = threadIdx.x % 32;
  float most = 0.0f, broken = 0.0f;
  for (int i = lane; i < rank; i += 32) {
    const float x = normed(i);
    most = fmaxf(most, fabsf(x)), broken += x * 0.0f;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  broken = warp_sum(broken);
  const bool none = most < 1e-30f;  // the inverse of a subnormal would be infinite
  const float factor = none ? 0.0f : C::largest / most;
  if (lane == 0) scales_of(cells, rank, block_size)[token] = (none ? 0.0f : most / C::largest) + broken;
  for (int i = lane; i < rank; i += 32)
    cells[token * rank + cell_place<C>(rank, token, i, false)] = C::encode(normed(i) * factor);
}

template <class T, class C>
__global__ void __launch_bounds__(kWarps * 32) latent_kernel(const __grid_constant__ LatentRowsArgs a) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int rows = a.heads + 1, lane = threadIdx.x % 32;
  const int64_t index = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32, token = index / rows;
  if (token >= a.tokens) return;
  const int head = int(index % rows), width = a.rank + a.rotated;
  const float* cosine = a.cos_sin + a.positions[token] * a.cos_sin_stride;
  if (head < a.heads) {
    T* out = static_cast<T*>(a.q_out) + token * a.q_out_stride + head * width + a.rank;
    const T* q = static_cast<const T*>(a.q) + token * a.q_stride + head * a.q_head_stride;
    rotate(q, a.rotated, cosine, [&](int column, float x) { out[column] = from_float<T>(x); });
    return;
  }
  const int64_t slot = a.slots[token];
  if (slot < 0) return;
  const T *kept = static_cast<const T*>(a.kept) + token * a.kept_stride, *weight = static_cast<const T*>(a.norm);
  const int within = int(slot % a.cache.block_size);
  C* const cells = static_cast<C*>(a.cache.data) + slot / a.cache.block_size * a.cache.block_stride;
  float squares = 0.0f;
  for (int i = lane; i < a.rank; i += 32) {
    const float x = to_float(kept[i]);
    squares = __fmaf_rn(x, x, squares);
  }
  const float inverse = rsqrtf(warp_sum(squares) / float(a.rank) + a.eps);
  const auto normed = [&](int i) { return from_float<T>(to_float(kept[i]) * inverse * (a.norm_offset + to_float(weight[i]))); };
  if constexpr (is_scaled<C>) {
    encode(cells, a.rank, within, a.cache.block_size, [&](int i) { return to_float(normed(i)); });
    T* const exact = exact_of<T>(cells, a.rank, a.cache.block_size) + within * a.rotated;
    rotate(kept + a.rank, a.rotated, cosine, [&](int column, float x) { exact[column] = from_float<T>(x); });
  } else {
    T* const row = cells + int64_t(within) * width;
    const auto put = [&](int column, T x) { row[cell_place<T>(width, within, column, false)] = x; };
    for (int i = lane; i < a.rank; i += 32) put(i, normed(i));
    rotate(kept + a.rank, a.rotated, cosine, [&](int column, float x) { put(a.rank + column, from_float<T>(x)); });
  }
}

// Rows of whole blocks in the order of their columns, one warp a row. A code times its scale is rounded once.
template <class T, class C>
__global__ void __launch_bounds__(kWarps * 32) read_kernel(const __grid_constant__ LatentReadArgs a) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32, block_size = a.cache.block_size, within = int(row % block_size);
  if (row >= a.count * block_size) return;
  C* const cells = static_cast<C*>(a.cache.data) + a.blocks[row / block_size] * a.cache.block_stride;
  T* const out = static_cast<T*>(a.out) + row * a.out_stride;
  if constexpr (is_scaled<C>) {
    const float scale = scales_of(cells, a.rank, block_size)[within];
    const C* const codes = cells + int64_t(within) * a.rank;
#pragma unroll 2  // registers are short
    for (int i = lane; i < a.rank; i += 32)
      out[i] = from_float<T>(to_float(codes[cell_place<C>(a.rank, within, i, false)]) * scale);
    const T* const exact = exact_of<T>(cells, a.rank, block_size) + within * a.rotated;
    for (int i = lane; i < a.rotated; i += 32) out[a.rank + i] = exact[i];
  } else {
    constexpr int unit = 16 / int(sizeof(T));
    const int width = a.rank + a.rotated;
    const T* const kept = cells + int64_t(within) * width;
    for (int i = lane * unit; i < width; i += 32 * unit)
      *reinterpret_cast<uint4*>(out + i) = *reinterpret_cast<const uint4*>(kept + cell_place<T>(width, within, i, false));
  }
}

template <class T, class C>
cudaError_t launch_read(const LatentReadArgs& a, cudaStream_t stream) {
  const int64_t rows = a.count * a.cache.block_size;
  return launch_after(read_kernel<T, C>, {dim3(unsigned((rows + kWarps - 1) / kWarps)), kWarps * 32}, stream, a);
}

template <class T, class C>
cudaError_t launch(const LatentRowsArgs& a, cudaStream_t stream) {
  const int64_t rows = a.tokens * (a.heads + 1);
  return launch_after(latent_kernel<T, C>, {dim3(unsigned((rows + kWarps - 1) / kWarps)), kWarps * 32}, stream, a);
}

// Calls f with values of the types of the rows that layers make and of the cache's cells.
template <class F>
cudaError_t with_types(Dtype dtype, Cells cells, F&& f) {
  return with_dtype(dtype, [&](auto row) {
    if (cells == Cells::i8) return f(row, i8{});
    if (cells == Cells::f8) return f(row, f8{});
    return f(row, row);
  });
}

}  // namespace

cudaError_t latent_rows(const LatentRowsArgs& a, cudaStream_t stream) {
  if (a.tokens == 0) return cudaSuccess;
  return with_types(a.dtype, a.cache.cells, [&](auto row, auto cell) {
    return launch<decltype(row), decltype(cell)>(a, stream);
  });
}

cudaError_t latent_read(const LatentReadArgs& a, cudaStream_t stream) {
  if (a.count == 0) return cudaSuccess;
  return with_types(a.dtype, a.cache.cells, [&](auto row, auto cell) {
    return launch_read<decltype(row), decltype(cell)>(a, stream);
  });
}

}  // namespace octavo
