// What attention of wide heads takes, its kernels for caches in 16 bits, and the fold of keys that went to several blocks.
#include "attention/wide_kernel.cuh"

namespace octavo {
namespace {

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// One row of a tile whose keys went to several blocks, in the blocks' order. A lane looks at every 32nd part's sums, so that only
// the outputs themselves are waited for: the plan is older than the previous kernel.
template <class T>
__global__ void __launch_bounds__(kWideValues / 4, 8) fold_kernel(const __grid_constant__ WideArgs a) {
  const WideFold fold = a.folds[blockIdx.x];
  const int group = a.heads / a.kv_heads, head = fold.tile % a.kv_heads, first_row = fold.tile / a.kv_heads * kWideRows;
  const WideSequence q(a.context_lens, a.query_start, fold.sequence);
  wait_for_previous_kernel();  // also where nothing is folded: the next kernel waits for this one alone
  launch_next_kernel();
  if (fold.parts == 0) return;
  const int column = threadIdx.x * 4, lane = threadIdx.x % 32, rows = min(kWideRows, q.queries * group - first_row);
  for (int row = blockIdx.y; row < rows; row += gridDim.y) {
    const auto place = [&](int part) { return int64_t(part == 0 ? 2 * fold.first + 1 : 2 * (fold.first + part)) * kWideRows + row; };
    float top = kNoScore, sum = 0.0f, o[4] = {};
    for (int part = lane; part < fold.parts; part += 32) top = fmaxf(top, a.sums[place(part) * 2]);
    top = warp_max(top);
    for (int first = 0; first < fold.parts; first += 32) {
      const int mine = min(first + lane, fold.parts - 1), end = min(32, fold.parts - first);
      const float2 own = *reinterpret_cast<const float2*>(a.sums + place(mine) * 2);
      const float weight = fast_exp2(own.x - top);
      sum = __fmaf_rn(lane < end ? own.y : 0.0f, weight, sum);
#pragma unroll 8
      for (int i = 0; i < end; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(a.partial + place(first + i) * kWideValues + column);
        const float factor = __shfl_sync(~0u, weight, i);
        o[0] = __fmaf_rn(x.x, factor, o[0]), o[1] = __fmaf_rn(x.y, factor, o[1]);
        o[2] = __fmaf_rn(x.z, factor, o[2]), o[3] = __fmaf_rn(x.w, factor, o[3]);
      }
    }
    sum = warp_sum(sum);
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int packed = first_row + row;
    T* out = static_cast<T*>(a.out) + (q.row + packed / group) * a.out_stride + (head * group + packed % group) * kWideValues;
    store_words(out + column, pack<T>(o[0] * factor, o[1] * factor), pack<T>(o[2] * factor, o[3] * factor));
  }
}

}  // namespace

cudaError_t wide_attention(const WideArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const bool aligned = reinterpret_cast<uintptr_t>(a.q) % 16 == 0 && reinterpret_cast<uintptr_t>(a.out) % 16 == 0 &&
                       a.q_stride % 8 == 0 && a.out_stride % 8 == 0 && reinterpret_cast<uintptr_t>(a.cache.data) % 16 == 0;
  const int64_t strides = a.cache.block_stride | a.cache.head_stride | a.cache.kv_stride;  // of cells that are copied in units
  const bool plain = a.window == 0 && a.softcap == 0.0f && !a.sinks;
  if (device.major != 9 || !aligned || !plain || strides % (a.cache.cells == Cells::plain ? 8 : 16) != 0 ||
      a.head_dim != (a.latent ? kWideLatent : kWideValues))
    return cudaErrorInvalidValue;
  if (a.sequences == 0) return cudaSuccess;
  const bool coded = a.cache.cells != Cells::plain;
  const cudaError_t error = coded ? wide_attention_cells(a, stream) : launch_cells<PlainCells>(a, stream);
  if (error != cudaSuccess) return error;
  return with_half(a.dtype, [&](auto tag) {
    return launch_after(fold_kernel<decltype(tag)>, {dim3(a.blocks, 16), kWideValues / 4}, stream, a);
  });
}

}  // namespace octavo
