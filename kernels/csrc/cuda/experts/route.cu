// Routing of up to 64 rows in one launch: rows' norm, the router's product in float32, the choice, the lists, the last two unless
// products choose by themselves. Of more rows each of these is a launch. A row's sums and its choice depend on nothing but the row.
//
// A block has some outputs of the router, a warp one of them with its weights in shared memory from before the previous kernel
// has ended, and a group of rows. The last block of a group chooses for its rows, the last of all makes the lists.
#include <algorithm>

#include "experts/lists.cuh"
#include "experts/route.h"
#include "linear/norm.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kGroupRows = kWarps;            // at most: a warp chooses for one row
constexpr int kVector = 8;                    // elements of 16 bytes
constexpr int kHeldVectors = 8, kHeldStretches = 4;  // of a router's row, and of rows, that a lane has at once
constexpr int kPieces = kWarps * kHeldVectors * 32 * kVector * 4;  // bytes in shared memory of pieces of a router's rows
constexpr int kRowsBytes = 160 * 1024;  // at most, of a group
constexpr int kMostWidth = 64 * 32 * kVector;  // of a row that is normalised as norm.cu does it
constexpr int kBlocks = 264;                  // about as many as there are, unless groups are full

struct RouteCut {
  int slices, group_rows, groups;
};
using Squares = float[kGroupRows][kMostWidth / kVector / 32];  // of a row's stretches

// A block's outputs for its rows.
template <class T>
struct Slice {
  const RouteArgs& a;
  uint4* const rows;  // [group_rows][width], in shared memory
  const int warp, lane, vectors;
  const int output;  // of this warp
  float4* const weights;  // of the output, a piece: lane by lane the first halves of a vector, then the second ones
  const int stretches, part;  // of a row, 32 vectors each; 2^16 over how many, rounded up
  uint4 scales[kHeldStretches];

  __device__ Slice(const RouteArgs& args, char* shared, int slice)
      : a(args), rows(reinterpret_cast<uint4*>(shared + kPieces)), warp(threadIdx.x / 32), lane(threadIdx.x % 32),
        vectors(args.width / kVector), output(slice * kWarps + warp),
        weights(reinterpret_cast<float4*>(shared) + warp * kHeldVectors * 64), stretches((vectors + 31) / 32),
        part((65536 + stretches - 1) / stretches) {}

  // The output's weights.
  __device__ const float* source() const {
    return output < a.routing.experts    ? a.router + output * a.router_stride
           : output == a.routing.experts ? a.gate
                                         : nullptr;
  }
  // Brings them from the vector `begin` on.
  __device__ void load(int begin) const {
    const float* from = source();
#pragma unroll
    for (int i = 0; i < kHeldVectors * 2; ++i) {
      const int half = i * 32 + lane, at = begin * 2 + half;
      const bool there = from && at < vectors * 2;
      const float* source = there ? from + int64_t(at) * 4 : a.router;
      copy16(shared_address(weights + (half / 64 * 2 + half % 2) * 32 + half / 2 % 32), source, there);
    }
    commit_copies();
  }

  // Prefetches into the L2 of those behind the first piece.
  __device__ void prefetch() const {
    constexpr int kFirst = kHeldVectors * 32 * kVector;
    if (lane == 0 && a.width > kFirst && source()) prefetch_bulk(source() + kFirst, (a.width - kFirst) * 4);
  }

