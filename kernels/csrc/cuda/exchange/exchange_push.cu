// Sums of few rows: each rank writes its row into the memory of all others, then takes theirs out of its own.
#include "exchange/rows.cuh"

namespace octavo {
namespace {

__device__ inline uint32_t without_gap(uint32_t word) { return word == kGap ? 0 : word; }
__device__ inline uint4 without_gaps(const uint4& x) {
  return make_uint4(without_gap(x.x), without_gap(x.y), without_gap(x.z), without_gap(x.w));
}

// One vector of the sum. `own` is this rank's, `place` where it lies in each slot.
template <class T, int kAtOnce, int N>
__device__ inline void sum_of_slots(const Peers& peers, uint64_t call, const uint4* own, int64_t place, float (&sum)[N]) {
#pragma unroll 1
  for (int first = 0; first < peers.ranks; first += kAtOnce) {
    uint4 part[kAtOnce] = {};
    const auto is_there = [&](int k) { return first + k < peers.ranks; };
    const auto from = [&](int k) { return slot(peers, peers.rank, first + k, call) + place; };
    Wait wait;
    bool gaps;
    do {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (is_there(k)) part[k] = load_system(first + k == peers.rank ? own : from(k));
      gaps = false;
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) gaps |= is_there(k) && first + k != peers.rank && has_gap(part[k]);
    } while (gaps && wait.goes_on(peers));
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (!is_there(k)) continue;
      if (first + k != peers.rank) leave_gaps(from(k));
      add_vector<T>(sum, part[k]);
    }
  }
}

template <class T, int V, int kAtOnce>
__global__ void __launch_bounds__(1024, 1) push_kernel(const __grid_constant__ ExchangeAddArgs a) {
  constexpr int N = 16 / sizeof(T);
  __shared__ float scratch[V * 32];
  launch_next_kernel();
  const Peers& peers = a.peers;
  const int vectors = a.columns / N;
  const int64_t row = blockIdx.x;
  SummedRow<T, V> summed;
  summed.load_weight(a);
  wait_for_previous_kernel();
  const uint64_t call = this_call(peers);
  const uint4* own = row_of<T>(a.addend, a.addend_stride, row);
  const uint4* before = row_of<T>(a.residual, a.residual_stride, row);
  constexpr bool early = SummedRow<T, V>::kEarly;
  uint4 sent[V], residual = {};
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at < vectors) sent[i] = own[at];
    if (early && at < vectors && a.residual) residual = before[at];
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= vectors) continue;
    for (int step = 1; step < peers.ranks; ++step)
      store_system(slot(peers, rank_after(peers, step), peers.rank, call) + row * vectors + at, without_gaps(sent[i]));
  }
  __syncthreads();
  if (threadIdx.x == 0) count_call(peers, call);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= vectors) continue;
    float sum[N] = {};
    sum_of_slots<T, kAtOnce>(peers, call, own + at, row * vectors + at, sum);
    if (!early && a.residual) residual = before[at];
    add_vector<T>(sum, residual);
    summed.value[i] = narrow<T>(sum);
  }
  summed.finish(a, row, scratch);
}

}  // namespace

cudaError_t push_add(const ExchangeAddArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return with_row_kind(a, [&](auto tag, auto held, auto at_once) {
    using T = decltype(tag);
    const int64_t row_bytes = int64_t(a.columns) * sizeof(T);
    const int threads = threads_of(int(row_bytes / 16));
    if (a.rows * row_bytes > a.peers.slot_bytes || a.rows > blocks_at_once(a.peers, threads)) return cudaErrorInvalidValue;
    return launch_after(push_kernel<T, held.value, at_once.value>, {dim3(unsigned(a.rows)), threads}, stream, a);
  });
}

}  // namespace octavo
