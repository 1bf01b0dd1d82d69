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
  float* const sums;   // [rows][kUnitRows]
  float* const gates;  // [rows]

  __device__ Block(const ExpertsDownArgs& args, const FewCut& how, char* memory, float* factors)
      : Base(memory, how), a(args), lists(memory, how), sums(reinterpret_cast<float*>(memory + how.sums_at)), gates(factors) {}

  __device__ void clear(int thread, int threads) const {
    for (int i = thread; i < a.rows * kUnitRows; i += threads) sums[i] = 0.0f;
  }

  // Units of a slice: of the experts hit and of the shared one.
  __device__ int of_slice() const { return *lists.count + (a.shared_product.matrix.weight != nullptr); }
  __device__ int units() const {
    return (cut.slices - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x) * of_slice();
  }
  // Units one after the other; a division for each would take as long as its weights.
  struct Walk {
    const Block& block;
    const int count;
    int own = 0, slice = blockIdx.x;

    __device__ explicit Walk(const Block& of) : block(of), count(of.of_slice()) {}
    __device__ Unit unit() const {
      if (own == *block.lists.count) return {{0, 0, block.a.rows}, slice, true};
      return {block.lists.hits[own], slice};
    }
    __device__ bool ends_slice() const { return own + 1 == count; }
    __device__ void advance() {
      if (++own == count) own = 0, slice += gridDim.x;
    }
  };
  __device__ const ExpertMatrix& matrix(const Unit& u) const { return u.is_shared ? a.shared_product.matrix : a.matrix; }

  __device__ void copy() {
    const uint64_t policy = read_once_policy();
    Walk walk(*this);
    for (int left = units(); left > 0; --left, walk.advance()) {
      const Unit u = walk.unit();
      const ExpertMatrix& m = matrix(u);
      const T* weight = static_cast<const T*>(m.weight) + int64_t(u.hit.expert) * m.columns * m.stride;
      Base::bring(
          [&](int row) -> const T* {
            const int output = u.slice * kUnitRows + row;
            return output < a.matrix.columns ? weight + int64_t(output) * m.stride : nullptr;
          },
          m.depth, policy);
    }
  }

  __device__ typename Base::LaneRow row_of(const Unit& u) const {
    const int depth = matrix(u).depth, place = u.hit.begin + lane / 4;
    if (place >= u.hit.end) return {nullptr, depth};
    const T* x = static_cast<const T*>(u.is_shared ? a.shared_product.rows : a.x);
    return {x + place * (u.is_shared ? a.shared_product.stride : a.x_stride), depth};
  }
  __device__ void compute() {
    take_gates();
    if (of_slice() == 0)  // a rank of whose experts rows take none
      for (int slice = blockIdx.x; slice < cut.slices; slice += gridDim.x) store(slice);
    Walk next(*this), now(*this);
    Base::multiply(
        units(),
        [&](int) {
          const Unit u = next.unit();
          next.advance();
          return row_of(u);
        },
        [&](int i, const float(&products)[4]) {
          const Unit u = now.unit();
          Base::add_up(products, i, [&](const float4& all) {
            const int place = u.hit.begin + lane % 4 * 2, output = lane / 4;
            add(u, place, output, all.x), add(u, place + 1, output, all.y);
            add(u, place, output + 8, all.z), add(u, place + 1, output + 8, all.w);
          });
          if (now.ends_slice()) store(u.slice);
          now.advance();
        });
  }

  // The shared expert's factors, into shared memory before the first sums are added up.
  __device__ void take_gates() const {
    if (threadIdx.x < a.rows) gates[threadIdx.x] = a.gates ? __ldcg(a.gates + threadIdx.x) : 1.0f;
  }
  // A row is its own place among the shared expert's.
  __device__ float weight_of(const Unit& u, int place) const { return u.is_shared ? gates[place] : lists.weights[place]; }

  // A row's term is rounded as if it were stored.
  __device__ void add(const Unit& u, int place, int output, float product) const {
    const ExpertMatrix& m = matrix(u);
    const int column = u.slice * kUnitRows + output;
    if (place >= u.hit.end || column >= m.columns) return;
    if (m.bias) product += to_float(static_cast<const T*>(m.bias)[int64_t(u.hit.expert) * m.columns + column]);
    float& sum = sums[(u.is_shared ? place : lists.sources[place]) * kUnitRows + output];
    sum = __fmaf_rn(weight_of(u, place), to_float(from_float<T>(product)), sum);
  }

  // Between barriers: the sums are all there, and the next slice's come behind.
  __device__ void store(int slice) const {
    barrier_sync(1, kFewWarps * 32);
    for (int i = threadIdx.x; i < a.rows * kUnitRows; i += kFewWarps * 32) {
      const int row = i / kUnitRows, column = slice * kUnitRows + i % kUnitRows;
      const float sum = sums[i];
      sums[i] = 0.0f;
      if (column < a.matrix.columns) static_cast<T*>(a.out)[row * a.out_stride + column] = finished<T>(a, row, column, sum);
    }
    barrier_sync(1, kFewWarps * 32);
  }
};

#endif

template <class T>
__global__ void __launch_bounds__(kFewThreads, 2)
    experts_down_few_kernel(const __grid_constant__ ExpertsDownArgs a, const __grid_constant__ FewCut cut) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(128) char shared[];
  __shared__ float gates[kFewRows];
  Block<T> block(a, cut, shared, gates);
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
