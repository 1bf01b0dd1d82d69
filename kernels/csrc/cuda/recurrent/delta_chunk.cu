// Prompts of the gated delta rule by chunks of 64 tokens, whose rule among themselves is a triangle of products (arXiv 2406.06484, section
// 3; 2412.06464, section 3.3). What needs no state is made of all chunks at a time; then each sequence's state goes through its chunks.
// Products are of bf16 on tensor cores, with two parts of each factor: three for one, which is nearly that of floats.
#include "recurrent/delta_chunk_advance.cuh"
#include "recurrent/delta_chunk_finish.cuh"
#include "recurrent/delta_chunk_prepare.cuh"

namespace octavo {
namespace {

constexpr int kPreparers = 2, kFinished = 4;  // blocks of a multiprocessor

template <class T>
cudaError_t launch_part(const ChunkArgs& c, int multiprocessors, cudaStream_t stream) {
  const DeltaArgs& a = c.delta;
  const int tiles = c.plan.tiles;
  const auto blocks = [&](int wanted, int at_once) { return dim3(unsigned(min(wanted, at_once * multiprocessors))); };
  const Launch prepare{blocks(tiles * a.key_heads, kPreparers), 32 * kMakers, int(sizeof(PrepareShared))};
  const Launch advance{blocks(tiles * a.heads * InPairs::kPieces, 1), 32 * (kAdvancers + 1), int(sizeof(AdvanceShared))};
  const Launch finish{blocks(tiles * a.heads, kFinished), 32 * kFinishers};
  cudaError_t error = launch_after(prepare_chunks<T>, prepare, stream, c);
  if (error == cudaSuccess) error = launch_after(advance_chunks, advance, stream, c);
  if (error == cudaSuccess) error = launch_after(finish_chunks<T>, finish, stream, c);
  return error;
}

}  // namespace

cudaError_t chunk_prompts(const DeltaArgs& a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = describe(device); error != cudaSuccess) return error;
  const int most = most_chunks(a.step);
  if (most == 0) return cudaSuccess;
  if (a.room.tiles < 1 || a.heads > kMostSharing * a.key_heads) return cudaErrorInvalidValue;
  Room room{static_cast<char*>(a.room.data)};
  ChunkArgs c{};
  c.plan = plan_in(room, a.step, a.room.tiles), c.delta = a;
  c.carry = room.take<float>(2 * a.heads * kRows * kHead);
  c.keys = room.take<KeyTile>(c.plan.tiles * a.key_heads);
  c.heads = room.take<HeadTile>(c.plan.tiles * a.heads), c.values = room.take<ValueTile>(c.plan.tiles * a.heads);
  if (room.used > a.room.bytes) return cudaErrorInvalidValue;
  return with_half(a.step.dtype, [&](auto tag) {
    return for_parts(c, most, stream, [&](const ChunkArgs& part) { return launch_part<decltype(tag)>(part, device.multiprocessors, stream); });
  });
}

}  // namespace octavo
