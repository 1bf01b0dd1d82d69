// Products of one row: weight[N, K] x, without tensor cores, for the decode step of a single sequence.
//
// Speed depends on how soon the weights flow and how soon a result is there after its x is. So every warp is on its own:
// it has some rows of the weights, a ring of copies of them in shared memory that it fills (from before the previous
// kernel has ended: weights are never written) and drains itself, and adds up whole rows. Only x is the block's. The
// copies are long, because memory is fastest where neighbours are read together.
#include <algorithm>

#include "linear/linear.cuh"
#include "linear/row_norm.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * 32;
constexpr int kVector = 8;               // elements of 16 bytes
constexpr int kStride = 4 * 32 * kVector;  // of the depth, what a warp multiplies at once: four vectors a lane
constexpr int kPiece = 2048;             // of a row, what a copy brings
constexpr int kMostSlots = 16;           // of a warp's ring
constexpr int kBatch = 8;                // rows whose lanes' sums are added up together
constexpr int kPitch = 33;               // floats between them, against bank conflicts
constexpr int kMaxWidth = kNormedAtOnce * kThreads * kVector;  // of a row that is normalised

// How a launch goes about it. A unit is a row of the weights or, gated, two; a piece, of a row, what a slot holds.
struct Cut {
  int units, piece, slots;
};

// Shared memory: barriers, the squares' sums, the lanes' sums, x, the rings.
constexpr int kSquaresAt = kWarps * kMostSlots * 8, kSumsAt = kSquaresAt + kMostSquares * 4;
constexpr int kXAt = kSumsAt + (kWarps * kBatch * kPitch * 4 + 127) / 128 * 128;
__host__ __device__ inline int ring_at(int depth) { return kXAt + (depth * 2 + 127) / 128 * 128; }
__host__ __device__ inline int bytes_of(const Cut& p, int depth) { return ring_at(depth) + kWarps * p.slots * p.piece * 2; }

#if OCTAVO_BULK_COPY

template <class T>
struct Warp : Thread<Cut> {
  int first, last;  // of the units
  uint64_t policy;
  // The next copy, and its slot; where the next piece is read.
  int unit, at = 0, side = 0, write = 0;
  int read = 0;
  uint32_t parity = 0;

  __device__ Warp(const LinearArgs& args, const Cut& how, char* memory)
      : Thread(args, how, memory), first(begin_of(0)), last(begin_of(1)), policy(read_once_policy()), unit(first) {}

  __device__ int begin_of(int next) const {
    return int(int64_t(cut.units) * (blockIdx.x * kWarps + warp + next) / (gridDim.x * kWarps));
  }
  __device__ uint32_t full(int slot) const { return base + (warp * kMostSlots + slot) * 8; }
  __device__ int slot_at(int slot) const { return ring_at(a.depth) + (warp * cut.slots + slot) * cut.piece * 2; }
  __device__ float* sums() const { return reinterpret_cast<float*>(shared + kSumsAt) + warp * kBatch * kPitch; }
  __device__ uint4* x_at(int vector) const { return reinterpret_cast<uint4*>(shared + kXAt) + vector; }

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
      const T* from = static_cast<const T*>(a.weight) + int64_t(unit + side * cut.units) * a.weight_stride + at;
      barrier_expect(full(write), width * 2);
      copy_bulk(base + slot_at(write), from, width * 2, full(write), policy);
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

