// The first product of experts of codes with up to eight rows of a step, and its activation. A unit is a strip of gate and the
// one of up that it multiplies, or, without a gate, two strips of up. All units of the experts hit are shared out evenly.
#pragma once

#include "coded_experts/few.cuh"
#include "experts/activation.cuh"

namespace octavo {
namespace {

#if OCTAVO_BULK_COPY

template <class T, Codes kKind, int kGroups, class Scale>
struct UpBlock : CodedFewBlock<T, kKind, kGroups, 2, Scale> {
  using Base = CodedFewBlock<T, kKind, kGroups, 2, Scale>;
  using Base::cut, Base::lane, Base::strips;
  const CodedExpertsUpArgs& a;
  const FewLists lists;
  int first, last;  // of the units

  __device__ UpBlock(const CodedExpertsUpArgs& args, const FewCut& how, const ExpertStrips<Scale>& all, char* memory)
      : Base(memory, how, all), a(args), lists(memory, how) {}

  __device__ bool has_gate() const { return is_gate(a.activation); }
  __device__ int width() const { return has_gate() ? a.matrix.columns / 2 : a.matrix.columns; }
  __device__ void share_out() {
    const int64_t units = int64_t(*lists.count) * cut.slices;
    first = int(units * blockIdx.x / gridDim.x), last = int(units * (blockIdx.x + 1) / gridDim.x);
  }
  // The i-th of this block.
  __device__ Unit unit(int i) const { return {lists.hits[(first + i) / cut.slices], (first + i) % cut.slices}; }
  __device__ void copy() { Base::bring_units(*this, last - first, a.matrix.depth); }
  __device__ const T* row_of(const Unit& u, int row) const {
    return static_cast<const T*>(a.x) + lists.sources[u.hit.begin + row] * a.x_stride;
  }

  // Of an odd number of strips without a gate the last comes twice, and what the second makes goes nowhere.
  __device__ int64_t strip_of(const Unit& u, int half) const {
    const int own = has_gate() ? u.slice + half * (strips.own / 2) : min(2 * u.slice + half, strips.own - 1);
    return int64_t(u.hit.expert) * strips.own + own;
  }

  // Biases of a unit, which are wanted once its sums are there, come into the L2 meanwhile. There are no registers to hold them.
  __device__ void prefetch(const Unit& u) const {
    if (!a.matrix.bias || lane >= 2) return;
    const T* from = static_cast<const T*>(a.matrix.bias) + strip_of(u, lane) * kStripRows;
    prefetch_bulk(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from) & ~uintptr_t(15)), kStripRows * sizeof(T));
  }

  __device__ void compute() {
    int turn = 0;
    for (int i = 0; i < last - first; ++i) {
      const Unit u = unit(i);
      const int rows = u.hit.end - u.hit.begin;
      typename Base::Sums sums = {};
      Base::multiply(rows, a.matrix.depth, sums);
      Base::add_up(sums, turn++, [&](const float4(&all)[2]) {
        const int row = lane % 4 * 2;
        if (has_gate()) {
          const int column = u.slice * kStripRows + lane / 4;
          store_gated(u, row, rows, column, all[0].x, all[1].x), store_gated(u, row + 1, rows, column, all[0].y, all[1].y);
          store_gated(u, row, rows, column + 8, all[0].z, all[1].z);
          store_gated(u, row + 1, rows, column + 8, all[0].w, all[1].w);
          return;
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const int column = (2 * u.slice + s) * kStripRows + lane / 4;
          store(u, row, rows, column, all[s].x), store(u, row + 1, rows, column, all[s].y);
          store(u, row, rows, column + 8, all[s].z), store(u, row + 1, rows, column + 8, all[s].w);
        }
      });
    }
  }

  __device__ void store_gated(const Unit& u, int row, int rows, int column, float gate, float up) const {
    if (row >= rows) return;
    if (a.matrix.bias) {
      const T* bias = static_cast<const T*>(a.matrix.bias) + int64_t(u.hit.expert) * a.matrix.columns + column;
      gate += to_float(bias[0]), up += to_float(bias[width()]);
    }
    static_cast<T*>(a.out)[(u.hit.begin + row) * a.out_stride + column] = gated<T>(gate, up, a.activation, a.clamped);
  }
  __device__ void store(const Unit& u, int row, int rows, int column, float up) const {
    if (row >= rows || column >= width()) return;
    if (a.matrix.bias) up += to_float(static_cast<const T*>(a.matrix.bias)[int64_t(u.hit.expert) * a.matrix.columns + column]);
    static_cast<T*>(a.out)[(u.hit.begin + row) * a.out_stride + column] = squared_relu<T>(up);
  }
};

#endif

template <class T, Codes kKind, int kGroups, class Scale>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks<kGroups>)
    coded_experts_up_kernel(const __grid_constant__ CodedExpertsUpArgs a, const __grid_constant__ FewCut cut,
                            const __grid_constant__ ExpertStrips<Scale> strips) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(128) char shared[];
  UpBlock<T, kKind, kGroups, Scale> block(a, cut, strips, shared);
  block.init();
  wait_for_previous_kernel();
  launch_next_kernel();
  block.lists.make(a.choice, a.rows, a.matrix.experts);
  block.share_out();
  if (block.copies()) block.copy();
  else block.compute();
#endif
}

template <Codes kind, int groups, class Scale>
cudaError_t launch_up_few(const CodedExpertsUpArgs& a, const Device& device, cudaStream_t stream) {
  const ExpertStrips<Scale> strips = strips_of<Scale>(a.coded.matrix);
  const FewCut cut =
      cut_codes<PieceOf<kind, groups, 2, Scale>, 2>(a.matrix.experts, (strips.own + 1) / 2, a.rows, a.chosen, 0);
  const Launch how{dim3(kFewBlocks<groups> * device.multiprocessors), kFewThreads, cut.bytes};
  return with_half(a.dtype, [&](auto tag) {
    return launch_after(coded_experts_up_kernel<decltype(tag), kind, groups, Scale>, how, stream, a, cut, strips);
  });
}

}  // namespace
}  // namespace octavo
