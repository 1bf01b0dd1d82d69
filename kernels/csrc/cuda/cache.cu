// Writes into the paged cache (with QK-norm and rotary embedding on the way) and copies of whole blocks.
#include <algorithm>

#include "common.cuh"

namespace octavo {
namespace {

constexpr int kWriteWarps = 8;
template <int E>
constexpr int heads_per_warp = E == 8 ? 2 : 4;  // their loads are in flight together

template <class V, class T>
__device__ inline V load(const T* p) {
  return *reinterpret_cast<const V*>(p);
}

// One lane's part of a token's heads [q | k | v].
template <class T, int E>
struct Lane {
  const WriteArgs& a;
  int64_t token;
  int lane;

  __device__ const T* source(int head) const {
    if (head < a.heads) return static_cast<const T*>(a.q) + token * a.q_stride + head * a.head_dim;
    head -= a.heads;
    if (head < a.kv_heads) return static_cast<const T*>(a.k) + token * a.k_stride + head * a.head_dim;
    return static_cast<const T*>(a.v) + token * a.v_stride + (head - a.kv_heads) * a.head_dim;
  }
  __device__ const T* norm(int head) const {
    return static_cast<const T*>(head < a.heads ? a.q_norm : head < a.heads + a.kv_heads ? a.k_norm : nullptr);
  }
  __device__ void store(int head, int64_t slot, const Elements<T, E>& x) const {
    const int element = lane * E;
    if (head < a.heads) {
      T* row = static_cast<T*>(a.q_out) + token * a.q_out_stride + head * a.head_dim;
      *reinterpret_cast<Elements<T, E>*>(row + element) = x;
      return;
    }
    if (slot < 0) return;
    const bool value = head >= a.heads + a.kv_heads;
    const int offset = int(slot) & (a.cache.block_size - 1);
    T* row = static_cast<T*>(a.cache.data) + (slot >> (__ffs(a.cache.block_size) - 1)) * a.cache.block_stride +
             (value ? a.cache.kv_stride : 0) + (head - a.heads - (value ? a.kv_heads : 0)) * a.cache.head_stride +
             offset * a.head_dim;
    if constexpr (8 % E == 0) {  // all in one 16-byte unit
      *reinterpret_cast<Elements<T, E>*>(row + swizzle(32 * E, offset, element / 8) * 8 + element % 8) = x;
    } else {
#pragma unroll
      for (int j = 0; j < E; ++j) row[swizzle(32 * E, offset, (element + j) / 8) * 8 + (element + j) % 8] = x.at[j];
    }
  }
};

// Cosines, signed sines and norm weights of a lane's elements and of those they are rotated with.
template <class T, int E>
struct Rotation {
  float cosine[E], sine[E];
  int other[E];  // the elements that the lane's are rotated with
  bool whole;    // they are one run

