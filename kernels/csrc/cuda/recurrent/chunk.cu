// Prompts of the gated delta rule by chunks of 64 tokens, whose rule among themselves is a triangle of products (arXiv 2406.06484, section
// 3; 2412.06464, section 3.3). What needs no state is made of all chunks at a time; then each sequence's state goes through its chunks.
// Products are of bf16 on tensor cores, with two parts of each factor: three for one, which is nearly that of floats.
#include "recurrent/chunk_advance.cuh"
#include "recurrent/chunk_finish.cuh"
#include "recurrent/chunk_plan.cuh"
#include "recurrent/chunk_prepare.cuh"

namespace octavo {
namespace {

constexpr int kPreparers = 2, kFinished = 4;  // blocks of a multiprocessor

// Pieces of memory, one behind the other.
struct Room {
  char* at;
  int64_t used = 0;

  template <class P>
  P* take(int64_t count) {
    P* piece = reinterpret_cast<P*>(at + used);
    used += (count * int64_t(sizeof(P)) + 255) / 256 * 256;
    return piece;
  }
};

template <class T>
cudaError_t launch_chunks(ChunkArgs c, int most, int multiprocessors, cudaStream_t stream) {
  const DeltaArgs& a = c.delta;
  const auto blocks = [&](int wanted, int at_once) { return dim3(unsigned(min(wanted, at_once * multiprocessors))); };
  cudaError_t error = launch_after(plan_chunks, {dim3(1), kPlanners}, stream, c);
  for (c.begin = c.part = 0; c.begin < most && error == cudaSuccess; c.begin += c.tiles, ++c.part) {
    c.last = c.begin + c.tiles >= most;
    const Launch prepare{blocks(c.tiles * a.key_heads, kPreparers), 32 * kMakers, int(sizeof(PrepareShared))};
    const Launch advance{blocks(c.tiles * a.heads * kPieces, 1), 32 * (kAdvancers + 1), int(sizeof(AdvanceShared))};
    const Launch finish{blocks(c.tiles * a.heads, kFinished), 32 * kFinishers};
    error = launch_after(prepare_chunks<T>, prepare, stream, c);
    if (error == cudaSuccess) error = launch_after(advance_chunks, advance, stream, c);
    if (error == cudaSuccess) error = launch_after(finish_chunks<T>, finish, stream, c);
  }
  return error;
}

}  // namespace

cudaError_t chunk_prompts(const DeltaArgs& a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = describe(device); error != cudaSuccess) return error;
  const int whole = a.step.rows / kChunk, most = kDense * (whole + min(a.step.moves.sequences, whole));
  if (most == 0) return cudaSuccess;
  if (a.room.tiles < 1 || a.heads > kMostSharing * a.key_heads) return cudaErrorInvalidValue;
  Room room{static_cast<char*>(a.room.data)};
  ChunkArgs c{};
  c.delta = a, c.tiles = min(a.room.tiles, most);
  c.counts = room.take<int>(2), c.chunks = room.take<Chunk>(most), c.order = room.take<int2>(whole);
  c.carry = room.take<float>(2 * a.heads * kRows * kHead);
  c.keys = room.take<KeyTile>(c.tiles * a.key_heads);
  c.heads = room.take<HeadTile>(c.tiles * a.heads), c.values = room.take<ValueTile>(c.tiles * a.heads);
  if (room.used > a.room.bytes) return cudaErrorInvalidValue;
  return with_half(a.step.dtype, [&](auto tag) { return launch_chunks<decltype(tag)>(c, most, device.multiprocessors, stream); });
}

}  // namespace octavo
