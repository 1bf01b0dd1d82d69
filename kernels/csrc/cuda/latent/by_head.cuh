// How a block computes a slice of products by head.
//
// A slice is 32 columns of one head, whose weights the block holds as a whole: they flow before the previous kernel has ended. The
// weights are the sixteen rows of `mma`, rows of x its eight columns. Two tiles of weights by four parts of the depth are the
// block's eight warps; an element's parts are added up in their order, whatever other rows there are.
#pragma once

#include "device/common.cuh"
#include "latent/args.h"

namespace octavo {

constexpr int kHeadThreads = 256, kHeadColumns = 32, kHeadRows = 64;  // of a block
constexpr int kDepthParts = 4, kDepthWindow = 32, kWindowsAtOnce = 4;
constexpr int kHeadTiles = kHeadColumns / 16, kRowsAtOnce = 8;
constexpr int kPartPitch = kHeadColumns + 4;  // numbers between rows of x, against bank conflicts
constexpr int kPartNumbers = kDepthParts * kRowsAtOnce * kPartPitch;
static_assert(kHeadTiles * kDepthParts * 32 == kHeadThreads && kHeadColumns * kRowsAtOnce == kHeadThreads);

struct ByHeadCut {
  int slices, blocks;  // of a head; of the launch
  int pitch;           // bytes between rows of the weights, which put two rows into different banks
  int parts_at, bytes;
};

// None of blocks where there is nothing to do. False: no kernel takes it.
inline bool cut_by_head(ByHeadCut& cut, const ByHeadArgs& a, const Device& device) {
  const auto at16 = [](const void* p, int64_t stride) { return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 8 == 0; };
  cut.slices = (a.columns + kHeadColumns - 1) / kHeadColumns;
  const int64_t blocks = (a.rows + kHeadRows - 1) / kHeadRows * a.heads * cut.slices;
  cut.blocks = int(blocks);
  cut.pitch = (a.depth * 2 + 127) / 128 * 128 + 64;
  cut.parts_at = kHeadColumns * cut.pitch;
  cut.bytes = cut.parts_at + 2 * kPartNumbers * 4;
  return device.major >= 8 && a.depth > 0 && a.depth % 8 == 0 && blocks < (1 << 30) && cut.bytes <= device.shared_per_block &&
         at16(a.weight, 0) && at16(a.x, a.x_stride) && at16(a.x, a.x_head_stride);
}

template <class T>
struct ByHeadBlock {
  const ByHeadArgs& a;
  const ByHeadCut& cut;
  char* const shared;
  const int lane, warp, head, column;  // `column`: the first of the slice
  const int64_t row;                   // the first

  __device__ ByHeadBlock(const ByHeadArgs& args, const ByHeadCut& how, char* memory, int block)
      : a(args), cut(how), shared(memory), lane(threadIdx.x % 32), warp(threadIdx.x / 32), head(block / how.slices % args.heads),
        column(block % how.slices * kHeadColumns), row(int64_t(block / how.slices / args.heads) * kHeadRows) {}

  __device__ void bring_weights() const {
    const int vectors = a.depth / 8;
    const T* const from = static_cast<const T*>(a.weight) + int64_t(head) * a.columns * a.depth;
    const uint32_t to = shared_address(shared);
    for (int i = threadIdx.x; i < kHeadColumns * vectors; i += kHeadThreads) {
      const int own = i / vectors, vector = i % vectors;
      const bool there = column + own < a.columns;
      copy16(to + own * cut.pitch + vector * 16, there ? from + int64_t(column + own) * a.depth + vector * 8 : from, there);
    }
    commit_copies();
  }

  using Windows = uint4[kWindowsAtOnce];
  __device__ int part() const { return warp % kDepthParts; }
  __device__ int windows() const { return (a.depth + kDepthWindow - 1) / kDepthWindow; }
  // Where a window of this lane's lies, of those from the `from`-th on.
  __device__ int at(int from, int i) const { return (from + i * kDepthParts) * kDepthWindow + lane % 4 * 8; }

  // This lane's part of eight rows of x.
  __device__ void load(int64_t first, int from, Windows& x) const {
    const int64_t own = first + lane / 4;
    const T* const x_row = static_cast<const T*>(a.x) + own * a.x_stride + head * a.x_head_stride;
#pragma unroll
    for (int i = 0; i < kWindowsAtOnce; ++i)
      x[i] = own < a.rows && at(from, i) < a.depth ? __ldcg(reinterpret_cast<const uint4*>(x_row + at(from, i)))
                                                   : make_uint4(0, 0, 0, 0);
  }
  // Adds this warp's products of its tile with them.
  __device__ void multiply(int from, const Windows& x, float (&sums)[4]) const {
    const char* const weights = shared + (warp / kDepthParts * 16 + lane / 4) * cut.pitch;
#pragma unroll
    for (int i = 0; i < kWindowsAtOnce; ++i) {
      if (from + i * kDepthParts >= windows()) break;
      const bool there = at(from, i) < a.depth;
      const uint4 low = there ? *reinterpret_cast<const uint4*>(weights + at(from, i) * 2) : make_uint4(0, 0, 0, 0);
      const uint4 high = there ? *reinterpret_cast<const uint4*>(weights + 8 * cut.pitch + at(from, i) * 2) : make_uint4(0, 0, 0, 0);
      const uint32_t even[4] = {low.x, high.x, low.y, high.y}, odd[4] = {low.z, high.z, low.w, high.w};
      mma<T>(sums, even, x[i].x, x[i].y);
      mma<T>(sums, odd, x[i].z, x[i].w);
    }
  }

  // By all threads, once the weights are on their way and x is there. The next eight rows are loaded while these are multiplied.
  __device__ void compute() const {
    const int64_t end = min(a.rows, row + kHeadRows);
    float* parts = reinterpret_cast<float*>(shared + cut.parts_at);
    Windows next;
    load(row, part(), next);
    wait_copies<0>();
    __syncthreads();
    int turn = 0;
    for (int64_t first = row; first < end; first += kRowsAtOnce, turn ^= 1) {
      float sums[4] = {};
      Windows x;
#pragma unroll
      for (int i = 0; i < kWindowsAtOnce; ++i) x[i] = next[i];
      if (first + kRowsAtOnce < end) load(first + kRowsAtOnce, part(), next);
      multiply(part(), x, sums);
      for (int from = part() + kDepthParts * kWindowsAtOnce; from < windows(); from += kDepthParts * kWindowsAtOnce)
        load(first, from, x), multiply(from, x, sums);
      float* const now = parts + turn * kPartNumbers;
      float* const own = now + part() * kRowsAtOnce * kPartPitch + lane % 4 * 2 * kPartPitch + warp / kDepthParts * 16 + lane / 4;
      own[0] = sums[0], own[kPartPitch] = sums[1], own[8] = sums[2], own[kPartPitch + 8] = sums[3];
      __syncthreads();  // the other turn's sums are read by then, too
      add_up(first + warp, now + warp * kPartPitch + lane);
    }
  }

  // A thread's element of the eight rows.
  __device__ void add_up(int64_t at, const float* parts) const {
    if (at >= a.rows || column + lane >= a.columns) return;
    float sum = parts[0];
#pragma unroll
    for (int i = 1; i < kDepthParts; ++i) sum += parts[i * kRowsAtOnce * kPartPitch];
    static_cast<T*>(a.out)[at * a.out_stride + head * a.out_head_stride + column + lane] = from_float<T>(sum);
  }
};

}  // namespace octavo
