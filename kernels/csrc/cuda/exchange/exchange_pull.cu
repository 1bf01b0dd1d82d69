// Sums of many rows: ranks meet, then read each other's parts where these lie. With more than two ranks a part would cross NVLink
// to each of them: then each sums a share of the rows and writes it into the parts of all, in the place of what it read.
#include "exchange/rows.cuh"

namespace octavo {
namespace {

// One vector of the sum; `own` is where this rank has its part of it.
template <class T, int kAtOnce>
__device__ inline uint4 sum_of_parts(const Peers& peers, const uint4* own, const uint4& residual) {
  float sum[16 / sizeof(T)] = {};
  const int64_t place = reinterpret_cast<const char*>(own) - peers.memory[peers.rank];
#pragma unroll 1
  for (int first = 0; first < peers.ranks; first += kAtOnce) {
    uint4 part[kAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (first + k < peers.ranks) part[k] = load_system(reinterpret_cast<const uint4*>(peers.memory[first + k] + place));
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (first + k < peers.ranks) add_vector<T>(sum, part[k]);
  }
  add_vector<T>(sum, residual);
  return narrow<T>(sum);
}

template <class T, int V, int kAtOnce>
__device__ inline void sum_row(const ExchangeAddArgs& a, int64_t row, uint4 (&value)[V]) {
  const uint4* own = row_of<T>(a.addend, a.addend_stride, row);
  const uint4* before = row_of<T>(a.residual, a.residual_stride, row);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= a.columns / int(16 / sizeof(T))) continue;
    value[i] = sum_of_parts<T, kAtOnce>(a.peers, own + at, a.residual ? before[at] : make_uint4(0, 0, 0, 0));
  }
}

template <class T, int V, int kAtOnce>
__global__ void __launch_bounds__(1024, 1) pull_kernel(const __grid_constant__ ExchangeAddArgs a) {
  __shared__ float scratch[2][V * 32];
  launch_next_kernel();
  SummedRow<T, V> summed;
  summed.load_weight(a);
  wait_for_previous_kernel();
  const uint64_t call = this_call(a.peers);
  meet(a.peers, 2 * call);
  bool odd = false;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, odd = !odd) {
    sum_row<T, V, kAtOnce>(a, row, summed.value);
    summed.finish(a, row, scratch[odd]);
  }
  meet(a.peers, 2 * call + 1);
  if (threadIdx.x == 0) count_call(a.peers, call);
}

// Rows go round the ranks, and blocks begin at different ones. What a rank reads of another's part it alone reads, so it may
// write there; what the others wrote into its own part is there when all have met again, and then nothing of it is read any
// more but by this rank.
template <class T, int V, int kAtOnce>
__global__ void __launch_bounds__(1024, 1) shared_pull_kernel(const __grid_constant__ ExchangeAddArgs a) {
  __shared__ float scratch[2][V * 32];
  launch_next_kernel();
  const Peers& peers = a.peers;
  const int vectors = a.columns / int(16 / sizeof(T));
  SummedRow<T, V> summed;
  summed.load_weight(a);
  wait_for_previous_kernel();
  const uint64_t call = this_call(peers);
  const auto part = [&](int rank, int64_t row) {
    const char* own = reinterpret_cast<const char*>(row_of<T>(a.addend, a.addend_stride, row));
    return reinterpret_cast<uint4*>(peers.memory[rank] + (own - peers.memory[peers.rank]));
  };
  meet(peers, 2 * call);
  int owner = blockIdx.x % peers.ranks;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, owner = owner + 1 < peers.ranks ? owner + 1 : 0) {
    if (owner != peers.rank) continue;
    sum_row<T, V, kAtOnce>(a, row, summed.value);
    for (int step = 0; step < peers.ranks; ++step) {
      uint4* to = part(rank_after(peers, step), row);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const int at = threadIdx.x + i * blockDim.x;
        if (at < vectors) store_system(to + at, summed.value[i]);
      }
    }
  }
  meet(peers, 2 * call + 1);
  bool odd = false;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, odd = !odd) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int at = threadIdx.x + i * blockDim.x;
      if (at < vectors) summed.value[i] = load_system(part(peers.rank, row) + at);
    }
    summed.finish(a, row, scratch[odd]);
  }
  if (threadIdx.x == 0) count_call(peers, call);
}

}  // namespace

cudaError_t pull_add(const ExchangeAddArgs& a, bool shared_out, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return with_row_kind(a, [&](auto tag, auto held, auto at_once) {
    using T = decltype(tag);
    const int threads = threads_of(a.columns * int(sizeof(T)) / 16);
    const int64_t most = std::min(kMostMeeting, blocks_at_once(a.peers, threads));
    const Launch how{dim3(unsigned(std::min(a.rows, most))), threads};
    if (shared_out) return launch_after(shared_pull_kernel<T, held.value, at_once.value>, how, stream, a);
    return launch_after(pull_kernel<T, held.value, at_once.value>, how, stream, a);
  });
}

}  // namespace octavo
