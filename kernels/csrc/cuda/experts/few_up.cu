// The first product of experts with up to eight rows of a step, and its activation. A unit has eight rows of gate and the same of up,
// or, without a gate, sixteen of up. All units of the experts hit are shared out evenly, and so are those of a shared expert, which
// come first: no row chooses it, so that its weights flow before the previous kernel has ended.
#include "experts/activation.cuh"
#include "experts/checks.h"
#include "experts/few.cuh"

namespace octavo {
namespace {

constexpr int kHalf = kUnitRows / 2;

#if OCTAVO_BULK_COPY

template <class T>
struct Block : FewBlock<T> {
  using Base = FewBlock<T>;
  using Base::cut, Base::lane;
  const ExpertsUpArgs& a;
  const FewLists lists;
  const bool has_gate;
  int first = 0, last = 0;               // of the units of experts hit
  int first_shared = 0, own_shared = 0;  // of the shared expert's, and how many
  int early = 0;                         // pieces on their way before the lists are made

  __device__ Block(const ExpertsUpArgs& args, const FewCut& how, char* memory)
      : Base(memory, how), a(args), lists(memory, how), has_gate(is_gate(args.activation)) {
    first_shared = part(all_shared(), 0), own_shared = part(all_shared(), 1) - first_shared;
  }

  __device__ const ExpertMatrix& matrix(const Unit& u) const { return u.is_shared ? a.shared.matrix : a.matrix; }
  __device__ int width(const ExpertMatrix& m) const { return has_gate ? m.columns / 2 : m.columns; }
  // Where this block's part of so many units begins, or the next one's.
  __device__ static int part(unsigned units, int next) { return int(units * (blockIdx.x + next) / gridDim.x); }
  __device__ int all_shared() const {
    const int own = has_gate ? kHalf : kUnitRows;
    return a.shared.matrix.weight ? (width(a.shared.matrix) + own - 1) / own : 0;
  }
  // Where each block has one at least, blocks have as many units as others with those of the shared expert.
  __device__ void share_out() {
    const unsigned units = *lists.count * cut.slices, together = units >= gridDim.x ? all_shared() : 0;
    first = part(units + together, 0) - part(together, 0), last = part(units + together, 1) - part(together, 1);
  }
  __device__ int units() const { return own_shared + last - first; }
  __device__ Unit unit(int i) const {
    if (i < own_shared) return {{0, 0, a.rows}, first_shared + i, true};
    const int hit = first + i - own_shared;
    return {lists.hits[hit / cut.slices], hit % cut.slices};
  }

  // Piece by piece of the depth, unit by unit.
  __device__ void bring_next(int piece, uint64_t policy) {
    const Unit u = unit(piece / cut.pieces);
    const ExpertMatrix& m = matrix(u);
    const T* weight = static_cast<const T*>(m.weight) + int64_t(u.hit.expert) * m.columns * m.stride;
    Base::bring_piece(
        [&](int row) -> const T* {
          const int column = has_gate ? u.slice * kHalf + row % kHalf : u.slice * kUnitRows + row;
          const int half = has_gate ? row / kHalf : 0;
          return column < width(m) ? weight + int64_t(half * width(m) + column) * m.stride : nullptr;
        },
        piece % cut.pieces * cut.piece, a.matrix.depth, policy);
  }
  // As many of the shared expert's pieces as the ring has room for.
  __device__ void copy_early() {
    const uint64_t policy = read_once_policy();
    for (const int most = min(own_shared * cut.pieces, cut.slots); early < most; ++early) bring_next(early, policy);
  }
  __device__ void copy() {
    const uint64_t policy = read_once_policy();
    for (int i = early; i < units() * cut.pieces; ++i) bring_next(i, policy);
  }

