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
  const bool has_gate;
  int first, last;  // of the units

  __device__ UpBlock(const CodedExpertsUpArgs& args, const FewCut& how, const ExpertStrips<Scale>& all, char* memory)
      : Base(memory, how, all), a(args), lists(memory, how), has_gate(is_gate(args.activation)) {}

  __device__ int width() const { return has_gate ? a.matrix.columns / 2 : a.matrix.columns; }
  __device__ void share_out() {
    const unsigned units = *lists.count * cut.slices;
    first = units * blockIdx.x / gridDim.x, last = units * (blockIdx.x + 1) / gridDim.x;
  }
  // Units one after the other; a division for each would take as long as its weights.
  struct Walk {
    const UpBlock& block;
    int hit, slice;

    __device__ explicit Walk(const UpBlock& of) : block(of), hit(of.first / of.cut.slices), slice(of.first - hit * of.cut.slices) {}
    __device__ Unit unit() const { return {block.lists.hits[hit], slice}; }
    __device__ void advance() {
      if (++slice == block.cut.slices) slice = 0, ++hit;
    }
  };

  __device__ void copy() {
    const uint64_t policy = read_once_policy();
    Walk walk(*this);
    for (int left = last - first; left > 0; --left, walk.advance()) {
      const Unit u = walk.unit();
      const int64_t first_strip = int64_t(u.hit.expert) * strips.own;
      // Of an odd number of strips without a gate the last comes twice, and what the second makes goes nowhere.
      Base::bring(
          [&](int half) {
            return first_strip + (has_gate ? u.slice + half * (strips.own / 2) : min(2 * u.slice + half, strips.own - 1));
          },
          policy);
    }
  }

  __device__ const T* row_of(const Hit& hit) const {
    const int place = hit.begin + lane / 4;
    return place < hit.end ? static_cast<const T*>(a.x) + lists.sources[place] * a.x_stride : nullptr;
  }
  __device__ void compute() {
    Walk next(*this), now(*this);
    Base::multiply(
        last - first, a.matrix.depth,
        [&](int) {
          const Hit hit = next.unit().hit;
          next.advance();
          return row_of(hit);
        },
        [&](int i, const typename Base::Sums& sums) {
          Base::add_up(sums, i, [&](const float4(&all)[2]) { store(now.unit(), all); });
          now.advance();
        });
  }

  __device__ void store(const Unit& u, const float4 (&all)[2]) const {
    const int row = lane % 4 * 2, rows = u.hit.end - u.hit.begin;
    if (has_gate) {
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
__global__ void __launch_bounds__(kFewThreads, kFewBlocks<kKind, kGroups>)
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

// Two blocks a multiprocessor, or one, if two had more of the units between them.
inline int blocks_a_multiprocessor(int most, int64_t units, int multiprocessors) {
  const auto rounds = [&](int blocks) { return (units + blocks * multiprocessors - 1) / (blocks * multiprocessors); };
  return most * rounds(most) > rounds(1) ? 1 : most;
}

template <Codes kind, int groups, class Scale>
cudaError_t launch_up_few(const CodedExpertsUpArgs& a, const Device& device, cudaStream_t stream) {
  const ExpertStrips<Scale> strips = strips_of<Scale>(a.coded.matrix);
  const FewCut cut = cut_codes<PieceOf<kind, groups, 2, Scale>, 2>(a.matrix.experts, (strips.own + 1) / 2, a.rows * a.chosen, 0);
  const int64_t units = int64_t(a.rows) * a.chosen * cut.slices;
  const int blocks = blocks_a_multiprocessor(kFewBlocks<kind, groups>, units, device.multiprocessors) * device.multiprocessors;
  const Launch how{dim3(blocks), kFewThreads, cut.bytes};
  return with_half(a.dtype, [&](auto tag) {
    return launch_after(coded_experts_up_kernel<decltype(tag), kind, groups, Scale>, how, stream, a, cut, strips);
  });
}

}  // namespace
}  // namespace octavo