  // Stretches of a group's rows are shared out among warps: this one has every eighth.
  template <class F>
  __device__ void for_own(int first, int count, F&& f) const {
#pragma unroll
    for (int i = 0; i < kHeldStretches; ++i) {
      const int own = first + i * kWarps, r = own * part >> 16, at = (own - r * stretches) * 32 + lane;
      f(i, r, at, r < count && at < vectors);
    }
  }
  // Weights of the norm of the stretches from `first` on.
  __device__ void load_scales(int first, int count) {
    if (!a.norm) return;
    for_own(first, count, [&](int i, int, int at, bool there) {
      if (there) scales[i] = static_cast<const uint4*>(a.norm)[at];
    });
  }
  // Rows into shared memory, and the sums of squares of their stretches, as norm.cu adds them up. Loads are made many at a time,
  // and so are the sums.
  __device__ void take(int row, int count, Squares& squares) const {
    for (int first = warp; first < count * stretches; first += kWarps * kHeldStretches) {
      uint4 raw[kHeldStretches];
      float sums[kHeldStretches];
      for_own(first, count, [&](int i, int r, int at, bool there) {
        const uint4* from = reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + (row + r) * a.x_stride);
        raw[i] = there ? __ldcg(from + at) : make_uint4(0, 0, 0, 0);
      });
#pragma unroll
      for (int i = 0; i < kHeldStretches; ++i) {
        float x[kVector];
        widen<T>(raw[i], x);
        sums[i] = warp_sum(sum_of_squares(x));
      }
      for_own(first, count, [&](int i, int r, int at, bool there) {
        if (there) rows[r * vectors + at] = raw[i];
        if (there && lane == 0) squares[r][at / 32] = sums[i];
      });
    }
  }
  // The norm of the rows, which the first slice also stores. Warp by warp each row's inverse root is made.
  __device__ void normalise(int row, int count, Squares& squares, float* inverses, bool stores) {
    if (warp < count) {
      const float low = lane < stretches ? squares[warp][lane] : 0.0f;
      const float high = lane + 32 < stretches ? squares[warp][lane + 32] : 0.0f;
      const float inverse = inverse_rms(warp_sum(low + high), a.width, a.eps);
      if (lane == 0) inverses[warp] = inverse;
    }
    __syncthreads();
    for (int first = warp; first < count * stretches; first += kWarps * kHeldStretches) {
      if (first != warp) load_scales(first, count);
      for_own(first, count, [&](int i, int r, int at, bool there) {
        if (!there) return;
        float x[kVector], scale[kVector];
        widen<T>(rows[r * vectors + at], x), widen<T>(scales[i], scale);
#pragma unroll
        for (int n = 0; n < kVector; ++n) x[n] = x[n] * inverses[r] * (scale[n] + a.offset);
        const uint4 normed = narrow<T>(x);
        rows[r * vectors + at] = normed;
        if (stores) reinterpret_cast<uint4*>(static_cast<T*>(a.normed) + (row + r) * a.normed_stride)[at] = normed;
      });
    }
  }

  __device__ void multiply(int begin, int count, float (&sums)[kGroupRows]) const {
    float partial[kGroupRows][2] = {};
#pragma unroll
    for (int i = 0; i < kHeldVectors; ++i) {
      const int at = begin + i * 32 + lane;
      const float4 low = weights[i * 64 + lane], high = weights[i * 64 + 32 + lane];
      const float w[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int r = 0; r < kGroupRows; ++r) {
        if (r >= count) break;
        float x[kVector];
        widen<T>(at < vectors ? rows[r * vectors + at] : make_uint4(0, 0, 0, 0), x);
#pragma unroll
        for (int n = 0; n < kVector; ++n) partial[r][i % 2] = __fmaf_rn(w[n], x[n], partial[r][i % 2]);
      }
    }
#pragma unroll
    for (int r = 0; r < kGroupRows; ++r) sums[r] += partial[r][0] + partial[r][1];
  }
  // Logits of `count` rows from `row` on.
  __device__ void compute(int row, int count) const {
    float sums[kGroupRows] = {};
    for (int begin = 0; begin < vectors; begin += kHeldVectors * 32) {
      if (begin > 0) load(begin);
      wait_copies<0>();
      __syncwarp();
      multiply(begin, count, sums);
      __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < kGroupRows; ++r) {
      if (r >= count) break;
      const float sum = warp_sum(sums[r]);
      if (lane != 0) continue;
      if (output < a.routing.experts) a.logits[(row + r) * a.routing.experts + output] = a.bias ? sum + a.bias[output] : sum;
      else if (output == a.routing.experts && a.gate) a.gates[row + r] = sigmoid_of(sum);
    }
  }
};

// True in all threads of the block that is the last of `blocks` to come here; it sees what the others have stored. The counter is
// zero again then.
__device__ inline bool is_last(unsigned* counter, int blocks, int* shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *shared = atomicAdd(counter, 1u) + 1 == unsigned(blocks);
    if (*shared) *counter = 0;
  }
  __syncthreads();
  const bool last = *shared;
  __threadfence();
  __syncthreads();
  return last;
}

template <class T, int kHeld>
__global__ void __launch_bounds__(kThreads, 2)
    route_kernel(const __grid_constant__ RouteArgs a, const __grid_constant__ RouteCut cut) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float room[kWarps][kMostChosen];
  __shared__ Squares squares;
  __shared__ int flag;
  const int group = blockIdx.x / cut.slices, slice = blockIdx.x % cut.slices;
  const int row = group * cut.group_rows, count = min(cut.group_rows, a.rows - row);
  Slice<T> own(a, shared, slice);
  own.load(0);
  own.prefetch();
  own.load_scales(own.warp, count);
  wait_for_previous_kernel();
  launch_next_kernel();
  own.take(row, count, squares);
  __syncthreads();
  if (a.norm) {
    own.normalise(row, count, squares, room[0], slice == 0);
    __syncthreads();
  }
  own.compute(row, count);
  if (!a.lists.places) return;
  if (!is_last(a.counters + 1 + group, cut.slices, &flag)) return;
  if (own.warp < count) choose_row<kHeld>(a, row + own.warp, own.lane, room[own.warp]);
  if (cut.groups == 1) __syncthreads();
  else if (!is_last(a.counters, cut.groups, &flag)) return;
  static_assert(sizeof(MaskedLists) <= kPieces);
  reinterpret_cast<MaskedLists*>(shared)->make(a);
}

