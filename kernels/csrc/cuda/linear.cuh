// What the kernels for products of few rows have in common: how a matrix is dealt out to blocks, and what they are made
// of. They agree on the order of every sum.
#pragma once

#include <algorithm>

#include "activation.cuh"
#include "norm.cuh"
#include "tensor_map.cuh"

namespace octavo {

constexpr int kDepthWarps = 4, kRowWarps = 2, kConsumers = kDepthWarps * kRowWarps;
constexpr int kThreads = (kConsumers + 1) * 32;
constexpr int kSlab = 64;  // of the depth, a row of 128 bytes in shared memory, its 16-byte units swizzled by the copy
constexpr int kPad = 8;    // floats between rows of sums, against bank conflicts
constexpr int kGroup = 8;  // weight rows of one instruction
constexpr int kTokenTile = 16;  // rows of x of one instruction
constexpr int kTiles = 4;  // the most groups of a tile that a warp holds
constexpr int kStep = 32;  // of the depth, what a warp multiplies at once
constexpr int kTileRows = kGroup * kRowWarps * kTiles;
constexpr int kMaxStages = 32;
constexpr int kAheadBytes = 96 << 10;  // that a block brings into the L2 for the next launch: some microseconds' worth

// What a launch is cut into: see the top of linear.cu.
struct Cut {
  int cluster, clusters;
  int groups, boxes;  // of the whole matrix, or, gated, of its gate
  int box_groups;
  int tile_rows, stages;
};

constexpr int kDepthSlice = 512;  // slices of the depth are multiples of it

// What one block takes: some boxes of rows, in tiles, and a slice of the depth.
struct Portion {
  int rank, first_box, boxes, tiles, begin, depth;

