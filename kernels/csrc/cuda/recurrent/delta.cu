// The gated delta rule between a layer's two products (arXiv 2412.06464, section 3): one token of a sequence after the other.
//
// A block has columns of one head's matrix, four lanes a column, in registers for as long as its sequence has tokens. Its other
// warps make what the next tokens need (convolution, lengths of q and k, gates) in shared memory, and the gated norm of what the
// last ones gave. Blocks that share a head tell each other the squares of their columns, and the blocks of a key head are a
// cluster: all of them have read the columns of q and k before one of them writes these.
#include "recurrent/delta_helper.cuh"

namespace octavo {
namespace {

#if OCTAVO_CLUSTERS

// One of the warps that have the state.
template <class T, class C>
struct Advancer {
  static constexpr int kWide = C::kWide, kHelpers = C::kHelpers, kTokens = C::kTokens;

  const DeltaArgs& a;
  const Sequence& sequence;
  Shared<C>& shared;
  const int lane, column, place;  // the first of its columns of the block; its place among the four of a column
  const int64_t offset;           // of its columns in a slot
  State<kWide> state;

  __device__ Advancer(const DeltaArgs& args, const Place<C>& at, const Sequence& s, Shared<C>& memory)
      : a(args), sequence(s), shared(memory), lane(threadIdx.x % 32),
        column((int(threadIdx.x) / 32 - kHelpers) * kLaneColumns * kWide + lane % kLaneColumns * kWide), place(lane / kLaneColumns),
        offset(int64_t(at.head) * kRows * kHead + at.part * C::kColumns + column) {}

  __device__ float* slot(int id) const { return static_cast<float*>(a.matrices.data) + id * a.matrices.stride + offset; }

  __device__ void advance(Stage<C>& stage, int t) {
    const float4 gates = stage.gates[t];
    float of_k[kWide][2] = {}, of_q[kWide][2] = {};
    Elements<float, 4> k[kHeld / 4];
    const auto four = [&](const float* of, int j) {
      return *reinterpret_cast<const Elements<float, 4>*>(of + State<kWide>::row(place, 4 * j));
    };
#pragma unroll
    for (int j = 0; j < kHeld / 4; ++j) {
      k[j] = four(stage.k[t], j);
      const auto q = four(stage.q[t], j);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int w = 0; w < kWide; ++w) {
          of_k[w][e / 2] = __fmaf_rn(state.at[w][4 * j + e], k[j].at[e], of_k[w][e / 2]);
          of_q[w][e / 2] = __fmaf_rn(state.at[w][4 * j + e], q.at[e], of_q[w][e / 2]);
        }
    }
    const auto v = *reinterpret_cast<const Elements<float, kWide>*>(stage.v[t] + column);
    Elements<float, kWide> o;
    float d[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      const float along_k = column_sum(__fadd_rn(of_k[w][0], of_k[w][1])), along_q = column_sum(__fadd_rn(of_q[w][0], of_q[w][1]));
      d[w] = __fmul_rn(gates.y, __fmaf_rn(-gates.x, along_k, v.at[w]));
      o.at[w] = __fmaf_rn(gates.z, d[w], __fmul_rn(gates.x, along_q));
    }
    if (place == 0) *reinterpret_cast<Elements<float, kWide>*>(stage.o[t] + column) = o;
#pragma unroll
    for (int j = 0; j < kHeld / 4; ++j) {
      const auto again = C::kHolds ? k[j] : four(stage.k[t], j);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int w = 0; w < kWide; ++w)
          state.at[w][4 * j + e] = __fmaf_rn(again.at[e], d[w], __fmul_rn(gates.x, state.at[w][4 * j + e]));
    }
  }

  __device__ void run() {
    tell_cluster();
    state.load(sequence.read ? slot(sequence.read) : nullptr, kHead, place);
    Keeps keeps(a.step.moves, sequence);
    for (int first = 0; first < sequence.tokens; first += kTokens) {
      const int stage = first / kTokens;
      Handover::wait_for(shared.handover.made, stage);
      const int count = min(kTokens, sequence.tokens - first);
      for (int t = 0; t < count; ++t) {
        advance(shared.stages[stage % 2], t);
        keeps.at(first + t + 1, [&](int kept) { state.store(slot(kept), kHead, place); });
      }
      Handover::tell(shared.handover.used, stage);
    }
    if (sequence.write && (sequence.tokens > 0 || sequence.write != sequence.read)) state.store(slot(sequence.write), kHead, place);
    wait_for_cluster();
  }
};

