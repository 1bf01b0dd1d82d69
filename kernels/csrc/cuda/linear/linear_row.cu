// Products of one row: weight[N, K] x, without tensor cores. row_of_weights.cuh says how weights flow.
#include "linear/linear.cuh"
#include "linear/row_norm.cuh"
#include "linear/row_of_weights.cuh"

namespace octavo {
namespace {

constexpr int kVector = 8;               // elements of 16 bytes
constexpr int kStride = 4 * 32 * kVector;  // of the depth, what a warp multiplies at once: four vectors a lane
constexpr int kPiece = 2048;             // of a row, what a copy brings
constexpr int kMaxWidth = kNormedAtOnce * kRowThreads * kVector;  // of a row that is normalised

// Shared memory: barriers, the squares' sums, the lanes' sums, x, the rings.
constexpr int kSquaresAt = kSlotBarriers, kXAt = kSquaresAt + kMostSquares * 4 + kLaneSums;
inline __host__ __device__ int ring_at(int depth) { return kXAt + (depth * 2 + 127) / 128 * 128; }

#if OCTAVO_BULK_COPY

template <class T>
struct Warp : RowOfWeights<Warp<T>, LinearArgs, T, float> {
  using Base = RowOfWeights<Warp<T>, LinearArgs, T, float>;
  using Base::a, Base::cut, Base::shared, Base::lane, Base::warp, Base::first, Base::last, Base::wait, Base::feed, Base::sums;
  static constexpr int kSumsAt = kSquaresAt + kMostSquares * 4;

  __device__ Warp(const LinearArgs& args, const RowCut& how, char* memory) : Base(args, how, memory) {}
  __device__ static int rings_at(const LinearArgs& a) { return ring_at(a.depth); }
  __device__ static const T* weights(const LinearArgs& a, int row) {
    return static_cast<const T*>(a.weight) + int64_t(row) * a.weight_stride;
  }
  __device__ uint4* x_at(int vector) const { return reinterpret_cast<uint4*>(shared + kXAt) + vector; }

  // Puts the weights of the norm where x is going to be.
  __device__ void load_scales() const {
    for (int v = threadIdx.x; a.norm && v < a.depth / kVector; v += kRowThreads)
      *x_at(v) = static_cast<const uint4*>(a.norm)[v];
  }
  // All threads: x into shared memory.
  __device__ void take_x() const {
    const int vectors = a.depth / kVector;
    const uint4* from = static_cast<const uint4*>(a.x);
    if (a.norm) {
      take_normed_row<T, kRowThreads>(from, x_at(0), reinterpret_cast<float*>(shared + kSquaresAt), vectors, a, lane, warp);
    } else {
      for (int v = threadIdx.x; v < vectors; v += kRowThreads) copy16(shared_address(x_at(v)), from + v);
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
    const float sum = Base::total();
    const float up = kSides == 2 ? __shfl_down_sync(~0u, sum, 4) : 0.0f;
    const int row = lane / 4, column = first + row / kSides;
    if (lane % (4 * kSides) == 0 && row < rows) {
      float y = biased(column, sum);
      if constexpr (kSides == 2) {  // rounded as if they had been stored
        y = activated(a.activation, to_float(from_float<T>(y)));
        y *= to_float(from_float<T>(biased(cut.units + column, up)));
      } else if (a.residual) {
        y = __fmaf_rn(a.factor, y, addend);
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
    Base::begin();
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
__global__ void __launch_bounds__(kRowThreads, 2)
    linear_row_kernel(const __grid_constant__ LinearArgs a, const __grid_constant__ RowCut cut) {
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
  RowCut cut;
  Launch how;
  const cudaError_t room = cut_row(cut, how, device, a.columns, a.gated, a.depth, kPiece, kStride, 2, ring_at(a.depth));
  if (room != cudaSuccess) return room;
  return with_half(a.dtype, [&](auto tag) { return launch_after(linear_row_kernel<decltype(tag)>, how, stream, a, cut); });
}

}  // namespace octavo