  __device__ Portion(const Cut& cut, int whole_depth, int sides, int block) : rank(block % cut.cluster) {
    const int cluster = block / cut.cluster;
    first_box = cut.boxes * cluster / cut.clusters;
    boxes = cut.boxes * (cluster + 1) / cut.clusters - first_box;
    const int most = cut.tile_rows / (cut.box_groups * kGroup * sides);
    tiles = (boxes + most - 1) / most;
    const int slices = (whole_depth + kDepthSlice - 1) / kDepthSlice;
    const int mine = (slices + cut.cluster - 1) / cut.cluster * kDepthSlice;
    begin = rank * mine, depth = max(0, min(mine, whole_depth - begin));
  }
};

// The launch that comes next in the stream: the weights that its blocks begin with, `width` elements of each row of
// their first tile, are brought into the L2 while this one ends. Null: none.
struct Ahead {
  const void* weight;
  int64_t stride;
  int columns, depth, width;
  bool gated;
  Cut cut;
};

#if OCTAVO_BULK_COPY

__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Stores v in another block's shared memory, at the same address as in this one's, and tells that block's barrier.
__device__ inline void send(uint32_t address, uint32_t barrier, int rank, float4 v) {
  asm volatile(
      "{\n"
      ".reg .b32 to, done;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 done, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [done];\n"
      "}\n" ::"r"(address),
      "r"(barrier), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
__device__ inline void barrier_arrive_one(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Copies a box {kSlab, rows, slabs} of a matrix seen as [slab][row][kSlab].
__device__ inline void copy_box(uint32_t shared, const CUtensorMap& map, int row, int slab, uint32_t barrier,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
      "%4}], [%5], %6;" ::"r"(shared),
      "l"(&map), "r"(0), "r"(row), "r"(slab), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ inline void copy_box(uint32_t shared, const CUtensorMap& map, int row, int slab, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared),
      "l"(&map), "r"(0), "r"(row), "r"(slab), "r"(barrier)
      : "memory");
}
// Brings contiguous bytes (a multiple of 16) into the L2.
__device__ inline void prefetch(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

template <class T>
__device__ inline float4 load4(const void* base, int64_t at) {
  const auto v = *reinterpret_cast<const Elements<T, 4>*>(static_cast<const T*>(base) + at);
  return {to_float(v.at[0]), to_float(v.at[1]), to_float(v.at[2]), to_float(v.at[3])};
}

#endif

inline bool aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

// A row-major matrix of 16-bit elements, seen as [depth / kSlab][rows][kSlab], copied in boxes of `slabs` x `box_rows`.
// What lies outside of it is copied as zeros.
inline bool describe_matrix(CUtensorMap& map, const void* data, int64_t rows, int64_t depth, int64_t stride,
                            int box_rows, int slabs) {
  const TensorMapEncoder encode = tensor_map_encoder();
  const cuuint64_t sizes[] = {kSlab, cuuint64_t(rows), cuuint64_t(depth / kSlab)};
  const cuuint64_t strides[] = {cuuint64_t(stride) * 2, kSlab * 2};
  const cuuint32_t box[] = {kSlab, cuuint32_t(box_rows), cuuint32_t(slabs)}, steps[] = {1, 1, 1};
  return encode && encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void*>(data), sizes, strides, box, steps,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// A narrow, deep matrix has too few rows for tiles that feed the tensor cores well: two blocks share them.
inline int cluster_for(const Matrix& m) { return !m.gated && m.columns <= 4224 && m.depth >= 2048 ? 2 : 1; }

// Deals the rows out to as many clusters as the device has room for. Boxes of one group read long stretches fastest;
// blocks that share a tile have only that one, and get it at once.
inline Cut cut_for(const Matrix& m, const Device& device) {
  const int sides = m.gated ? 2 : 1, cluster = cluster_for(m), groups = m.columns / kGroup / sides;
  const int most = device.multiprocessors / cluster, own = (groups + most - 1) / most;
  const int fit = kTileRows / kGroup / sides;
  const int box = cluster > 1 && own <= fit ? own : 1;
  const int boxes = (groups + box - 1) / box, clusters = boxes < most ? boxes : most;
  const int own_boxes = (boxes + clusters - 1) / clusters, tiles = (own_boxes + fit / box - 1) / (fit / box);
  const int tile_rows = (own_boxes + tiles - 1) / tiles * box * kGroup * sides;
  return {cluster, clusters, groups, boxes, box, tile_rows, 0};
}

// Half of a multiprocessor's shared memory, for a block that leaves room for one of the next launch.
inline int half_of(const Device& device) {
  return device.shared_per_multiprocessor / 2 - 1024;  // each block takes 1 KiB more than it asks for
}

// Whether the weights fit in that half: such a launch leaves the other half to the next kernel, which
// can then begin to load before this one has ended.
inline bool is_small(const Matrix& m, const Cut& cut, const Device& device) {
  return int64_t(m.columns) * m.depth * 2 <= int64_t(half_of(device)) * cut.clusters * cut.cluster;
}

// What a launch does for the one after it. One that is small has room to begin by itself.
inline Ahead ahead_of(const LinearArgs& a, const Device& device) {
  const Matrix& m = a.ahead;
  Ahead next{};
  // With more rows than a tile of them it was measured to cost more than it gains.
  if (!m.weight || a.rows > kTokenTile || m.depth % kSlab != 0 || m.columns % (kGroup * (m.gated ? 2 : 1)) != 0 ||
      !aligned(m.weight, m.weight_stride))
    return next;
  const Cut cut = cut_for(m, device);
  if (is_small(m, cut, device)) return next;
  const int width = std::min(m.depth, kAheadBytes / 2 / cut.tile_rows / kSlab * kSlab);
  return {m.weight, m.weight_stride, m.columns, m.depth, width, m.gated, cut};
}

// Launches the blocks of `cut`; they may begin before the stream's previous kernel has ended.
template <class... Parameters, class... Arguments>
cudaError_t launch_clusters(void (*kernel)(Parameters...), const Cut& cut, int bytes, cudaStream_t stream,
                            const Arguments&... arguments) {
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cut.cluster, attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cut.clusters * cut.cluster), config.blockDim = dim3(kThreads), config.dynamicSmemBytes = bytes;
  config.stream = stream, config.attrs = attributes, config.numAttrs = cut.cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// For few rows and a small matrix, normalised on the way if there is a norm. cudaErrorNotSupported: launched nothing,
// they are more than that.
cudaError_t linear_few(const LinearArgs&, const Cut&, const Device&, cudaStream_t);

}  // namespace octavo
