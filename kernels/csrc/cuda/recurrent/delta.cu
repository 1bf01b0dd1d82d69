// The gated delta rule between a layer's two products (arXiv 2412.06464, section 3): one token of a sequence after the other.
//
// A block has columns of one head's matrix, eight lanes a column, in registers for as long as its sequence has tokens. Its other
// warps make what the next tokens need (convolution, lengths of q and k, gates) in shared memory, and the gated norm of what the
// last ones gave. Blocks that share a head tell each other the squares of their columns, and the blocks of a key head are a
// cluster: all of them have read the columns of q and k before one of them writes these.
#include "recurrent/chunk.h"
#include "recurrent/delta_stream.cuh"

namespace octavo {
namespace {

template <class T, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) delta_kernel(const __grid_constant__ DeltaArgs a) {
#if OCTAVO_CLUSTERS
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Shared<C>*>(memory);
  const Place<C> place(a, blockIdx.x);
  const Sequence sequence = walked(a, place.sequence);
  if (threadIdx.x == 0) {
    shared.handover.set_up(C::kHelpers, C::kAdvancers);
    for (int i = 0; i < 2 * C::kHelpers; ++i) barrier_init(shared_address(&shared.told[i / C::kHelpers][i % C::kHelpers]), 1);
  }
  __syncthreads();
  if (int(threadIdx.x) >= 32 * C::kHelpers) {
    Advancer<T, C>(a, place, sequence, shared, int(threadIdx.x) / 32 - C::kHelpers).run();
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
// decodes is what a step waits for. Where there are many sequences, and all are long, each head has blocks enough, and what is made of q
// and k is made in all of its blocks; where all are short, blocks stream.
int cut_of(const DeltaArgs& a, int multiprocessors) {
  const int sequences = a.step.moves.sequences;
  const int blocks = a.heads * sequences;  // of a head each
  if (a.step.rows <= 2 * sequences) return blocks > multiprocessors ? 5 : 2;
  if (a.room.data) return blocks > multiprocessors ? 5 : 3;  // what is long is not walked
  if (a.step.rows >= kLong * sequences) return 2 * blocks > multiprocessors ? 1 : 4;
  return blocks > multiprocessors ? 3 : 4;
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

// Columns of a part are 32, 64 or 128, so wide heads have three parts.
template <class T>
cudaError_t launch_wide(const DeltaArgs& a, cudaStream_t stream) {
  const int cut = a.cut ? a.cut : a.step.rows <= 2 * a.step.moves.sequences ? 1 : 2;
  switch (cut) {
    case 1: return launch<T, Cut<WideHead, 3, 4, 2, 1, 2>>(a, stream);
    case 2: return launch<T, Cut<WideHead, 3, 4, 4, 2, 2>>(a, stream);
    default: return cudaErrorInvalidValue;
  }
}

bool is_wide(const DeltaArgs& a) { return a.key_dim == WideHead::kRows && a.value_dim == WideHead::kHead; }

template <class T>
bool takes(const DeltaArgs& a) {
  const RecurrentArgs& s = a.step;
  return ((a.key_dim == kRows && a.value_dim == kHead) || (is_wide(a) && !a.room.data)) && a.heads % a.key_heads == 0 &&
         s.convolution.taps == kTaps && a.norm.weight && a.norm.group == a.value_dim && !a.norm.gate_first && in_words<T>(s.x, s.x_stride) &&
         in_words<T>(s.columns.data, s.columns.stride) && in_words<T>(s.convolution.weight, s.convolution.channels) &&
         in_words<T>(s.convolution.bias, 0) && in_words<T>(s.out, s.out_stride) && in_words<float>(a.matrices.data, a.matrices.stride);
}

}  // namespace

cudaError_t delta_step(const DeltaArgs& a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major != 9) return cudaErrorInvalidValue;
  if (a.step.moves.sequences == 0) return cudaSuccess;
  const cudaError_t error = with_dtype(a.step.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (!takes<T>(a)) return cudaErrorInvalidValue;
    if (is_wide(a)) return launch_wide<T>(a, stream);
    switch (a.cut ? a.cut : cut_of(a, device.multiprocessors)) {
      case 1: return launch<T, Cut<EvenHead, 1, 4, 4, 2, 1>>(a, stream);
      case 2: return launch<T, Cut<EvenHead, 4, 2, 2, 1, 2>>(a, stream);
      case 3: return launch<T, Cut<EvenHead, 4, 2, 4, 2, 2>>(a, stream);
      case 4: return launch<T, Cut<EvenHead, 4, 2, 4, 4, 1>>(a, stream);
      case 5: return launch_stream<T, Stream<sizeof(T) == 2 ? 2 : 1>>(a, device.multiprocessors, stream);
      default: return cudaErrorInvalidValue;
    }
  });
  return error == cudaSuccess && a.room.data ? chunk_prompts(a, stream) : error;
}

}  // namespace octavo
