// How fast tiles of experts' weights come, by the order in which their lines lie in memory. A block goes from tile to tile as those of
// experts/many.cu do: 128 rows of an expert, 64 of the depth a stage, two copies of 64 rows. Nothing is computed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "device/buffer_ring.cuh"
#include "device/tensor_map.cuh"

namespace octavo {
namespace {

enum class Order : int { rows, strips, tiles };  // of the whole depth; of eight rows, 1 KB a stage; of 64 rows, 8 KB a stage

constexpr int kRows = 64, kDepth = 64, kHalfBytes = kRows * kDepth * 2, kStageBytes = 2 * kHalfBytes, kThreads = 64;

struct ProbeArgs {
  const char* weights;
  int experts, columns, depth, stages, taken;  // stages of the ring; experts that are read, spread evenly
  Order order;
};

__global__ void __launch_bounds__(kThreads, 1)
    probe_kernel(const __grid_constant__ ProbeArgs a, const __grid_constant__ CUtensorMap map) {
#if OCTAVO_WGMMA
  extern __shared__ __align__(128) char memory[];
  const uint32_t base = shared_address(memory), ring_at = (base + 1024 + 1023) & ~1023u;
  BufferRing ring(base, a.stages);
  if (threadIdx.x == 0) {
    ring.init(1, 1);
    fence_bulk();
  }
  __syncthreads();
  const int along = a.columns / (2 * kRows), tiles = a.taken * along, steps = a.depth / kDepth;
  if (threadIdx.x == 0) {
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int expert = int(int64_t(tile / along) * a.experts / a.taken), row = expert * a.columns + tile % along * 2 * kRows;
      for (int step = 0; step < steps; ++step) {
        ring.await_empty();
        barrier_expect(ring.full_now(), kStageBytes);
        for (int half = 0; half < 2; ++half) {
          const int first = row + half * kRows;
          const uint32_t to = ring_at + ring.stage * kStageBytes + half * kHalfBytes;
          if (a.order == Order::rows) copy_rows(to, map, step * kDepth, first, ring.full_now());
          else if (a.order == Order::strips) copy_box(to, map, 0, 0, step, first / 8, ring.full_now());
          else copy_bulk(to, a.weights + (int64_t(first / kRows) * steps + step) * kHalfBytes, kHalfBytes, ring.full_now());
        }
        ring.advance();
      }
    }
  } else if (threadIdx.x == 32) {
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
      for (int step = 0; step < steps; ++step) {
        ring.await_full();
        barrier_arrive_once(ring.empty_now());
        ring.advance();
      }
  }
#endif
}

bool describe_order(CUtensorMap& map, const ProbeArgs& a) {
  const cuuint64_t rows = cuuint64_t(a.experts) * a.columns, depth = a.depth;
  if (a.order == Order::rows) return describe_tensor<2>(map, a.weights, {depth, rows}, {depth * 2}, {kDepth, kRows});
  return describe_tensor<5>(map, a.weights, {kDepth, 8, 1, depth / kDepth, rows / 8}, {128, 1024, 1024, depth * 16},
                            {kDepth, 8, 1, 1, kRows / 8}, CU_TENSOR_MAP_DATA_TYPE_UINT16, BoxRows::dense);
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Bytes a second, by the median of its launches.
double measure(const ProbeArgs& a, int blocks) {
  CUtensorMap map{};
  if (!describe_order(map, a)) std::fprintf(stderr, "no map\n"), std::exit(1);
  const int shared = 2048 + a.stages * kStageBytes;
  check(cudaFuncSetAttribute(probe_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 25; ++i) {
    check(cudaEventRecord(begin));
    probe_kernel<<<blocks, kThreads, shared>>>(a, map);
    check(cudaEventRecord(end)), check(cudaEventSynchronize(end));
    float ms;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 5) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return double(a.taken) * a.columns * a.depth * 2 / (times[times.size() / 2] * 1e-3);
}

}  // namespace
}  // namespace octavo

// Prints a JSON row for each shape, number of stages and order.
int main() {
  using namespace octavo;
  struct Shape {
    const char* name;
    int experts, columns, depth, taken;
  };
  const Shape shapes[] = {{"Qwen3-30B-A3B, up", 128, 1536, 2048, 112}, {"Qwen3-30B-A3B, down", 128, 2048, 768, 112},
                          {"Granite-4-H-Small, up", 72, 1536, 4096, 72}, {"Granite-4-H-Small, down", 72, 4096, 768, 72},
                          {"GLM-4.7-Flash, up", 64, 3072, 2048, 55}};
  cudaDeviceProp chip;
  check(cudaGetDeviceProperties(&chip, 0));
  for (const Shape& s : shapes) {
    void* weights;
    check(cudaMalloc(&weights, size_t(s.experts) * s.columns * s.depth * 2));
    check(cudaMemset(weights, 1, size_t(s.experts) * s.columns * s.depth * 2));
    for (const int stages : {4, 8, 12})
      for (const Order order : {Order::rows, Order::strips, Order::tiles}) {
        const char* names[] = {"rows", "strips", "tiles"};
        const ProbeArgs a{static_cast<const char*>(weights), s.experts, s.columns, s.depth, stages, s.taken, order};
        std::printf("{\"shape\": \"%s\", \"stages\": %d, \"order\": \"%s\", \"tb_per_s\": %.3f}\n", s.name, stages,
                    names[int(order)], measure(a, chip.multiProcessorCount) / 1e12);
        std::fflush(stdout);
      }
    check(cudaFree(weights));
  }
}
