// The second product of experts with up to eight rows of a step, and rows' sums. A block has the same sixteen outputs of every expert
// hit, one after the other, and so adds up rows' experts in their order. Logits are those of the kernel before the previous one:
// weights flow while that one ends.
#include "experts/checks.h"
#include "experts/few.cuh"

namespace octavo {
namespace {

#if OCTAVO_BULK_COPY

template <class T>
struct Block : FewBlock<T> {
  using Base = FewBlock<T>;
  using Base::cut, Base::lane;
  const ExpertsDownArgs& a;
  const FewLists lists;
  float* const sums;  // [rows][kUnitRows]

  __device__ Block(const ExpertsDownArgs& args, const FewCut& how, char* memory)
      : Base(memory, how), a(args), lists(memory, how), sums(reinterpret_cast<float*>(memory + how.sums_at)) {}

  __device__ void clear(int thread, int threads) const {
    for (int i = thread; i < a.rows * kUnitRows; i += threads) sums[i] = 0.0f;
  }

  __device__ void copy() {
    const uint64_t policy = read_once_policy();
    for (int slice = blockIdx.x; slice < cut.slices; slice += gridDim.x)
      for (int h = 0; h < *lists.count; ++h) {
        const T* matrix =
            static_cast<const T*>(a.matrix.weight) + int64_t(lists.hits[h].expert) * a.matrix.columns * a.matrix.stride;
        Base::bring(
            [&](int row) -> const T* {
              const int output = slice * kUnitRows + row;
              return output < a.matrix.columns ? matrix + int64_t(output) * a.matrix.stride : nullptr;
            },
            a.matrix.depth, policy);
      }
  }

  __device__ void compute() {
    int turn = 0;
    for (int slice = blockIdx.x; slice < cut.slices; slice += gridDim.x) {
      for (int h = 0; h < *lists.count; ++h) {
        const Hit hit = lists.hits[h];
        const int rows = hit.end - hit.begin;
        float products[4] = {};
        Base::multiply([&](int row) { return static_cast<const T*>(a.x) + (hit.begin + row) * a.x_stride; }, rows,
                       a.matrix.depth, products);
        Base::add_up(products, turn++, [&](const float4& all) {
          const int place = hit.begin + lane % 4 * 2, output = lane / 4;
          add(hit, slice, place, output, all.x), add(hit, slice, place + 1, output, all.y);
          add(hit, slice, place, output + 8, all.z), add(hit, slice, place + 1, output + 8, all.w);
        });
      }
      barrier_sync(1, kFewWarps * 32);
      store(slice);
      barrier_sync(1, kFewWarps * 32);
    }
  }

  // A row's term is rounded as if it were stored.
  __device__ void add(const Hit& hit, int slice, int place, int output, float product) const {
    const int column = slice * kUnitRows + output;
    if (place >= hit.end || column >= a.matrix.columns) return;
    if (a.matrix.bias)
      product += to_float(static_cast<const T*>(a.matrix.bias)[int64_t(hit.expert) * a.matrix.columns + column]);
    float& sum = sums[lists.sources[place] * kUnitRows + output];
    sum = __fmaf_rn(lists.weights[place], to_float(from_float<T>(product)), sum);
  }

  __device__ void store(int slice) const {
    for (int i = threadIdx.x; i < a.rows * kUnitRows; i += kFewWarps * 32) {
      const int row = i / kUnitRows, column = slice * kUnitRows + i % kUnitRows;
      float sum = sums[i];
      sums[i] = 0.0f;
      if (column >= a.matrix.columns) continue;
      if (a.shared) {
        const float x = load_half<T>(a.shared, row * a.shared_stride + column);
        sum = a.gates ? __fmaf_rn(__ldcg(a.gates + row), x, sum) : sum + x;
      }
      if (a.residual) sum += load_half<T>(a.residual, row * a.residual_stride + column);
      static_cast<T*>(a.out)[row * a.out_stride + column] = from_float<T>(sum);
    }
  }
};

#endif

template <class T>
__global__ void __launch_bounds__(kFewThreads, 2)
    experts_down_few_kernel(const __grid_constant__ ExpertsDownArgs a, const __grid_constant__ FewCut cut) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(128) char shared[];
  Block<T> block(a, cut, shared);
  block.init();
  block.clear(threadIdx.x, kFewThreads);
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

}  // namespace

cudaError_t experts_down_few(const ExpertsDownArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major < 9 || !takes_choice(a) || !takes(a.matrix, a.chosen, a.x, a.x_stride)) return cudaErrorInvalidValue;
  const int slices = (a.matrix.columns + kUnitRows - 1) / kUnitRows;
  const FewCut cut = cut_few(a.matrix, slices, a.rows * a.chosen, a.rows * kUnitRows * 4);
  const Launch how{dim3(std::min(slices, 2 * device.multiprocessors)), kFewThreads, cut.bytes};
  return with_half(a.dtype, [&](auto tag) {
    return launch_after(experts_down_few_kernel<decltype(tag)>, how, stream, a, cut);
  });
}

}  // namespace octavo
