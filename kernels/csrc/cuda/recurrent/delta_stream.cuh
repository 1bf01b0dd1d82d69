// The gated delta rule of many sequences with few tokens each, which is bound by the bytes of their matrices: a block has many heads,
// one after the other. One thread copies the matrices of the next ones into shared memory while one is advanced in registers, and
// teams of warps make inputs of different heads. Arithmetic is that of any other cut.
#pragma once

#include "recurrent/delta_advancer.cuh"
#include "recurrent/delta_helper.cuh"

namespace octavo {
namespace {

template <int teams>
struct Stream : Cut<1, 2, 2, 1, 1> {
  static constexpr bool kClustered = false, kHolds = false;
  static constexpr int kTeams = teams, kBuffers = 3;  // matrices in shared memory
  static constexpr int kFirstAdvancer = kTeams * kHelpers + 1;  // warp; the one before copies
  static constexpr int kThreads = 32 * (kFirstAdvancer + kAdvancers);
};
template <class C>
struct StreamShared {
  float matrices[C::kBuffers][kRows * kHead];
  Shared<C> teams[C::kTeams];
  uint64_t full[C::kBuffers], empty[C::kBuffers];
};

#if OCTAVO_CLUSTERS

// The heads of a block in the order in which they are advanced. A team has all heads of a key head, so that it reads columns of q and k
// before it writes them; teams take turns, so that one has the time in which the others' heads are advanced.
template <class C, class F>
__device__ inline void for_heads(const DeltaArgs& a, F&& f) {
  const int sharing = a.heads / a.key_heads, groups = a.step.moves.sequences * a.key_heads;
  for (int first = blockIdx.x; first < groups; first += C::kTeams * gridDim.x)
    for (int head = 0; head < sharing; ++head)
      for (int team = 0; team < C::kTeams; ++team)
        if (const int group = first + team * int(gridDim.x); group < groups) f(Place<C>(a, group * sharing + head), team);
}
__device__ inline int stages_of(const Sequence& s, int tokens) { return (s.tokens + tokens - 1) / tokens; }

// Which buffer a matrix is in, and for which time the buffer is used.
template <class C>
struct Buffer {
  int at = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++at == C::kBuffers) at = 0, parity ^= 1;
  }
};

template <class C>
__device__ inline void copy_matrices(const DeltaArgs& a, StreamShared<C>& shared) {
  Buffer<C> buffer;
  for_heads<C>(a, [&](const Place<C>& place, int) {
    const int slot = a.step.moves.read[place.sequence];
    barrier_wait(shared_address(&shared.empty[buffer.at]), buffer.parity ^ 1);
    const uint32_t full = shared_address(&shared.full[buffer.at]);
    constexpr uint32_t kBytes = sizeof(shared.matrices[0]);
    if (slot == 0) {
      barrier_arrive_once(full);
    } else {
      const float* from = static_cast<const float*>(a.matrices.data) + slot * a.matrices.stride + int64_t(place.head) * kRows * kHead;
      barrier_expect(full, kBytes), copy_bulk(shared_address(shared.matrices[buffer.at]), from, kBytes, full);
    }
    buffer.advance();
  });
}

template <class T, class C>
__device__ inline void advance_heads(const DeltaArgs& a, StreamShared<C>& shared) {
  const int warp = int(threadIdx.x) / 32 - C::kFirstAdvancer;
  Buffer<C> buffer;
  uint32_t stages = 0;  // of each team, modulo 256, in eight bits
  for_heads<C>(a, [&](const Place<C>& place, int team) {
    const Sequence sequence(a.step.moves, place.sequence);
    Advancer<T, C> advancer(a, place, sequence, shared.teams[team], warp);
    barrier_wait(shared_address(&shared.full[buffer.at]), buffer.parity);
    if (sequence.read) advancer.state.take(shared.matrices[buffer.at] + advancer.column, kHead, advancer.place);
    else advancer.state.clear();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive_once(shared_address(&shared.empty[buffer.at]));
    const int base = int(stages >> 8 * team & 255);
    advancer.advance_all(base);
    stages = (stages & ~(255u << 8 * team)) | (uint32_t(base + stages_of(sequence, C::kTokens)) & 255) << 8 * team;
    buffer.advance();
  });
}

template <class T, class C>
__device__ inline void make_heads(const DeltaArgs& a, StreamShared<C>& shared) {
  const int own = int(threadIdx.x) / (32 * C::kHelpers);
  int stages = 0;
  for_heads<C>(a, [&](const Place<C>& place, int team) {
    if (team != own) return;
    const Sequence sequence(a.step.moves, place.sequence);
    Helper<T, C>::meet();  // nobody needs the last head's weights
    Helper<T, C>(a, place, sequence, shared.teams[own], stages).run();
    stages += stages_of(sequence, C::kTokens);
  });
}

#endif

template <class T, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) delta_stream_kernel(const __grid_constant__ DeltaArgs a) {
#if OCTAVO_CLUSTERS
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<StreamShared<C>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kTeams; ++i) shared.teams[i].handover.set_up(C::kHelpers, C::kAdvancers);
    for (int i = 0; i < C::kBuffers; ++i)
      barrier_init(shared_address(&shared.full[i]), 1), barrier_init(shared_address(&shared.empty[i]), C::kAdvancers);
  }
  __syncthreads();
  const int warp = int(threadIdx.x) / 32;
  if (warp >= C::kFirstAdvancer) {
    advance_heads<T, C>(a, shared);
  } else if (warp == C::kFirstAdvancer - 1) {
    if (threadIdx.x % 32 == 0) copy_matrices<C>(a, shared);
  } else {
    wait_for_previous_kernel();
    launch_next_kernel();
    make_heads<T, C>(a, shared);
  }
#endif
}

template <class T, class C>
cudaError_t launch_stream(const DeltaArgs& a, int multiprocessors, cudaStream_t stream) {
  const int groups = a.step.moves.sequences * a.key_heads;
  const Launch how{dim3(unsigned(min(groups, multiprocessors))), C::kThreads, int(sizeof(StreamShared<C>))};
  return launch_after(delta_stream_kernel<T, C>, how, stream, a);
}

}  // namespace
}  // namespace octavo