  // Puts the weights of the norm where x is going to be.
  __device__ void load_scales() const {
    for (int v = threadIdx.x; a.norm && v < a.depth / kVector; v += kThreads)
      *x_at(v) = static_cast<const uint4*>(a.norm)[v];
  }
  // All threads: x into shared memory.
  __device__ void take_x() const {
    const int vectors = a.depth / kVector;
    const uint4* from = static_cast<const uint4*>(a.x);
    if (a.norm) {
      take_normed_row<T, kThreads>(from, x_at(0), reinterpret_cast<float*>(shared + kSquaresAt), vectors, a, lane, warp);
    } else {
      for (int v = threadIdx.x; v < vectors; v += kThreads) copy16(shared_address(x_at(v)), from + v);
      commit_copies();
      wait_copies<0>();
    }
    __syncthreads();
  }
  // Adds to a lane's sums what it has of a piece of a unit: its vectors from the `first` on, of `count`.
  template <int kSides, bool kWhole>
  __device__ void multiply(const uint4* const (&weights)[kSides], const uint4* x, int count, float (&sums)[kSides][4]) const {
    uint4 raw[kSides][4], xs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool there = kWhole || j * 32 + lane < count;
      xs[j] = there ? x[j * 32 + lane] : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < kSides; ++s) raw[s][j] = there ? weights[s][j * 32 + lane] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float wide[kVector];
      widen<T>(xs[j], wide);
#pragma unroll
      for (int s = 0; s < kSides; ++s) {
        float w[kVector];
        widen<T>(raw[s][j], w);
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[s][j] = __fmaf_rn(w[i], wide[i], sums[s][j]);
      }
    }
  }

  __device__ float addend(int begin) const {
    const int column = begin + lane / 4;
    if (!a.residual || a.gated || lane % 4 != 0 || column >= last) return 0.0f;
    const unsigned short raw = __ldcg(static_cast<const unsigned short*>(a.residual) + column);
    return to_float(reinterpret_cast<const T&>(raw));
  }
  __device__ float biased(int row, float sum) const {
    return a.bias ? sum + to_float(static_cast<const T*>(a.bias)[row]) : sum;
  }

  // Adds up the sums of the lanes for `rows` rows of a batch, and stores what is theirs, from column `first` on.
  template <int kSides>
  __device__ void finish(int first, int rows, float addend) const {
    __syncwarp();
    const float* from = sums() + lane / 4 * kPitch + lane % 4 * 8;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += from[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float up = kSides == 2 ? __shfl_down_sync(~0u, sum, 4) : 0.0f;
    const int row = lane / 4, column = first + row / kSides;
    if (lane % (4 * kSides) == 0 && row < rows) {
      float y = biased(column, sum);
      if constexpr (kSides == 2) {  // rounded as if they had been stored
        y = activated(a.activation, to_float(from_float<T>(y)));
        y *= to_float(from_float<T>(biased(cut.units + column, up)));
      } else if (a.residual) {
        y += addend;
      }
      static_cast<T*>(a.out)[column] = from_float<T>(y);
    }
    __syncwarp();
  }

  template <int kSides>
  __device__ void compute(float addends) {
    constexpr int units_at_once = kBatch / kSides;
#pragma unroll 1
    for (int begin = first; begin < last; begin += units_at_once) {
      const int batch_end = min(begin + units_at_once, last);
      if (begin > first) addends = addend(begin);
#pragma unroll 1
      for (int u = begin; u < batch_end; ++u) {
        float partial[kSides][4] = {};
#pragma unroll 1
        for (int from = 0; from < a.depth; from += cut.piece) {
          const uint4* weights[kSides];
#pragma unroll
          for (int s = 0; s < kSides; ++s) weights[s] = wait();
          const uint4* x = x_at(from / kVector);
          int left = min(cut.piece, a.depth - from);
#pragma unroll 1
          for (; left >= kStride; left -= kStride) {
            multiply<kSides, true>(weights, x, 0, partial);
            x += kStride / kVector;
#pragma unroll
            for (int s = 0; s < kSides; ++s) weights[s] += kStride / kVector;
          }
          if (left > 0) multiply<kSides, false>(weights, x, left / kVector, partial);
          __syncwarp();
#pragma unroll
          for (int s = 0; s < kSides; ++s) feed();
        }
#pragma unroll
        for (int s = 0; s < kSides; ++s)
          sums()[((u - begin) * kSides + s) * kPitch + lane] =
              (partial[s][0] + partial[s][1]) + (partial[s][2] + partial[s][3]);
      }
      finish<kSides>(begin, (batch_end - begin) * kSides, addends);
    }
  }

  __device__ void run() {
    begin();
    load_scales();
    wait_for_previous_kernel();
    launch_next_kernel();
    const float addends = addend(first);
    take_x();
    if (a.gated) compute<2>(addends);
    else compute<1>(addends);
  }
};

#endif

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    linear_row_kernel(const __grid_constant__ LinearArgs a, const __grid_constant__ Cut cut) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(128) char shared[];
  Warp<T>(a, cut, shared).run();
#endif
}

}  // namespace

cudaError_t linear_row(const LinearArgs& a, const Device& device, cudaStream_t stream) {
  if (a.rows != 1 || a.depth == 0 || a.depth % kVector != 0 || !aligned(a.weight, a.weight_stride) || !aligned(a.x, 0) ||
      !aligned(a.norm, 0) || (a.norm && a.depth > kMaxWidth))
    return cudaErrorInvalidValue;
  Cut cut{a.gated ? a.columns / 2 : a.columns, std::min(kPiece, (a.depth + kStride - 1) / kStride * kStride), 0};
  const int grid = std::min(device.multiprocessors, (cut.units + kWarps - 1) / kWarps);
  const int own = (cut.units + grid * kWarps - 1) / (grid * kWarps) * (a.gated ? 2 : 1);
  const int pieces = own * ((a.depth + cut.piece - 1) / cut.piece);
  cut.slots = std::min({(device.shared_per_block - bytes_of(cut, a.depth)) / (kWarps * cut.piece * 2), pieces, kMostSlots});
  if (cut.slots < std::min(pieces, 2)) return cudaErrorNotSupported;
  const Launch how{dim3(grid), kThreads, bytes_of(cut, a.depth)};
  return with_half(a.dtype, [&](auto tag) { return launch_after(linear_row_kernel<decltype(tag)>, how, stream, a, cut); });
}

}  // namespace octavo
