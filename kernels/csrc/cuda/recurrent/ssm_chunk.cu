// Prompts of Mamba2 by chunks of 64 tokens (arXiv 2405.21060, sections 6 and 7). B, C and their products, which heads of a group share,
// are made of all chunks at a time; then each head's state goes through its chunks, in blocks that make all else on the way. Products
// are of bf16 on tensor cores, with two parts of each factor: three for one, which is nearly that of floats.
#include "recurrent/ssm_chunk_advance.cuh"
#include "recurrent/ssm_chunk_prepare.cuh"

namespace octavo {
namespace {

template <class T, int rows>
cudaError_t launch_part(const SsmChunkArgs& c, int multiprocessors, cudaStream_t stream) {
  const SsmArgs& a = c.ssm;
  const int tiles = c.plan.tiles * a.groups, pairs = (a.heads / a.groups * (a.head_dim / kWide) + kUnits - 1) / kUnits;
  const auto blocks = [&](int wanted, int at_once) { return dim3(unsigned(min(wanted, at_once * multiprocessors))); };
  const Launch prepare{blocks(tiles, 256 / rows), 32 * kPreparers, int(sizeof(PrepareShared<rows>))};
  const Launch advance{blocks(tiles * pairs, 1), SsmShared<rows>::kThreads, int(sizeof(SsmShared<rows>)) + 1024};
  const cudaError_t error = launch_after(prepare_ssm_chunks<T, rows>, prepare, stream, c);
  return error == cudaSuccess ? launch_after(advance_ssm_chunks<T, rows>, advance, stream, c) : error;
}
template <int rows>
cudaError_t launch_chunks(const SsmArgs& a, int multiprocessors, cudaStream_t stream) {
  const int most = most_chunks(a.step);
  if (most == 0) return cudaSuccess;
  if (a.room.tiles < 1) return cudaErrorInvalidValue;
  Room room{static_cast<char*>(a.room.data)};
  SsmChunkArgs c{};
  c.plan = plan_in(room, a.step, a.room.tiles), c.ssm = a;
  c.carry = room.take<float>(int64_t(2) * a.heads * rows * a.head_dim);
  c.tiles = room.take<GroupTile<rows>>(int64_t(c.plan.tiles) * a.groups);
  if (room.used > a.room.bytes) return cudaErrorInvalidValue;
  return with_half(a.step.dtype, [&](auto tag) {
    using T = decltype(tag);
    return for_parts(c, most, stream, [&](const SsmChunkArgs& part) { return launch_part<T, rows>(part, multiprocessors, stream); });
  });
}

}  // namespace

cudaError_t chunk_prompts(const SsmArgs& a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = describe(device); error != cudaSuccess) return error;
  return a.size == 128 ? launch_chunks<128>(a, device.multiprocessors, stream) : launch_chunks<256>(a, device.multiprocessors, stream);
}

}  // namespace octavo
