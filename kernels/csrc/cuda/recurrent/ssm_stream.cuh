// Mamba2 of many sequences with few tokens each, which is bound by the bytes of their matrices: as delta_stream.cuh has it. Heads are
// independent of each other here, and small: crews of warps advance them in turn, so that one loads a state while another stores one.
#pragma once

#include "recurrent/ssm.cuh"
#include "recurrent/stream.cuh"

namespace octavo {
namespace {

constexpr int kStreamed = 64;  // columns of a head

template <int teams, int crews>
struct Stream : Cut<kRows, 4, 1, 1, 1> {
  static_assert(kColumns == kStreamed && teams % crews == 0);  // a team's heads are one crew's
  static constexpr int kTeams = teams, kCrews = crews, kBuffers = 4;
  static constexpr int kFirstAdvancer = kTeams * kHelpers + 1;  // warp; the one before copies
  static constexpr int kThreads = 32 * (kFirstAdvancer + kCrews * kAdvancers);

  __device__ static constexpr int head_dim(const SsmArgs&) { return kStreamed; }
};
template <class C>
struct StreamShared {
  Matrices<C::kBuffers, kRows * kStreamed> matrices;
  Shared<C> teams[C::kTeams];
};

#if OCTAVO_CLUSTERS

// Every `step`-th head of a block from number `first` on, in order, each with the team that makes its inputs.
template <class C, class F>
__device__ inline void for_heads(const SsmArgs& a, int first, int step, F&& f) {
  const int heads = a.step.moves.sequences * a.heads;
  for (int head = blockIdx.x + first * gridDim.x, team = first; head < heads; head += step * gridDim.x) {
    f(Place<C>(a, head), team);
    if ((team += step) >= C::kTeams) team -= C::kTeams;
  }
}

template <class C>
__device__ inline void copy_matrices(const SsmArgs& a, StreamShared<C>& shared) {
  Turn<C::kBuffers> turn;
  for_heads<C>(a, 0, 1, [&](const Place<C>& place, int) {
    const int slot = a.step.moves.read[place.sequence];
    const float* from = static_cast<const float*>(a.matrices.data) + slot * a.matrices.stride;
    shared.matrices.copy(turn, slot ? from + int64_t(place.head) * kRows * kStreamed : nullptr);
  });
}

template <class T, class C>
__device__ inline void advance_heads(const SsmArgs& a, StreamShared<C>& shared) {
  const int number = int(threadIdx.x) / 32 - C::kFirstAdvancer, crew = number / C::kAdvancers, warp = number % C::kAdvancers;
  Turn<C::kBuffers, C::kCrews> turn{crew};
  StageCounts stages;
  for_heads<C>(a, crew, C::kCrews, [&](const Place<C>& place, int team) {
    const Sequence sequence = walked(a, place.sequence);
    Advancer<T, C> advancer(a, place, sequence, shared.teams[team], warp);
    shared.matrices.take(turn, advancer.state, sequence.read == 0, advancer.column, kStreamed, advancer.place);
    advancer.advance_all(stages.of(team));
    stages.add(team, stages_of(sequence, C::kTokens));
  });
}

template <class T, class C>
__device__ inline void make_heads(const SsmArgs& a, StreamShared<C>& shared) {
  const int own = int(threadIdx.x) / (32 * C::kHelpers);
  int stages = 0;
  for (int head = blockIdx.x + own * gridDim.x; head < a.step.moves.sequences * a.heads; head += C::kTeams * gridDim.x) {
    const Place<C> place(a, head);
    const Sequence sequence = walked(a, place.sequence);
    Helper<T, C>::meet();  // no warp needs the last head's weights
    Helper<T, C>(a, place, sequence, shared.teams[own], stages).run();
    stages += stages_of(sequence, C::kTokens);
  }
}

#endif

template <class T, class C>
__global__ void __launch_bounds__(C::kThreads, 1) ssm_stream_kernel(const __grid_constant__ SsmArgs a) {
#if OCTAVO_CLUSTERS
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<StreamShared<C>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kTeams; ++i) shared.teams[i].handover.set_up(C::kHelpers, C::kAdvancers);
    shared.matrices.set_up(C::kAdvancers);
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
cudaError_t launch_stream(const SsmArgs& a, int multiprocessors, cudaStream_t stream) {
  const int heads = a.step.moves.sequences * a.heads;
  const Launch how{dim3(unsigned(min(heads, multiprocessors))), C::kThreads, int(sizeof(StreamShared<C>))};
  return launch_after(ssm_stream_kernel<T, C>, how, stream, a);
}

}  // namespace
}  // namespace octavo
