// The second product of experts of codes with up to eight rows of a step, and rows' sums: as in experts/few_down.cu a block has
// the same sixteen outputs of every expert hit. Logits are those of the kernel before the previous one.
#pragma once

#include "coded_experts/few.cuh"

namespace octavo {
namespace {

#if OCTAVO_BULK_COPY

template <class T, Codes kKind, int kGroups, class Scale>
struct DownBlock : CodedFewBlock<T, kKind, kGroups, 1, Scale> {
  using Base = CodedFewBlock<T, kKind, kGroups, 1, Scale>;
  using Base::cut, Base::lane, Base::strips;
  const CodedExpertsDownArgs& a;
  const FewLists lists;
  float* const sums;  // [rows][kStripRows]

  __device__ DownBlock(const CodedExpertsDownArgs& args, const FewCut& how, const ExpertStrips<Scale>& all, char* memory)
      : Base(memory, how, all), a(args), lists(memory, how), sums(reinterpret_cast<float*>(memory + how.sums_at)) {}

  __device__ void clear() const {
    for (int i = threadIdx.x; i < a.rows * kStripRows; i += kFewThreads) sums[i] = 0.0f;
  }

  // This block's slices, of each the experts hit.
  __device__ Unit unit(int i) const {
    return {lists.hits[i % *lists.count], int(blockIdx.x) + i / *lists.count * int(gridDim.x)};
  }
  __device__ void copy() {
    const int slices = (cut.slices - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x);
    Base::bring_units(*this, slices * *lists.count, a.matrix.depth);
  }
  __device__ int64_t strip_of(const Unit& u, int) const { return int64_t(u.hit.expert) * strips.own + u.slice; }
  __device__ const T* row_of(const Unit& u, int row) const {
    return static_cast<const T*>(a.x) + (u.hit.begin + row) * a.x_stride;
  }
  __device__ void prefetch(const Unit&) const {}

  // Of outputs lane / 4 and lane / 4 + 8. They come from memory, so they are asked for before a unit is multiplied.
  using Biases = T[2];
  __device__ void load(Biases& biases, const Hit& hit, int slice) const {
    const int64_t column = int64_t(hit.expert) * a.matrix.columns + slice * kStripRows + lane / 4;
    const T* from = static_cast<const T*>(a.matrix.bias) + column;
    biases[0] = from[0], biases[1] = from[8];
  }

  __device__ void compute() {
    int turn = 0;
    for (int slice = blockIdx.x; slice < cut.slices; slice += gridDim.x) {
      for (int h = 0; h < *lists.count; ++h) {
        const Hit hit = lists.hits[h];
        Biases biases = {};
        if (a.matrix.bias && Base::adds_up(turn)) load(biases, hit, slice);
        typename Base::Sums products = {};
        Base::multiply(hit.end - hit.begin, a.matrix.depth, products);
        Base::add_up(products, turn++, [&](const float4(&all)[1]) {
          const int place = hit.begin + lane % 4 * 2, output = lane / 4;
          add_to_row(hit, place, output, all[0].x, biases[0]), add_to_row(hit, place + 1, output, all[0].y, biases[0]);
          add_to_row(hit, place, output + 8, all[0].z, biases[1]), add_to_row(hit, place + 1, output + 8, all[0].w, biases[1]);
        });
      }
      barrier_sync(1, kFewWarps * 32);
      store(slice);
      barrier_sync(1, kFewWarps * 32);
    }
  }

  // A row's term is rounded as if it were stored.
  __device__ void add_to_row(const Hit& hit, int place, int output, float product, T bias) const {
    if (place >= hit.end) return;
    if (a.matrix.bias) product += to_float(bias);
    float& sum = sums[lists.sources[place] * kStripRows + output];
    sum = __fmaf_rn(lists.weights[place], to_float(from_float<T>(product)), sum);
  }

  __device__ void store(int slice) const {
    for (int i = threadIdx.x; i < a.rows * kStripRows; i += kFewWarps * 32) {
      const int row = i / kStripRows, column = slice * kStripRows + i % kStripRows;
      static_cast<T*>(a.out)[row * a.out_stride + column] = finished<T>(a, row, column, sums[i]);
      sums[i] = 0.0f;
    }
  }
};

#endif

template <class T, Codes kKind, int kGroups, class Scale>
__global__ void __launch_bounds__(kFewThreads, kFewBlocks<kGroups>)
    coded_experts_down_kernel(const __grid_constant__ CodedExpertsDownArgs a, const __grid_constant__ FewCut cut,
                              const __grid_constant__ ExpertStrips<Scale> strips) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(128) char shared[];
  DownBlock<T, kKind, kGroups, Scale> block(a, cut, strips, shared);
  block.init();
  block.clear();
  block.lists.make(a.choice, a.rows, a.matrix.experts);
  if (block.copies()) {
    block.copy();
  } else {
    wait_for_previous_kernel();
    launch_next_kernel();
    block.compute();
  }
#endif
}

template <Codes kind, int groups, class Scale>
cudaError_t launch_down_few(const CodedExpertsDownArgs& a, const Device& device, cudaStream_t stream) {
  const ExpertStrips<Scale> strips = strips_of<Scale>(a.coded.matrix);
  const FewCut cut = cut_codes<PieceOf<kind, groups, 1, Scale>, 1>(a.matrix.experts, strips.own, a.rows, a.chosen,
                                                            a.rows * kStripRows * 4);
  const Launch how{dim3(std::min(strips.own, kFewBlocks<groups> * device.multiprocessors)), kFewThreads, cut.bytes};
  return with_half(a.dtype, [&](auto tag) {
    return launch_after(coded_experts_down_kernel<decltype(tag), kind, groups, Scale>, how, stream, a, cut, strips);
  });
}

}  // namespace
}  // namespace octavo