  __device__ void compute() {
    int turn = 0;
    for (int i = 0; i < units(); ++i) {
      const Unit u = unit(i);
      const int rows = u.hit.end - u.hit.begin;
      float sums[4] = {};
      Base::multiply(
          [&](int row) {
            const int source = u.is_shared ? row : lists.sources[u.hit.begin + row];
            return static_cast<const T*>(a.x) + source * a.x_stride;
          },
          rows, a.matrix.depth, sums);
      Base::add_up(sums, turn++, [&](const float4& all) {
        const int row = lane % 4 * 2;
        if (has_gate) {
          store_gated(u, row, rows, all.x, all.z), store_gated(u, row + 1, rows, all.y, all.w);
        } else {
          store(u, row, rows, 0, all.x), store(u, row + 1, rows, 0, all.y);
          store(u, row, rows, 8, all.z), store(u, row + 1, rows, 8, all.w);
        }
      });
    }
  }

  __device__ T& output(const Unit& u, int row, int column) const {
    if (u.is_shared) return static_cast<T*>(a.shared.rows)[row * a.shared.stride + column];
    return static_cast<T*>(a.out)[(u.hit.begin + row) * a.out_stride + column];
  }
  __device__ void store_gated(const Unit& u, int row, int rows, float gate, float up) const {
    const ExpertMatrix& m = matrix(u);
    const int column = u.slice * kHalf + lane / 4;
    if (row >= rows || column >= width(m)) return;
    if (m.bias) {
      const T* bias = static_cast<const T*>(m.bias) + int64_t(u.hit.expert) * m.columns + column;
      gate += to_float(bias[0]), up += to_float(bias[width(m)]);
    }
    output(u, row, column) = gated<T>(gate, up, a.activation, u.is_shared ? 0.0f : a.clamped);
  }
  // Without a gate: of the unit's row that is so many behind the lane's first.
  __device__ void store(const Unit& u, int row, int rows, int behind, float up) const {
    const ExpertMatrix& m = matrix(u);
    const int column = u.slice * kUnitRows + behind + lane / 4;
    if (row >= rows || column >= width(m)) return;
    if (m.bias) up += to_float(static_cast<const T*>(m.bias)[int64_t(u.hit.expert) * m.columns + column]);
    output(u, row, column) = squared_relu<T>(up);
  }
};

#endif

template <class T>
__global__ void __launch_bounds__(kFewThreads, 2)
    experts_up_few_kernel(const __grid_constant__ ExpertsUpArgs a, const __grid_constant__ FewCut cut) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(128) char shared[];
  Block<T> block(a, cut, shared);
  block.init();
  __syncthreads();
  if (block.copies()) block.copy_early();
  wait_for_previous_kernel();
  launch_next_kernel();
  block.lists.make(a.choice, a.rows, a.matrix.experts);
  block.share_out();
  if (block.copies()) block.copy();
  else block.compute();
#endif
}

}  // namespace

cudaError_t experts_up_few(const ExpertsUpArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major < 9 || !takes_choice(a) || !takes_activation(a.activation) || !takes(a.matrix, a.chosen, a.x, a.x_stride) ||
      (is_gate(a.activation) && (a.matrix.columns % 2 || a.shared.matrix.columns % 2)) || !takes_shared(a.shared, a.x, a.x_stride) ||
      (a.shared.matrix.weight && a.shared.matrix.depth != a.matrix.depth))
    return cudaErrorInvalidValue;
  const bool has_gate = is_gate(a.activation);
  const int width = has_gate ? a.matrix.columns / 2 : a.matrix.columns, own = has_gate ? kHalf : kUnitRows;
  const int slices = (width + own - 1) / own;
  const FewCut cut = cut_few(a.matrix, slices, a.rows * a.chosen, 0);
  const Launch how{dim3(device.multiprocessors), kFewThreads, cut.bytes};
  return with_half(a.dtype, [&](auto tag) {
    return launch_after(experts_up_few_kernel<decltype(tag)>, how, stream, a, cut);
  });
}

}  // namespace octavo
