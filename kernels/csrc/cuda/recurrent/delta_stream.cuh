// The gated delta rule of many sequences with few tokens each, which is bound by the bytes of their matrices: a block has many heads,
// one after the other. One thread copies the matrices of the next ones into shared memory while one is advanced in registers, and
// teams of warps make inputs of different heads. Arithmetic is that of any other cut.
#pragma once

#include "recurrent/delta_advancer.cuh"
#include "recurrent/delta_helper.cuh"
#include "recurrent/stream.cuh"

namespace octavo {
namespace {

template <int teams>
struct Stream : Cut<EvenHead, 1, 4, 2, 1, 1> {
  static constexpr bool kClustered = false, kHolds = false;
  static constexpr int kTeams = teams, kBuffers = 3;  // matrices in shared memory
  static constexpr int kFirstAdvancer = kTeams * kHelpers + 1;  // warp; the one before copies
  static constexpr int kThreads = 32 * (kFirstAdvancer + kAdvancers);
};
template <class C>
struct StreamShared {
  Matrices<C::kBuffers, kRows * kHead> matrices;
  Shared<C> teams[C::kTeams];
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

template <class C>
__device__ inline void copy_matrices(const DeltaArgs& a, StreamShared<C>& shared) {
  Turn<C::kBuffers> turn;
  for_heads<C>(a, [&](const Place<C>& place, int) {
    const int slot = a.step.moves.read[place.sequence];
    const float* from = static_cast<const float*>(a.matrices.data) + slot * a.matrices.stride;
    shared.matrices.copy(turn, slot ? from + int64_t(place.head) * kRows * kHead : nullptr);
  });
}

template <class T, class C>
__device__ inline void advance_heads(const DeltaArgs& a, StreamShared<C>& shared) {
  const int warp = int(threadIdx.x) / 32 - C::kFirstAdvancer;
  Turn<C::kBuffers> turn;
  StageCounts stages;
  for_heads<C>(a, [&](const Place<C>& place, int team) {
    const Sequence sequence = walked(a, place.sequence);
    Advancer<T, C> advancer(a, place, sequence, shared.teams[team], warp);
    shared.matrices.take(turn, advancer.state, sequence.read == 0, advancer.column, kHead, advancer.place);
    advancer.advance_all(stages.of(team));
    stages.add(team, stages_of(sequence, C::kTokens));
  });
}

template <class T, class C>
__device__ inline void make_heads(const DeltaArgs& a, StreamShared<C>& shared) {
  const int own = int(threadIdx.x) / (32 * C::kHelpers), sharing = a.heads / a.key_heads;
  int stages = 0;
  for (int group = blockIdx.x + own * gridDim.x; group < a.step.moves.sequences * a.key_heads; group += C::kTeams * gridDim.x)
    for (int head = 0; head < sharing; ++head) {
      const Place<C> place(a, group * sharing + head);
      const Sequence sequence = walked(a, place.sequence);
      Helper<T, C>::meet();  // no warp needs the last head's weights
      Helper<T, C>(a, place, sequence, shared.teams[own], stages).run();
      stages += stages_of(sequence, C::kTokens);
    }
}

#endif

template <class T, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) delta_stream_kernel(const __grid_constant__ DeltaArgs a) {
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
cudaError_t launch_stream(const DeltaArgs& a, int multiprocessors, cudaStream_t stream) {
  const int groups = a.step.moves.sequences * a.key_heads;
  const Launch how{dim3(unsigned(min(groups, multiprocessors))), C::kThreads, int(sizeof(StreamShared<C>))};
  return launch_after(delta_stream_kernel<T, C>, how, stream, a);
}

}  // namespace
}  // namespace octavo