  Rotation() = default;
  __device__ Rotation(const WriteArgs& a, int element, int64_t position) {
    const int half = a.rotary_dim / 2;
    const float* row = a.cos_sin + position * a.cos_sin_stride;
    whole = !a.interleaved && half % E == 0;
    if (whole) {
      const bool rotated = element < a.rotary_dim, low = element < half;
      const int angle = low ? element : element - half;
      using Floats = Elements<float, E>;
      Floats c{}, s{};
      if (rotated) c = load<Floats>(row + angle), s = load<Floats>(row + half + angle);
#pragma unroll
      for (int j = 0; j < E; ++j) {
        cosine[j] = rotated ? c.at[j] : 1.0f;
        sine[j] = rotated ? (low ? -s.at[j] : s.at[j]) : 0.0f;
        other[j] = (rotated ? low ? element + half : element - half : element) + j;
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < E; ++j) {
      const int d = element + j;
      const bool rotated = d < a.rotary_dim, minus = a.interleaved ? d % 2 == 0 : d < half;
      const int angle = rotated ? (a.interleaved ? d / 2 : d < half ? d : d - half) : 0;
      cosine[j] = rotated ? row[angle] : 1.0f;
      sine[j] = rotated ? (minus ? -row[half + angle] : row[half + angle]) : 0.0f;
      other[j] = rotated ? (a.interleaved ? d ^ 1 : d < half ? d + half : d - half) : d;
    }
  }
  // The elements of a row that the lane's are rotated with.
  __device__ Elements<T, E> partners(const T* row) const {
    if (whole) return load<Elements<T, E>>(row + other[0]);
    Elements<T, E> out;
#pragma unroll
    for (int j = 0; j < E; ++j) out.at[j] = row[other[j]];
    return out;
  }
};

// A block takes one token, a warp a few of its heads, a lane E consecutive elements of each.
template <class T, int E, bool rotates, bool norms>
__global__ void __launch_bounds__(kWriteWarps * 32) write_kernel(const __grid_constant__ WriteArgs a) {
  using Vector = Elements<T, E>;
  constexpr int D = 32 * E, H = heads_per_warp<E>;
  const int all_heads = a.heads + 2 * a.kv_heads, normed = a.heads + a.kv_heads;
  const int first = (blockIdx.y * blockDim.x + threadIdx.x) / 32 * H, element = threadIdx.x % 32 * E;
  const Lane<T, E> self{a, blockIdx.x, int(threadIdx.x % 32)};
  const int64_t slot = a.slots[blockIdx.x];

  Vector own[H], other[H];
#pragma unroll
  for (int i = 0; i < H; ++i)
    if (first + i < all_heads) own[i] = load<Vector>(self.source(first + i) + element);
  const Rotation<T, E> rotation = [&] {
    if constexpr (rotates) return Rotation<T, E>(a, element, a.positions[blockIdx.x]);
    else return Rotation<T, E>();
  }();
  if constexpr (rotates) {
#pragma unroll
    for (int i = 0; i < H; ++i)
      if (first + i < normed) other[i] = rotation.partners(self.source(first + i));
  }
  __syncwarp();  // all loads come before any store: q_out may be q

#pragma unroll
  for (int i = 0; i < H; ++i) {
    const int head = first + i;
    if (head >= all_heads) return;
    Vector out = own[i];
    const T* norm = norms ? self.norm(head) : nullptr;
    if (head < normed && (rotates || norm)) {
      float x[E], y[E];
#pragma unroll
      for (int j = 0; j < E; ++j) x[j] = to_float(own[i].at[j]), y[j] = rotates ? to_float(other[i].at[j]) : 0.0f;
      if (norm) {
        float squares = 0.0f;
#pragma unroll
        for (int j = 0; j < E; ++j) squares += x[j] * x[j];
        const float inverse = rsqrtf(warp_sum(squares) / float(D) + a.eps);
        const Vector weight = load<Vector>(norm + element);
#pragma unroll
        for (int j = 0; j < E; ++j) x[j] *= inverse * (to_float(weight.at[j]) + a.norm_offset);
        if constexpr (rotates) {
          const Vector weights = rotation.partners(norm);
#pragma unroll
          for (int j = 0; j < E; ++j) y[j] *= inverse * (to_float(weights.at[j]) + a.norm_offset);
        }
      }
#pragma unroll
      for (int j = 0; j < E; ++j)
        out.at[j] = from_float<T>(rotates ? x[j] * rotation.cosine[j] + y[j] * rotation.sine[j] : x[j]);
    }
    self.store(head, slot, out);
  }
}

template <class T, int E>
cudaError_t launch_write(const WriteArgs& a, cudaStream_t stream) {
  constexpr int H = heads_per_warp<E>;
  const int warps = (a.heads + 2 * a.kv_heads + H - 1) / H, parts = (warps + kWriteWarps - 1) / kWriteWarps;
  const dim3 blocks{unsigned(a.tokens), unsigned(parts), 1};
  const int threads = (warps + parts - 1) / parts * 32;
  const bool norms = a.q_norm || a.k_norm;
  if (a.cos_sin && norms) write_kernel<T, E, true, true><<<blocks, threads, 0, stream>>>(a);
  else if (a.cos_sin) write_kernel<T, E, true, false><<<blocks, threads, 0, stream>>>(a);
  else if (norms) write_kernel<T, E, false, true><<<blocks, threads, 0, stream>>>(a);
  else write_kernel<T, E, false, false><<<blocks, threads, 0, stream>>>(a);
  return cudaGetLastError();
}

constexpr int kCopyThreads = 256, kCopyUnroll = 8;
constexpr int64_t kCopyBytes = int64_t(kCopyThreads) * kCopyUnroll * 16;

__global__ void __launch_bounds__(kCopyThreads)
    copy_kernel(char* cache, int64_t block_bytes, const int64_t* pairs) {
  const int4* source = reinterpret_cast<const int4*>(cache + pairs[2 * blockIdx.y] * block_bytes);
  int4* target = reinterpret_cast<int4*>(cache + pairs[2 * blockIdx.y + 1] * block_bytes);
  const int64_t first = blockIdx.x * kCopyBytes / 16 + threadIdx.x, end = block_bytes / 16;
  int4 value[kCopyUnroll];
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i)
    if (first + i * kCopyThreads < end) value[i] = __ldcs(source + first + i * kCopyThreads);
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i)
    if (first + i * kCopyThreads < end) __stcs(target + first + i * kCopyThreads, value[i]);
}

}  // namespace

cudaError_t write_cache(const WriteArgs& a, cudaStream_t stream) {
  if (a.tokens == 0) return cudaSuccess;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.head_dim) {
      case 32: return launch_write<T, 1>(a, stream);
      case 64: return launch_write<T, 2>(a, stream);
      case 96: return launch_write<T, 3>(a, stream);
      case 128: return launch_write<T, 4>(a, stream);
      case 256: return launch_write<T, 8>(a, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

cudaError_t copy_blocks(void* cache, int64_t block_bytes, const int64_t* pairs, int64_t count, cudaStream_t stream) {
  const int64_t slices = (block_bytes + kCopyBytes - 1) / kCopyBytes, most = 32768;
  for (int64_t done = 0; done < count; done += most) {
    const dim3 grid{unsigned(slices), unsigned(std::min(most, count - done)), 1};
    copy_kernel<<<grid, kCopyThreads, 0, stream>>>(static_cast<char*>(cache), block_bytes, pairs + 2 * done);
  }
  return cudaGetLastError();
}

}  // namespace octavo