constexpr int kListWarps = 32, kAtOnce = 8;

// A block makes one expert's list: it looks at all ids, each warp at a stretch of them.
__global__ void __launch_bounds__(kListWarps * 32) lists_kernel(const __grid_constant__ RouteArgs a) {
  __shared__ int lower[kListWarps], equal[kListWarps];
  wait_for_previous_kernel();
  launch_next_kernel();
  const int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int count = a.rows * a.routing.chosen, stretch = (count + kListWarps - 1) / kListWarps;
  const int begin = warp * stretch, end = min(begin + stretch, count);
  const auto look = [&](auto&& see) {
    for (int first = begin; first < end; first += 32 * kAtOnce) {
      int ids[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + i * 32 + lane;
        ids[i] = at < end ? __ldcg(a.ids + at) : kMostExperts;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) see(first + i * 32 + lane, ids[i]);
    }
  };
  int below = 0, own = 0;
  look([&](int, int id) {
    below += __popc(__ballot_sync(kAll, id >= 0 && id < expert));
    own += __popc(__ballot_sync(kAll, id == expert));
  });
  if (lane == 0) lower[warp] = below, equal[warp] = own;
  __syncthreads();
  int start = 0, place = 0;
  for (int i = 0; i < kListWarps; ++i) {
    start += lower[i], place += equal[i];
    if (i == warp) own = place - equal[i];
  }
  if (threadIdx.x == 0) {
    a.lists.starts[expert] = start;
    if (expert == a.routing.experts - 1) a.lists.starts[expert + 1] = start + place;
  }
  place = start + own;
  look([&](int at, int id) {
    const unsigned with = __ballot_sync(kAll, id == expert);
    if (id == expert) {
      const int mine = place + __popc(with & ((1u << lane) - 1));
      a.lists.places[at] = mine, a.lists.sources[mine] = at / a.routing.chosen;
    } else if (id < 0 && expert == 0) {
      a.lists.places[at] = -1;
    }
    place += __popc(with);
  });
}

int over(int n, int by) { return (n + by - 1) / by; }

// Of a few rows.
template <class T, int kHeld>
cudaError_t launch(const RouteArgs& a, cudaStream_t stream) {
  const int slices = over(a.routing.experts + (a.gate ? 1 : 0), kWarps);
  const int rows = std::min({kGroupRows, over(a.rows * slices, kBlocks), kRowsBytes / (a.width * 2)});
  const RouteCut cut{slices, rows, over(a.rows, rows)};
  const int bytes = kPieces + rows * a.width * 2;
  return launch_after(route_kernel<T, kHeld>, {dim3(slices * cut.groups), kThreads, bytes}, stream, a, cut);
}

// Of any number: norm, product, choice and lists are launches of their own.
cudaError_t launch_steps(RouteArgs a, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  if (a.norm) {
    error = rms_norm({a.dtype, a.x, a.x_stride, nullptr, 0, a.norm, nullptr, a.normed, a.normed_stride, a.rows, a.width, a.eps,
                      a.offset}, stream);
    a.x = a.normed, a.x_stride = a.normed_stride;
  }
  if (error == cudaSuccess) error = router_tiles(a, stream);
  return error == cudaSuccess ? list_rows(a, stream) : error;
}

bool is_aligned(const void* data, int64_t stride, int elements) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % elements == 0;
}

}  // namespace

cudaError_t list_rows(const RouteArgs& a, cudaStream_t stream) {
  const cudaError_t error = choose_rows(a, stream);
  return error == cudaSuccess ? launch_after(lists_kernel, {dim3(a.routing.experts), kListWarps * 32}, stream, a) : error;
}

cudaError_t route_rows(const RouteArgs& a, cudaStream_t stream) {
  const Routing& how = a.routing;
  if (a.rows == 0 || a.width % kVector != 0 || a.width > kMostWidth || how.experts > kMostExperts ||
      how.chosen > kMostChosen || how.groups > kMostGroups || !is_aligned(a.x, a.x_stride, 8) || !is_aligned(a.norm, 0, 8) ||
      !is_aligned(a.normed, a.normed_stride, 8) || !is_aligned(a.router, a.router_stride, 4) || !is_aligned(a.gate, 0, 4))
    return cudaErrorInvalidValue;
  if (a.uniform || a.rows > kMaskedRows) return launch_steps(a, stream);
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    return how.experts <= 128 ? launch<T, 4>(a, stream) : launch<T, 16>(a, stream);
  });
}

}  // namespace octavo
