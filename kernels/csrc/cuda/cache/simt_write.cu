// Writes into caches that cache.cu does not take: float32, eight bits, any head dim, keys without values. One warp a token and head; a lane
// holds every 32nd group of four columns.
#include "cache/args.h"
#include "cache/cells.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 8;
constexpr int kColumns = 128;  // that a warp holds in one group a lane

template <int N>
struct Row {
  float x[N][4];
  const int head_dim, lane;

  __device__ Row(int columns) : head_dim(columns), lane(threadIdx.x % 32) {}

  // Calls f(group, column) for each of the lane's groups of four columns.
  template <class F>
  __device__ void each(F&& f) const {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (const int column = i * kColumns + lane * 4; column < head_dim) f(i, column);
  }

  __device__ void normalise(const WriteArgs& a, const void* weight) {
    float squares = 0.0f;
    each([&](int i, int) { squares += x[i][0] * x[i][0] + x[i][1] * x[i][1] + x[i][2] * x[i][2] + x[i][3] * x[i][3]; });
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / float(head_dim) + a.eps);
    each([&](int i, int column) {
      float scale[4];
      load_values(a.dtype, weight, column, scale);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] *= inverse * (scale[j] + a.norm_offset);
    });
  }

  // `memory` has room for the row.
  __device__ void rotate(const WriteArgs& a, const float* cosine, float* memory) {
    each([&](int i, int column) { *reinterpret_cast<float4*>(memory + column) = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]); });
    __syncwarp();
    const int half = a.rotary_dim / 2;
    const float* sine = cosine + half;
    each([&](int i, int column) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = column + j - a.rotary_at;
        if (d < 0 || d >= a.rotary_dim) continue;
        const bool later = d >= half;
        const int angle = later ? d - half : d;
        const int partner = later ? d - half : d + half;
        x[i][j] = x[i][j] * cosine[angle] + (later ? memory[a.rotary_at + partner] : -memory[a.rotary_at + partner]) * sine[angle];
      }
    });
  }

  // Cells as they are, or codes and their scale: that of the largest magnitude is the largest code. A value that is not
  // finite makes the scale NaN, so that attention to the token shows it.
  template <class C>
  __device__ void write(C* cells, int token, int block_size, bool value) const {
    [[maybe_unused]] float factor = 1.0f;
    if constexpr (is_scaled<C>) {
      float most = 0.0f, broken = 0.0f;
      each([&](int i, int) {
#pragma unroll
        for (int j = 0; j < 4; ++j) most = fmaxf(most, fabsf(x[i][j])), broken += x[i][j] * 0.0f;
      });
#pragma unroll
      for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      broken = warp_sum(broken);
      const bool none = most < 1e-30f;  // the inverse of a subnormal would be infinite
      factor = none ? 0.0f : C::largest / most;
      if (lane == 0) scales_of(cells, head_dim, block_size)[token] = (none ? 0.0f : most / C::largest) + broken;
    }
    C* place = cells + int64_t(token) * head_dim;
    each([&](int i, int column) {
      if constexpr (is_scaled<C>) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          place[cell_place<C>(head_dim, token, column + j, value)] = C::encode(x[i][j] * factor);
      } else {
        Elements<C, 4> out;
#pragma unroll
        for (int j = 0; j < 4; ++j) out.at[j] = from_float<C>(x[i][j]);
        *reinterpret_cast<Elements<C, 4>*>(place + cell_place<C>(head_dim, token, column, value)) = out;
      }
    });
  }
};

template <class C, int N>
__global__ void __launch_bounds__(kWarps * 32) write_kernel(const __grid_constant__ WriteArgs a) {
  extern __shared__ float4 memory[];
  wait_for_previous_kernel();
  launch_next_kernel();
  const int heads = a.heads + (a.v ? 2 : 1) * a.kv_heads, warp = threadIdx.x / 32;
  const int64_t index = int64_t(blockIdx.x) * kWarps + warp, token = index / heads;
  if (token >= a.tokens) return;
  const int head = int(index % heads), kv_head = (head - a.heads) % a.kv_heads, D = a.head_dim;
  const bool query = head < a.heads, value = head >= a.heads + a.kv_heads;
  const int64_t slot = a.slots[token];
  if (!query && slot < 0) return;

  Row<N> row(D);
  const void* data = query ? a.q : value ? a.v : a.k;
  const int64_t first = query ? token * a.q_stride + head * D : token * (value ? a.v_stride : a.k_stride) + kv_head * D;
  row.each([&](int i, int column) { load_values(a.dtype, data, first + column, row.x[i]); });
  const void* norm = value ? nullptr : query ? a.q_norm : a.k_norm;
  if (norm) row.normalise(a, norm);
  if (a.cos_sin && !value)
    row.rotate(a, a.cos_sin + a.positions[token] * a.cos_sin_stride, reinterpret_cast<float*>(memory) + warp * D);
  if (query) {
    row.each([&](int i, int column) {
      store_values(a.dtype, a.q_out, token * a.q_out_stride + head * D + column, row.x[i]);
    });
    return;
  }
  C* cells = static_cast<C*>(a.cache.data) + slot / a.cache.block_size * a.cache.block_stride +
             (value ? a.cache.kv_stride : 0) + kv_head * a.cache.head_stride;
  row.write(cells, int(slot % a.cache.block_size), a.cache.block_size, value);
}

template <class C, int N>
cudaError_t launch(const WriteArgs& a, cudaStream_t stream) {
  const int64_t rows = a.tokens * (a.heads + (a.v ? 2 : 1) * a.kv_heads);
  const int bytes = a.cos_sin ? kWarps * a.head_dim * int(sizeof(float)) : 0;
  return launch_after(write_kernel<C, N>, {dim3(unsigned((rows + kWarps - 1) / kWarps)), kWarps * 32, bytes}, stream, a);
}

}  // namespace

cudaError_t simt_write(const WriteArgs& a, cudaStream_t stream) {
  if (a.tokens == 0) return cudaSuccess;
  if (a.head_dim > 5 * kColumns) return cudaErrorInvalidValue;
  return with_cells(a.dtype, a.cache.cells, [&](auto tag) {
    using C = decltype(tag);
    if (a.head_dim <= kColumns) return launch<C, 1>(a, stream);
    if (a.head_dim <= 2 * kColumns) return launch<C, 2>(a, stream);
    if (a.head_dim <= 4 * kColumns) return launch<C, 4>(a, stream);
    return launch<C, 5>(a, stream);
  });
}

}  // namespace octavo
