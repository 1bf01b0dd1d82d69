// The second product of experts with up to eight rows of a step, and rows' sums. A block has the same sixteen outputs of every expert
// hit, one after the other, and so adds up rows' experts in their order, and then of a shared one, whose depth may be another: its
// pieces are as long as theirs. Logits are those of the kernel before the previous one: weights flow while that one ends.
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

  // Units of a slice: of the experts hit and of the shared one.
  __device__ int units() const { return *lists.count + (a.shared_product.matrix.weight != nullptr); }
  __device__ Unit unit(int i, int slice) const {
    if (i == *lists.count) return {{0, 0, a.rows}, slice, true};
    return {lists.hits[i], slice};
  }
  __device__ const ExpertMatrix& matrix(const Unit& u) const { return u.is_shared ? a.shared_product.matrix : a.matrix; }

  __device__ void copy() {
    const uint64_t policy = read_once_policy();
    for (int slice = blockIdx.x; slice < cut.slices; slice += gridDim.x)
      for (int i = 0; i < units(); ++i) {
        const Unit u = unit(i, slice);
        const ExpertMatrix& m = matrix(u);
        const T* weight = static_cast<const T*>(m.weight) + int64_t(u.hit.expert) * m.columns * m.stride;
        Base::bring(
            [&](int row) -> const T* {
              const int output = slice * kUnitRows + row;
              return output < a.matrix.columns ? weight + int64_t(output) * m.stride : nullptr;
            },
            m.depth, policy);
      }
  }

  __device__ void compute() {
    int turn = 0;
    for (int slice = blockIdx.x; slice < cut.slices; slice += gridDim.x) {
      for (int i = 0; i < units(); ++i) {
        const Unit u = unit(i, slice);
        const T* x = static_cast<const T*>(u.is_shared ? a.shared_product.rows : a.x);
        const int64_t stride = u.is_shared ? a.shared_product.stride : a.x_stride;
        const int place = u.hit.begin + lane % 4 * 2, output = lane / 4;
        const float weight = weight_of(u, place), next = weight_of(u, place + 1);
        float products[4] = {};
        Base::multiply([&](int row) { return x + (u.hit.begin + row) * stride; }, u.hit.end - u.hit.begin, matrix(u).depth, products);
        Base::add_up(products, turn++, [&](const float4& all) {
          add(u, place, output, weight, all.x), add(u, place + 1, output, next, all.y);
          add(u, place, output + 8, weight, all.z), add(u, place + 1, output + 8, next, all.w);
        });
      }
      barrier_sync(1, kFewWarps * 32);
      store(slice);
      barrier_sync(1, kFewWarps * 32);
    }
  }

  // A row is its own place among the shared expert's. Its factor is under way while that is multiplied.
  __device__ float weight_of(const Unit& u, int place) const {
    if (place >= u.hit.end) return 0.0f;
    if (!u.is_shared) return lists.weights[place];
    return a.gates ? __ldcg(a.gates + place) : 1.0f;
  }

  // A row's term is rounded as if it were stored.
  __device__ void add(const Unit& u, int place, int output, float weight, float product) const {
    const ExpertMatrix& m = matrix(u);
    const int column = u.slice * kUnitRows + output;
    if (place >= u.hit.end || column >= m.columns) return;
    if (m.bias) product += to_float(static_cast<const T*>(m.bias)[int64_t(u.hit.expert) * m.columns + column]);
    float& sum = sums[(u.is_shared ? place : lists.sources[place]) * kUnitRows + output];
    sum = __fmaf_rn(weight, to_float(from_float<T>(product)), sum);
  }

  __device__ void store(int slice) const {
    for (int i = threadIdx.x; i < a.rows * kUnitRows; i += kFewWarps * 32) {
      const int row = i / kUnitRows, column = slice * kUnitRows + i % kUnitRows;
      const float sum = sums[i];
      sums[i] = 0.0f;
      if (column < a.matrix.columns) static_cast<T*>(a.out)[row * a.out_stride + column] = finished<T>(a, row, column, sum);
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
  if (device.major < 9 || !takes_choice(a) || !takes(a.matrix, a.chosen, a.x, a.x_stride) ||
      !takes_shared(a.shared_product, a.shared_product.rows, a.shared_product.stride) ||
      (a.shared_product.matrix.weight && a.shared_product.matrix.columns != a.matrix.columns))
    return cudaErrorInvalidValue;
  const int slices = (a.matrix.columns + kUnitRows - 1) / kUnitRows;
  const FewCut cut = cut_few(a.matrix, slices, a.rows * a.chosen, a.rows * kUnitRows * 4);
  const Launch how{dim3(std::min(slices, 2 * device.multiprocessors)), kFewThreads, cut.bytes};
  return with_half(a.dtype, [&](auto tag) {
    return launch_after(experts_down_few_kernel<decltype(tag)>, how, stream, a, cut);
  });
}

}  // namespace octavo
