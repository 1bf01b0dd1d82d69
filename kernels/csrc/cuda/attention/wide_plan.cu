// Cuts the tiles of a step's wide heads into equal stretches, one for each block.
#include "attention/wide.cuh"

namespace octavo {
namespace {

constexpr int kThreads = 512;
// The cost of a tile of rows beside its keys, and the least of a stretch, in tiles of keys.
constexpr int kTileCost = 1, kLeast = 2;

// Exclusive prefix sum over the threads; `total` gets the sum.
__device__ int scan(int x, int& total) {
  __shared__ int sums[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int inclusive = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) before += sums[i];
    total += sums[i];
  }
  __syncthreads();
  return before + inclusive - x;
}

// Calls f(sequence, tile, tiles of keys) with each tile in its order, a thread with one of as many; threads with none give 0
// tiles of keys. From one place: f has exchanges of whole warps, which lanes at two copies of it would wait for without end.
template <class F>
__device__ void each_tile(const WidePlanArgs& a, F&& f) {
  __shared__ int firsts[kThreads];
  for (int base = 0; base < a.sequences; base += kThreads) {
    const int own = base + int(threadIdx.x), there = min(kThreads, a.sequences - base);
    const int count = own < a.sequences
                          ? WideSequence(a.context_lens, a.query_start, own).tiles(a.group, a.kv_heads) : 0;
    int total;
    firsts[threadIdx.x] = scan(count, total);
    __syncthreads();
    for (int first = 0; first < total; first += kThreads) {
      const int place = first + int(threadIdx.x);
      int low = 0, high = place < total ? there : 0;  // the last sequence that begins here or before
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (firsts[middle] <= place) low = middle;
        else high = middle;
      }
      const int sequence = base + low, tile = place - firsts[low];
      const WideSequence s(a.context_lens, a.query_start, sequence);
      f(sequence, tile, place < total ? s.key_tiles(tile / a.kv_heads, a.group) : 0);
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads, 1) plan_kernel(const __grid_constant__ WidePlanArgs a) {
  wait_for_previous_kernel();
  for (int b = threadIdx.x; b <= a.blocks; b += kThreads) {
    a.starts[b] = {a.sequences, 0, 0, 0};
    if (b < a.blocks) a.folds[b] = {0, 0, 0, 0};
  }
  int all = 0;
  each_tile(a, [&](int, int, int keys) {
    int total;
    scan(keys > 0 ? keys + kTileCost : 0, total);
    all += total;
  });
  const int stretch = max(kLeast, over(all, a.blocks));
  if (threadIdx.x == 0 && all > 0) a.starts[0] = {0, 0, 0, 0};
  int before = 0;
  each_tile(a, [&](int sequence, int tile, int keys) {
    int total;
    const int begin = before + scan(keys > 0 ? keys + kTileCost : 0, total), end = begin + keys + kTileCost;
    before += total;
    if (keys == 0) return;
    if (!a.cuts) {  // a stretch begins with the first tile behind the end of the one before
      for (int b = begin / stretch + 1; b < a.blocks && b * stretch <= end; ++b) a.starts[b] = {sequence, tile + 1, 0, 0};
      return;
    }
    const int first_key = begin + kTileCost;
    for (int b = over(begin, stretch); b < a.blocks && b * stretch < end; ++b)
      a.starts[b] = {sequence, tile, max(0, b * stretch - first_key), 0};
    const int second = first_key / stretch + 1, last = (end - 1) / stretch;  // blocks that begin inside
    if (last >= second) a.folds[second - 1] = {sequence, tile, second - 1, last - second + 2};
  });
}

}  // namespace

cudaError_t plan_wide(const WidePlanArgs& a, cudaStream_t stream) {
  if (a.sequences < 1 || a.blocks < 1) return cudaErrorInvalidValue;
  return launch_after(plan_kernel, {dim3(1), kThreads}, stream, a);
}

}  // namespace octavo
