// Writes into the paged cache (with QK-norm and rotary embedding on the way) and copies of whole blocks.
#include <algorithm>

#include "rope.cuh"

namespace octavo {
namespace {

constexpr int kWriteThreads = 64;  // large blocks leave registers unused

template <class T, int D, int U, bool norms>
__global__ void __launch_bounds__(kWriteThreads) write_kernel(const __grid_constant__ WriteArgs a) {
  using Vector = Elements<T, U>;
  using Part = Share<D, U>;
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t token = blockIdx.x;
  const int index = blockIdx.y * blockDim.x + threadIdx.x, head = index / Part::kThreads, thread = index % Part::kThreads;
  const bool real = head < a.heads + 2 * a.kv_heads && thread < Part::kUsed;
  const bool query = head < a.heads, value = head >= a.heads + a.kv_heads;
  const int kv_head = head - a.heads - (value ? a.kv_heads : 0);
  const Part part(a, thread);
  const int64_t slot = a.slots[token];

  Vector low{}, high{};
  if (real) {
    const T* row = query ? static_cast<const T*>(a.q) + token * a.q_stride + head * D
                         : static_cast<const T*>(value ? a.v : a.k) + token * (value ? a.v_stride : a.k_stride) + kv_head * D;
    low = *reinterpret_cast<const Vector*>(row + part.first * U);
    high = *reinterpret_cast<const Vector*>(row + part.second * U);
  }
  const T* norm = static_cast<const T*>(value ? nullptr : query ? a.q_norm : a.k_norm);
  rotate<T, D, U, norms>(a, part, norm, value, real, a.cos_sin ? a.positions[token] : 0, low, high);
  __syncwarp();  // a head's loads come before its stores: q_out may be q
  if (!real || (!query && slot < 0)) return;
  if (query) {
    T* row = static_cast<T*>(a.q_out) + token * a.q_out_stride + head * D;
    *reinterpret_cast<Vector*>(row + part.first * U) = low;
    *reinterpret_cast<Vector*>(row + part.second * U) = high;
    return;
  }
  const int offset = int(slot) & (a.cache.block_size - 1);
  T* row = static_cast<T*>(a.cache.data) + (slot >> (__ffs(a.cache.block_size) - 1)) * a.cache.block_stride +
           (value ? a.cache.kv_stride : 0) + kv_head * a.cache.head_stride + offset * D;
  auto place = [&](int unit) { return row + swizzle(D, offset, unit * U / 8) * 8 + unit * U % 8; };
  *reinterpret_cast<Vector*>(place(part.first)) = low;
  *reinterpret_cast<Vector*>(place(part.second)) = high;
}

template <class T, int D, int U>
cudaError_t launch_write(const WriteArgs& a, cudaStream_t stream) {
  const int threads = (a.heads + 2 * a.kv_heads) * Share<D, U>::kThreads;
  const int parts = (threads + kWriteThreads - 1) / kWriteThreads, warps = ((threads + parts - 1) / parts + 31) / 32;
  auto kernel = a.q_norm || a.k_norm ? write_kernel<T, D, U, true> : write_kernel<T, D, U, false>;
  return launch_after(kernel, dim3(unsigned(a.tokens), parts), warps * 32, 0, stream, a);
}

template <class T, int D>
cudaError_t launch_write(const WriteArgs& a, cudaStream_t stream) {
  if (!a.cos_sin || a.rotary_dim % 16 == 0) return launch_write<T, D, 8>(a, stream);
  if (a.rotary_dim % 8 == 0) return launch_write<T, D, 4>(a, stream);
  return cudaErrorInvalidValue;
}

constexpr int kCopyThreads = 256, kCopyUnroll = 2;  // small pieces, so that one block of the cache keeps the chip busy
constexpr int64_t kCopyBytes = int64_t(kCopyThreads) * kCopyUnroll * 16;

__global__ void __launch_bounds__(kCopyThreads)
    copy_kernel(char* cache, int64_t block_bytes, const int64_t* pairs) {
  wait_for_previous_kernel();
  launch_next_kernel();
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
  if (a.cache.cells != Cells::plain) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.head_dim) {
      case 32: return launch_write<T, 32>(a, stream);
      case 64: return launch_write<T, 64>(a, stream);
      case 96: return launch_write<T, 96>(a, stream);
      case 128: return launch_write<T, 128>(a, stream);
      case 256: return launch_write<T, 256>(a, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

cudaError_t copy_blocks(void* cache, int64_t block_bytes, const int64_t* pairs, int64_t count, cudaStream_t stream) {
  const int64_t slices = (block_bytes + kCopyBytes - 1) / kCopyBytes, most = 32768;
  for (int64_t done = 0; done < count; done += most) {
    const dim3 grid{unsigned(slices), unsigned(std::min(most, count - done)), 1};
    const cudaError_t error =
        launch_after(copy_kernel, grid, kCopyThreads, 0, stream, static_cast<char*>(cache), block_bytes, pairs + 2 * done);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t swap_blocks(const void* source, void* target, int64_t block_bytes, const int64_t* pairs, int64_t count,
                        cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  for (int64_t i = 0; i < count && error == cudaSuccess; ++i)
    error = cudaMemcpyAsync(static_cast<char*>(target) + pairs[2 * i + 1] * block_bytes,
                            static_cast<const char*>(source) + pairs[2 * i] * block_bytes, size_t(block_bytes),
                            cudaMemcpyDefault, stream);
  return error;
}

}  // namespace octavo
