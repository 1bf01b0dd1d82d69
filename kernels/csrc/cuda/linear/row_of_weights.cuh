// Products of one row, without tensor cores, for the decode step of a single sequence: how weights flow.
//
// Speed depends on how soon the weights flow and how soon a result is there after its x is. So every warp is on its own: it has
// some rows of the weights, a ring of copies of them in shared memory that it fills (from before the previous kernel has ended:
// weights are never written) and drains itself, and adds up whole rows. Only x is the block's. The copies are long, because
// memory is fastest where neighbours are read together.
#pragma once

#include <algorithm>

#include "device/common.cuh"

namespace octavo {

constexpr int kRowWarps = 16, kRowThreads = kRowWarps * 32;
constexpr int kMostSlots = 16;  // of a warp's ring
constexpr int kBatch = 8;       // rows whose lanes' sums are added up together
constexpr int kPitch = 33;      // numbers between them, against bank conflicts
constexpr int kSlotBarriers = kRowWarps * kMostSlots * 8, kLaneSums = (kRowWarps * kBatch * kPitch * 4 + 127) / 128 * 128;  // bytes

// How a launch goes about it. A unit is a row of the weights or, gated, two; a piece, of a row, what a slot holds.
struct RowCut {
  int units, piece, slots;
};

// With elements of `bytes` and `in_front` bytes of shared memory in front of the rings. A piece is `most` elements, or, of a
// shorter row, whole strides. None where there is no room.
inline cudaError_t cut_row(RowCut& cut, Launch& how, const Device& device, int columns, bool gated, int depth, int most,
                           int stride, int bytes, int in_front) {
  cut = {gated ? columns / 2 : columns, std::min(most, (depth + stride - 1) / stride * stride), 0};
  const int grid = std::min(device.multiprocessors, (cut.units + kRowWarps - 1) / kRowWarps);
  const int own = (cut.units + grid * kRowWarps - 1) / (grid * kRowWarps) * (gated ? 2 : 1);
  const int pieces = own * ((depth + cut.piece - 1) / cut.piece), slot = kRowWarps * cut.piece * bytes;
  cut.slots = std::min({(device.shared_per_block - in_front) / slot, pieces, kMostSlots});
  how = {dim3(grid), kRowThreads, in_front + cut.slots * slot};
  return cut.slots < std::min(pieces, 2) ? cudaErrorNotSupported : cudaSuccess;
}

#if OCTAVO_BULK_COPY

// A warp of the kernel `Row`, which says where its rows of elements E are, and, in shared memory, all rings and the sums.
template <class Row, class Args, class E, class Sum>
struct RowOfWeights {
  const Args& a;
  const RowCut& cut;
  char* shared;
  uint32_t base;
  int lane, warp;
  int first, last;  // of the units
  uint64_t policy;
  // The next copy, and its slot; where the next piece is read.
  int unit, at = 0, side = 0, write = 0;
  int read = 0;
  uint32_t parity = 0;

  __device__ RowOfWeights(const Args& args, const RowCut& how, char* memory)
      : a(args), cut(how), shared(memory), base(shared_address(memory)), lane(threadIdx.x % 32),
        warp(__shfl_sync(~0u, threadIdx.x / 32, 0)), first(begin_of(0)), last(begin_of(1)), policy(read_once_policy()),
        unit(first) {}

  __device__ int begin_of(int next) const {
    return int(int64_t(cut.units) * (blockIdx.x * kRowWarps + warp + next) / (gridDim.x * kRowWarps));
  }
  __device__ uint32_t full(int slot) const { return base + (warp * kMostSlots + slot) * 8; }
  __device__ int slot_at(int slot) const {
    return Row::rings_at(a) + (warp * cut.slots + slot) * cut.piece * int(sizeof(E));
  }
  __device__ Sum* sums() const { return reinterpret_cast<Sum*>(shared + Row::kSumsAt) + warp * kBatch * kPitch; }

  __device__ void begin() {
    if (lane == 0) {
      for (int i = 0; i < cut.slots; ++i) barrier_init(full(i), 1);
      fence_bulk();
    }
    __syncwarp();
    for (int i = 0; i < cut.slots; ++i) feed();
  }
  // Brings the next piece of this warp's weights into the slot that is free.
  __device__ void feed() {
    if (unit == last) return;
    const int width = min(cut.piece, a.depth - at);
    if (lane == 0) {
      const E* from = Row::weights(a, unit + side * cut.units) + at;
      barrier_expect(full(write), width * int(sizeof(E)));
      copy_bulk(base + slot_at(write), from, width * int(sizeof(E)), full(write), policy);
    }
    if (++write == cut.slots) write = 0;
    if (a.gated && side == 0) {
      side = 1;
    } else {
      side = 0;
      if ((at += width) == a.depth) at = 0, ++unit;
    }
  }
  __device__ const uint4* wait() {
    barrier_wait(full(read), parity);
    const uint4* piece = reinterpret_cast<const uint4*>(shared + slot_at(read));
    if (++read == cut.slots) read = 0, parity ^= 1;
    return piece;
  }

  // Sums of the lanes for a row of a batch, which four of them have.
  __device__ Sum total() const {
    __syncwarp();
    const Sum* from = sums() + lane / 4 * kPitch + lane % 4 * 8;
    Sum sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += from[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return sum;
  }
};

#endif

}  // namespace octavo
