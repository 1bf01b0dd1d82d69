// Gather: each rank's data on all of them, bit for bit and of any type.
#include "exchange/meeting.cuh"

namespace octavo {
namespace {

inline constexpr int kUnitWords = 3;  // of data, beside one that says which of them look like gaps

// Three words from `at` on, as they are pushed.
__device__ inline uint4 unit_of(const uint32_t* mine, int64_t at, int64_t words) {
  uint32_t word[kUnitWords] = {}, gaps = 0;
#pragma unroll
  for (int j = 0; j < kUnitWords; ++j) {
    if (at + j < words) word[j] = mine[at + j];
    if (word[j] == kGap) word[j] = 0, gaps |= 1u << j;
  }
  return make_uint4(word[0], word[1], word[2], gaps);
}
__device__ inline void store_unit(uint32_t* out, int64_t at, int64_t words, const uint4& unit) {
  const uint32_t word[kUnitWords] = {unit.x, unit.y, unit.z};
#pragma unroll
  for (int j = 0; j < kUnitWords; ++j)
    if (at + j < words) out[at + j] = unit.w >> j & 1 ? kGap : word[j];
}

// One block a multiprocessor is enough to say, or the compiler spills registers for more of them than are ever launched.
__global__ void __launch_bounds__(kGatherThreads, 1) push_gather_kernel(const __grid_constant__ ExchangeGatherArgs a) {
  launch_next_kernel();
  const Peers& peers = a.peers;
  const int64_t words = a.bytes / 4, units = (words + kUnitWords - 1) / kUnitWords;
  const int64_t first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  const auto* mine = static_cast<const uint32_t*>(a.mine);
  auto* out = static_cast<uint32_t*>(a.out);
  wait_for_previous_kernel();
  const uint64_t call = this_call(peers);
  // A thread's data for another rank are taken there by the thread of its number.
  for (int64_t unit = first; unit < units; unit += stride) {
    const uint4 sent = unit_of(mine, unit * kUnitWords, words);
    store_unit(out + peers.rank * words, unit * kUnitWords, words, sent);
    for (int step = 1; step < peers.ranks; ++step)
      store_system(slot(peers, rank_after(peers, step), peers.rank, call) + unit, sent);
  }
  __syncthreads();
  if (threadIdx.x == 0) count_call(peers, call);
  for (int step = 1; step < peers.ranks; ++step) {
    const int from = rank_before(peers, step);
    for (int64_t unit = first; unit < units; unit += stride) {
      uint4* at = slot(peers, peers.rank, from, call) + unit;
      Wait wait;
      uint4 got;
      do got = load_system(at);
      while (has_gap(got) && wait.goes_on(peers));
      leave_gaps(at);
      store_unit(out + from * words, unit * kUnitWords, words, got);
    }
  }
}

// `Unit` divides the bytes, and everything begins at a multiple of it.
template <class Unit>
__global__ void __launch_bounds__(kGatherThreads) pull_gather_kernel(const __grid_constant__ ExchangeGatherArgs a) {
  launch_next_kernel();
  const Peers& peers = a.peers;
  const int64_t units = a.bytes / int64_t(sizeof(Unit));
  const int64_t first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  const auto* mine = static_cast<const Unit*>(a.mine);
  auto* out = static_cast<Unit*>(a.out);
  wait_for_previous_kernel();
  const uint64_t call = this_call(peers);
  if (a.part)
    for (int64_t i = first; i < units; i += stride) static_cast<Unit*>(a.part)[i] = mine[i];
  meet(peers, 2 * call);
  const char* own = static_cast<const char*>(a.part ? a.part : a.mine);
  for (int step = 0; step < peers.ranks; ++step) {
    const int from = rank_after(peers, step);
    const auto* theirs = reinterpret_cast<const Unit*>(peers.memory[from] + (own - peers.memory[peers.rank]));
#pragma unroll 4
    for (int64_t i = first; i < units; i += stride)
      out[from * units + i] = load_system(theirs + i);
  }
  meet(peers, 2 * call + 1);
  if (threadIdx.x == 0) count_call(peers, call);
}

dim3 blocks_for(const Peers& peers, int64_t threads) {
  const int64_t most = std::min(kMostMeeting, blocks_at_once(peers, kGatherThreads));
  return dim3(unsigned(std::min((threads + kGatherThreads - 1) / kGatherThreads, most)));
}

}  // namespace

cudaError_t push_gather(const ExchangeGatherArgs& a, cudaStream_t stream) {
  if (a.bytes == 0) return cudaSuccess;
  const int64_t units = (a.bytes / 4 + kUnitWords - 1) / kUnitWords;
  if (a.bytes % 4 != 0 || units * 16 > a.peers.slot_bytes) return cudaErrorInvalidValue;
  return launch_after(push_gather_kernel, {blocks_for(a.peers, units), kGatherThreads}, stream, a);
}

cudaError_t pull_gather(const ExchangeGatherArgs& a, cudaStream_t stream) {
  if (a.bytes == 0) return cudaSuccess;
  if (a.bytes % 4 != 0) return cudaErrorInvalidValue;
  const auto all = reinterpret_cast<uintptr_t>(a.mine) | reinterpret_cast<uintptr_t>(a.out) | uintptr_t(a.bytes);
  const int unit = all % 16 == 0 ? 16 : 4;
  const Launch how{blocks_for(a.peers, a.bytes / unit), kGatherThreads};
  if (unit == 16) return launch_after(pull_gather_kernel<uint4>, how, stream, a);
  return launch_after(pull_gather_kernel<uint32_t>, how, stream, a);
}

}  // namespace octavo
