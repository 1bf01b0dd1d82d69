// Mamba2 between a layer's two products (arXiv 2405.21060, section 7): one token of a sequence after the other.
//
// Blocks are as those of delta.cu, without what these tell each other: a head's outputs are its own, and what the norm and the gate
// make of a row is a second launch, which also moves the convolution's columns that heads of a group share.
#include "recurrent/chunk.h"
#include "recurrent/finish.h"
#include "recurrent/ssm_stream.cuh"

namespace octavo {
namespace {

template <class T, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) ssm_kernel(const __grid_constant__ SsmArgs a) {
#if OCTAVO_CLUSTERS
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Shared<C>*>(memory);
  const Place<C> place(a, blockIdx.x);
  const Sequence sequence = walked(a, place.sequence);
  if (threadIdx.x == 0) shared.handover.set_up(C::kHelpers, C::kAdvancers);
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

template <class T, class C>
cudaError_t launch(const SsmArgs& a, cudaStream_t stream) {
  const unsigned blocks = unsigned(a.step.moves.sequences * a.heads * (a.head_dim / C::kColumns));
  return launch_after(ssm_kernel<T, C>, {dim3(blocks), C::kThreads, int(sizeof(Shared<C>))}, stream, a);
}

template <class T>
bool takes(const SsmArgs& a) {
  const RecurrentArgs& s = a.step;
  return (a.size == kRows || a.size == 2 * kRows) && a.head_dim % 64 == 0 && a.heads % a.groups == 0 && s.convolution.taps == kTaps &&
         in_words<T>(s.x, s.x_stride) && in_words<T>(s.columns.data, s.columns.stride) &&
         in_words<T>(s.convolution.weight, s.convolution.channels) && in_words<T>(s.convolution.bias, 0) &&
         in_words<T>(s.out, s.out_stride) && in_words<float>(a.matrices.data, a.matrices.stride) && in_words<float>(a.y, 0);
}

// True if sequences have several tokens each to be walked.
bool walks_far(const SsmArgs& a) { return !a.room.data && a.step.rows > 2 * a.step.moves.sequences; }

// A single sequence is bound by a token's latency: as many warps as the chip has schedulers. Bits are those of any cut.
template <class T>
cudaError_t launch_rows(const SsmArgs& a, int multiprocessors, cudaStream_t stream) {
  const int sequences = a.step.moves.sequences, heads = sequences * a.heads;
  if (heads * a.head_dim / 64 <= multiprocessors / 2) return launch<T, Cut<kRows, 2, 4, 2, 2>>(a, stream);
  if (walks_far(a)) return launch<T, Cut<kRows, 4, 4, 2, 1>>(a, stream);
  if constexpr (sizeof(T) == 2)
    if (heads > 2 * multiprocessors && a.head_dim == kStreamed) return launch_stream<T, Stream<4, 2>>(a, multiprocessors, stream);
  return launch<T, Cut<kRows, 4, 2, 1, 2>>(a, stream);
}
// States of twice as many rows fill the registers with half as many columns. They are not streamed: three of their matrices leave
// shared memory for the inputs of one team alone.
template <class T>
cudaError_t launch_twice_rows(const SsmArgs& a, int multiprocessors, cudaStream_t stream) {
  const int sequences = a.step.moves.sequences;
  if (!walks_far(a)) return launch<T, Cut<2 * kRows, 2, 2, 1, 2>>(a, stream);
  if (sequences * a.heads * a.head_dim / 32 <= multiprocessors) return launch<T, Cut<2 * kRows, 2, 4, 2, 1>>(a, stream);
  return launch<T, Cut<2 * kRows, 4, 4, 2, 1>>(a, stream);
}

}  // namespace

cudaError_t ssm_step(const SsmArgs& a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major != 9) return cudaErrorInvalidValue;
  if (a.step.moves.sequences == 0) return cudaSuccess;
  const cudaError_t error = with_dtype(a.step.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (!takes<T>(a)) return cudaErrorInvalidValue;
    return a.size == kRows ? launch_rows<T>(a, device.multiprocessors, stream) : launch_twice_rows<T>(a, device.multiprocessors, stream);
  });
  if (error != cudaSuccess) return error;
  if (a.room.data)
    if (const cudaError_t chunked = chunk_prompts(a, stream); chunked != cudaSuccess) return chunked;
  return finish_rows(a, stream);
}

}  // namespace octavo