#endif

template <class T, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) delta_kernel(const __grid_constant__ DeltaArgs a) {
#if OCTAVO_CLUSTERS
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Shared<C>*>(memory);
  const Place<C> place(a);
  const Sequence sequence(a.step.moves, place.sequence);
  if (threadIdx.x == 0) {
    shared.handover.set_up(C::kHelpers, C::kAdvancers);
    for (int i = 0; i < 2 * C::kHelpers; ++i) barrier_init(shared_address(&shared.told[i / C::kHelpers][i % C::kHelpers]), 1);
  }
  __syncthreads();
  if (int(threadIdx.x) >= 32 * C::kHelpers) {
    Advancer<T, C>(a, place, sequence, shared).run();
  } else {
    Helper<T, C> helper(a, place, sequence, shared);
    wait_for_previous_kernel();
    launch_next_kernel();
    helper.run();
  }
#endif
}

constexpr int kLong = 256;  // tokens of a sequence

// How a launch is cut. A sequence is bound by a token's latency, and so by how many warps advance it: one long prompt beside
// decodes is what a step waits for. Where there are many sequences, and all are short or all are long, each head has blocks enough, and
// what is made of q and k is made in all of its blocks.
int cut_of(const DeltaArgs& a, int multiprocessors) {
  const int sequences = a.step.moves.sequences;
  const bool many = a.heads * sequences > 2 * multiprocessors;
  if (a.step.rows <= 2 * sequences) return many ? 1 : 3;
  return many && a.step.rows >= kLong * sequences ? 1 : 4;
}

template <class T, class C>
cudaError_t launch(const DeltaArgs& a, cudaStream_t stream) {
  const int cluster = a.heads / a.key_heads * C::kParts;
  if (cluster > kMostBlocks) return cudaErrorInvalidValue;
  Launch how{dim3(unsigned(a.step.moves.sequences * a.key_heads * cluster)), C::kThreads, int(sizeof(Shared<C>))};
  how.cluster = cluster;
  if (cluster > kPortable)
    if (const cudaError_t error = allow_large_clusters(delta_kernel<T, C>); error != cudaSuccess) return error;
  return launch_after(delta_kernel<T, C>, how, stream, a);
}

template <class T>
bool takes(const DeltaArgs& a) {
  const RecurrentArgs& s = a.step;
  return a.key_dim == kRows && a.value_dim == kHead && a.heads % a.key_heads == 0 && s.convolution.taps == kTaps &&
         a.norm.weight && a.norm.group == kHead && !a.norm.gate_first && in_words<T>(s.x, s.x_stride) &&
         in_words<T>(s.columns.data, s.columns.stride) && in_words<T>(s.convolution.weight, s.convolution.channels) &&
         in_words<T>(s.convolution.bias, 0) && in_words<T>(s.out, s.out_stride) && in_words<float>(a.matrices.data, a.matrices.stride);
}

}  // namespace

cudaError_t delta_step(const DeltaArgs& a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major != 9) return cudaErrorInvalidValue;
  if (a.step.moves.sequences == 0) return cudaSuccess;
  return with_dtype(a.step.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (!takes<T>(a)) return cudaErrorInvalidValue;
    switch (a.cut ? a.cut : cut_of(a, device.multiprocessors)) {
      case 1: return launch<T, Cut<1, 2, 4, 2, 1>>(a, stream);
      case 2: return launch<T, Cut<2, 1, 2, 1, sizeof(T) == 2 ? 2 : 1>>(a, stream);
      case 3: return launch<T, Cut<4, 1, 2, 1, sizeof(T) == 2 ? 3 : 2>>(a, stream);
      case 4: return launch<T, Cut<4, 1, 4, 2, 2>>(a, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

}  // namespace octavo
