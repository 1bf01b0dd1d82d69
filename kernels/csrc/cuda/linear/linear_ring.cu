// out[T, N] = x[T, K] weight[N, K]^T for few rows T, at the speed at which the weights can be read once.
//
// The weights' rows are dealt out evenly, in boxes of one or more groups of eight, to clusters of one or two blocks. A
// tile is as many boxes as fit; each block of a cluster takes a slice of its depth. In a block one warp keeps a ring of
// tensor copies going (weights from before the previous kernel has ended: they are never written), and eight warps
// multiply on tensor cores: the weights' rows are the eight columns of an instruction, so that a block may have as few
// rows as balance wants. Four of the warps share the depth in steps of 32. Their sums, and then those of the cluster's
// blocks, are added in a fixed order, which depends on N and K alone: a row's result feels neither the other rows nor
// their number, but for a row that is alone, which linear_row.cu takes. x comes through the ring, too.
#include <algorithm>

#include "device/tensor_map.cuh"
#include "linear/linear.cuh"

namespace octavo {
namespace {

constexpr int kDepthWarps = 4, kRowWarps = 2, kConsumers = kDepthWarps * kRowWarps;
constexpr int kThreads = (kConsumers + 1) * 32;
constexpr int kSlab = 64;  // of the depth, a row of 128 bytes in shared memory, its 16-byte units swizzled by the copy
constexpr int kPad = 8;    // floats between rows of sums, against bank conflicts
constexpr int kTiles = 4;  // the most groups of a tile that a warp holds
constexpr int kTileRows = kGroup * kRowWarps * kTiles;
constexpr int kQuads = kTileRows / 4;  // of a tile's rows: with each of sixteen tokens, one is a thread's
static_assert(kConsumers * 32 == kTokenTile * kQuads);
constexpr int kMaxStages = 32;
constexpr int kMostRows = 32;  // of x

// Parts of a launch: see the top of this file.
struct Cut {
  int cluster, clusters;
  int groups, boxes;  // of the whole matrix, or, gated, of its gate
  int box_groups;
  int tile_rows, stages;
};

constexpr int kDepthSlice = 512;  // slices of the depth are multiples of it

// One block's unit: some boxes of rows, in tiles, and a slice of the depth.
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

// Shared memory: barriers, the ring (weights, then x, in each stage), the warps' sums, inboxes for the other block's,
// those of two tiles.
template <int kTokens, int kChunk>
struct Layout {
  static constexpr int kTokenTiles = (kTokens + kTokenTile - 1) / kTokenTile;
  static constexpr int kRing = 1024, kInboxes = 2 * kTokenTiles;
  int tile_rows, cluster, stages;

  __host__ __device__ int stage_bytes() const { return (tile_rows + kTokens) * kChunk * 2; }
  __host__ __device__ int sums_pitch() const { return (tile_rows + 15) / 16 * 16 + kPad; }
  __host__ __device__ int sums() const { return kRing + stages * stage_bytes(); }
  __host__ __device__ int inbox() const { return sums() + kDepthWarps * kTokenTile * sums_pitch() * 4; }
  __host__ __device__ int inbox_bytes() const { return cluster == 1 ? 0 : kTokenTile / 2 * kQuads * 16; }
  __host__ __device__ int bytes() const { return inbox() + kInboxes * inbox_bytes(); }
};

#if OCTAVO_BULK_COPY

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

// One block's part: which rows, which slice of the depth, and where things lie in its shared memory.
// kTokens: rows of x, rounded up. kGated: a tile is as many rows of the gate as of what it multiplies.
template <class T, int kTokens, int kChunk, bool kGated>
struct Block : Portion {
  using L = Layout<kTokens, kChunk>;
  static constexpr int kTokenTiles = L::kTokenTiles;

  struct Tile {
    int box, boxes, groups;  // of the gate's
    __device__ int rows() const { return groups * kGroup * (kGated ? 2 : 1); }
  };

  const LinearArgs& a;
  const Cut& cut;
  const CUtensorMap &weight_map, &x_map;
  const L layout;
  char* shared;
  uint32_t base;
  int lane, warp, chunks;

  __device__ Block(const LinearArgs& args, const Cut& pieces, const CUtensorMap& weights, const CUtensorMap& inputs,
                   char* smem)
      : Portion(pieces, args.depth, kGated ? 2 : 1, blockIdx.x),
        a(args),
        cut(pieces),
        weight_map(weights),
        x_map(inputs),
        layout{pieces.tile_rows, pieces.cluster, pieces.stages},
        shared(smem),
        base(shared_address(smem)),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        chunks((depth + kChunk - 1) / kChunk) {}

  __device__ uint32_t full(int stage) const { return base + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return base + 8 * (kMaxStages + stage); }
  __device__ uint32_t received(int inbox) const { return base + 8 * (2 * kMaxStages + inbox); }
  __device__ uint32_t stage_at(int stage) const { return base + L::kRing + stage * layout.stage_bytes(); }
  __device__ Tile tile(int i) const {
    const int begin = boxes * i / tiles, count = boxes * (i + 1) / tiles - begin;
    return {first_box + begin, count, count * cut.box_groups};
  }
  __device__ int box_bytes() const { return cut.box_groups * kGroup * kChunk * 2; }

  __device__ void init_barriers() const {
    for (int s = 0; s < cut.stages; ++s) barrier_init(full(s), 1), barrier_init(empty(s), kConsumers);
    for (int i = 0; i < L::kInboxes; ++i) barrier_init(received(i), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  // Which chunk of which tile a stage is loaded with.
  struct Cursor {
    int tile, chunk;
  };
  __device__ void advance(Cursor& c) const {
    if (++c.chunk == chunks) c.chunk = 0, ++c.tile;
  }
  __device__ int slab(const Cursor& c) const { return begin / kSlab + c.chunk * (kChunk / kSlab); }

  __device__ void load_weights(const Cursor& c, int stage, uint64_t policy) const {
    const Tile t = tile(c.tile);
    barrier_expect(full(stage), (t.rows() + kTokens) * kChunk * 2);
    for (int i = 0; i < t.boxes; ++i) {
      const int row = (t.box + i) * cut.box_groups * kGroup;
      copy_box(stage_at(stage) + i * box_bytes(), weight_map, row, slab(c), full(stage), policy);
      if constexpr (kGated)
        copy_box(stage_at(stage) + (t.boxes + i) * box_bytes(), weight_map, a.columns / 2 + row, slab(c), full(stage),
                 policy);
    }
  }

  __device__ void load_x(const Cursor& c, int stage) const {
    copy_box(stage_at(stage) + cut.tile_rows * kChunk * 2, x_map, 0, slab(c), full(stage));
  }

  __device__ void load() const {
    const int total = tiles * chunks, first = min(cut.stages, total);
    const uint64_t policy = read_once_policy();
    Cursor ahead{0, 0}, behind{0, 0};
    if (lane == 0) {
      asm volatile("prefetch.tensormap [%0];" ::"l"(&x_map) : "memory");
      for (int i = 0; i < first; ++i, advance(ahead)) load_weights(ahead, i, policy);
    }
    __syncwarp();
    if (cut.cluster > 1) cluster_wait();
    wait_for_previous_kernel();
    launch_next_kernel();
    if (lane == 0) {
      for (int i = 0; i < first; ++i, advance(behind)) load_x(behind, i);
      for (int i = first, stage = 0, phase = 0; i < total; ++i, advance(ahead)) {
        barrier_wait(empty(stage), phase);
        load_weights(ahead, stage, policy);
        load_x(ahead, stage);
        if (++stage == cut.stages) stage = 0, phase ^= 1;
      }
    }
    __syncwarp();
  }

  // Where the groups of rows that this warp multiplies lie in a stage.
  __device__ void place(uint32_t (&at)[kTiles]) const {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int group = j * kRowWarps + warp % kRowWarps;
      at[j] = group / cut.box_groups * box_bytes() + (group % cut.box_groups * kGroup + (lane & 7)) * 128;
    }
  }

  // Multiplies one chunk, of which this warp takes every fourth step of the depth and every second group of rows.
  __device__ void multiply(int stage, int tile_groups, const uint32_t (&at)[kTiles],
                           float (&sums)[kTokenTiles][kTiles][4]) const {
    const int first = warp % kRowWarps, row = lane & 7, quarter = lane >> 3, token = (row + quarter % 2 * 8) % kTokens;
    const uint32_t x_at = stage_at(stage) + cut.tile_rows * kChunk * 2 + token * 128;
#pragma unroll
    for (int step = 0; step < kChunk / (kStep * kDepthWarps); ++step) {
      const int k = (step * kDepthWarps + warp / kRowWarps) * kStep, slab = k / kSlab, unit = k % kSlab / 8;
      const uint32_t w_at = stage_at(stage) + slab * cut.box_groups * kGroup * 128;
      uint32_t w[kTiles][4];
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
        if (j * kRowWarps + first < tile_groups)
          ldmatrix(w[j], w_at + at[j] + ((unit + quarter) ^ row) * 16);
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
        const uint32_t from = x_at + (slab * kTokens + m * kTokenTile) * 128;
        uint32_t low[4], high[4];
        ldmatrix(low, from + ((unit + quarter / 2) ^ (token & 7)) * 16);
        ldmatrix(high, from + ((unit + 2 + quarter / 2) ^ (token & 7)) * 16);
#pragma unroll
        for (int j = 0; j < kTiles; ++j)
          if (j * kRowWarps + first < tile_groups) mma<T>(sums[m][j], low, w[j][0], w[j][1]);
#pragma unroll
        for (int j = 0; j < kTiles; ++j)
          if (j * kRowWarps + first < tile_groups) mma<T>(sums[m][j], high, w[j][2], w[j][3]);
      }
    }
  }

  // Puts this warp's sums of sixteen tokens where all threads can add them: [depth warp][token][row of the tile].
  __device__ void share(int rows, const float (&sums)[kTiles][4]) const {
    const int pitch = layout.sums_pitch(), first_row = warp % kRowWarps * 8;
    float* at = reinterpret_cast<float*>(shared + layout.sums()) +
                (warp / kRowWarps * kTokenTile + lane / 4) * pitch + first_row + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (j * kRowWarps * 8 + first_row >= rows) continue;
      *reinterpret_cast<float2*>(at + j * kRowWarps * 8) = make_float2(sums[j][0], sums[j][1]);
      *reinterpret_cast<float2*>(at + j * kRowWarps * 8 + 8 * pitch) = make_float2(sums[j][2], sums[j][3]);
    }
  }

  __device__ float4 total(int token, int row) const {
    const float* at = reinterpret_cast<const float*>(shared + layout.sums()) + token * layout.sums_pitch() + row;
    float4 sum = *reinterpret_cast<const float4*>(at);
#pragma unroll
    for (int w = 1; w < kDepthWarps; ++w)
      sum = sum + *reinterpret_cast<const float4*>(at + w * kTokenTile * layout.sums_pitch());
    return sum;
  }

  // This thread's sums of sixteen tokens' products with a tile, which it stores.
  __device__ int own_token() const { return threadIdx.x / kQuads; }
  __device__ int own_quad() const { return threadIdx.x % kQuads; }
  // Blocks of a cluster store every second token.
  __device__ bool is_own(int m, int quads) const {
    const int token = own_token();
    return own_quad() < quads && m * kTokenTile + token < a.rows && (cut.cluster == 1 || token % 2 == rank);
  }

  // The addends of the residual for it, loaded before the product is there.
  using Early = uint2[kTokenTiles];
  __device__ void load_early(Early& early, const Tile& t) const {
    const int quads = quads_of(t);
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      early[m] = make_uint2(0, 0);
      if (!a.residual || !is_own(m, quads)) continue;
      const int64_t at = (m * kTokenTile + own_token()) * a.residual_stride + column_of(t);
      early[m] = *reinterpret_cast<const uint2*>(static_cast<const T*>(a.residual) + at);
    }
  }

  __device__ void store(int64_t token, int column, float4 v, const uint2& early) const {
    if (a.bias) v = v + load4<T>(a.bias, column);
    if (a.residual) v = multiply_add(a.factor, v, load4<T>(&early, 0));
    *reinterpret_cast<uint2*>(static_cast<T*>(a.out) + token * a.out_stride + column) =
        make_uint2(pack<T>(v.x, v.y), pack<T>(v.z, v.w));
  }

  // The projections are rounded as if they had been stored.
  __device__ void store_gated(int64_t token, int column, float4 gate, float4 up) const {
    if (a.bias) gate = gate + load4<T>(a.bias, column), up = up + load4<T>(a.bias, a.columns / 2 + column);
    auto gated = [&](float g, float u) {
      return activated(a.activation, to_float(from_float<T>(g))) * to_float(from_float<T>(u));
    };
    *reinterpret_cast<uint2*>(static_cast<T*>(a.out) + token * a.out_stride + column) = make_uint2(
        pack<T>(gated(gate.x, up.x), gated(gate.y, up.y)), pack<T>(gated(gate.z, up.z), gated(gate.w, up.w)));
  }

  // Two blocks' sums: each sends those of the other's tokens, then adds what it is sent. All sixteen tokens' are sent,
  // perhaps of no use, so that no block can run ahead by two tiles and overwrite an inbox.
  __device__ int inbox_at(int count) const {
    return layout.inbox() + count % L::kInboxes * layout.inbox_bytes() + (own_token() / 2 * kQuads + own_quad()) * 16;
  }
  __device__ void send_others(int count, int quads, float4 sum) const {
    const uint32_t barrier = received(count % L::kInboxes);
    if (threadIdx.x == 0) barrier_expect(barrier, kTokenTile / 2 * quads * 16);
    if (own_token() % 2 != rank && own_quad() < quads) send(base + inbox_at(count), barrier, 1 - rank, sum);
  }
  __device__ float4 add_others(int count, float4 sum) const {
    barrier_wait(received(count % L::kInboxes), count / L::kInboxes & 1);
    return sum + *reinterpret_cast<const float4*>(shared + inbox_at(count));
  }

  // The last box may reach over the edge.
  __device__ int quads_of(const Tile& t) const { return min(t.groups, cut.groups - t.box * cut.box_groups) * kGroup / 4; }
  __device__ int column_of(const Tile& t) const { return t.box * cut.box_groups * kGroup + own_quad() * 4; }

  __device__ void finish(int& exchanges, const Tile& t, const float (&sums)[kTokenTiles][kTiles][4],
                         const Early& early) const {
    const int column = column_of(t), quads = quads_of(t), row = own_quad() * 4;
    float4 mine[kTokenTiles] = {};
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      if (m * kTokenTile >= a.rows) break;
      barrier_sync(1, kConsumers * 32);
      share(t.rows(), sums[m]);
      barrier_sync(1, kConsumers * 32);
      if (own_quad() < quads) mine[m] = total(own_token(), row);
      if constexpr (kGated) {
        if (is_own(m, quads))
          store_gated(m * kTokenTile + own_token(), column, mine[m], total(own_token(), t.groups * kGroup + row));
      } else if (cut.cluster > 1) {
        send_others(exchanges + m, quads, mine[m]);
      }
    }
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      if (kGated || m * kTokenTile >= a.rows) break;
      if (cut.cluster > 1 && own_token() % 2 == rank) mine[m] = add_others(exchanges, mine[m]);
      if (is_own(m, quads)) store(m * kTokenTile + own_token(), column, mine[m], early[m]);
      ++exchanges;
    }
  }

  __device__ void compute() const {
    uint32_t at[kTiles];
    place(at);
    if (cut.cluster > 1) cluster_wait();
    wait_for_previous_kernel();
    int stage = 0, phase = 0, exchanges = 0;
    for (int i = 0; i < tiles; ++i) {
      const Tile t = tile(i);
      Early early;
      load_early(early, t);
      float sums[kTokenTiles][kTiles][4] = {};
      for (int chunk = 0; chunk < chunks; ++chunk) {
        barrier_wait(full(stage), phase);
        multiply(stage, t.rows() / kGroup, at, sums);
        // The operands that ldmatrix read have been multiplied: products behind conditions stay before the arrival, which would
        // overtake loads that are under way (see `leave` in linear_held.cu).
        __syncwarp();
        if (lane == 0) barrier_arrive_once(empty(stage));
        if (++stage == cut.stages) stage = 0, phase ^= 1;
      }
      finish(exchanges, t, sums, early);
    }
  }
};

#endif

template <class T, int kTokens, int kChunk, bool kGated>
__global__ void __launch_bounds__(kThreads, kTokens < 32 ? 2 : 1) linear_kernel(
    const __grid_constant__ LinearArgs a, const __grid_constant__ Cut cut, const __grid_constant__ CUtensorMap weights,
    const __grid_constant__ CUtensorMap x) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(1024) char smem[];
  const Block<T, kTokens, kChunk, kGated> block(a, cut, weights, x, smem);
  if (threadIdx.x == 0) block.init_barriers();
  __syncthreads();
  if (cut.cluster > 1) cluster_arrive();
  if (block.warp == kConsumers) {
    block.load();
  } else {
    block.compute();
  }
#endif
}

// A row-major matrix of 16-bit elements, seen as [depth / kSlab][rows][kSlab], copied in boxes of `slabs` x `box_rows`.
// Elements outside of it are copied as zeros.
inline bool describe_matrix(CUtensorMap& map, const void* data, int64_t rows, int64_t depth, int64_t stride,
                            int box_rows, int slabs) {
  return describe_tensor<3>(map, data, {kSlab, cuuint64_t(rows), cuuint64_t(depth / kSlab)},
                            {cuuint64_t(stride) * 2, kSlab * 2}, {kSlab, cuuint32_t(box_rows), cuuint32_t(slabs)});
}

// Deals the rows out to as many clusters as the device has room for. Boxes of one group read long stretches fastest;
// blocks that share a tile have only that one, and get it at once.
inline Cut cut_for(const LinearArgs& m, int cluster, const Device& device) {
  const int sides = m.gated ? 2 : 1, groups = m.columns / kGroup / sides;
  const int most = device.multiprocessors / cluster, own = (groups + most - 1) / most;
  const int fit = kTileRows / kGroup / sides;
  const int box = cluster > 1 && own <= fit ? own : 1;
  const int boxes = (groups + box - 1) / box, clusters = boxes < most ? boxes : most;
  const int own_boxes = (boxes + clusters - 1) / clusters, tiles = (own_boxes + fit / box - 1) / (fit / box);
  const int tile_rows = (own_boxes + tiles - 1) / tiles * box * kGroup * sides;
  return {cluster, clusters, groups, boxes, box, tile_rows, 0};
}

template <class T, int kTokens, int kChunk, bool kGated>
cudaError_t launch(const LinearArgs& a, Cut cut, const Device& device, cudaStream_t stream) {
  using L = Layout<kTokens, kChunk>;
  const L fixed{cut.tile_rows, cut.cluster, 0};
  cut.stages = std::min((device.shared_per_block - fixed.bytes()) / fixed.stage_bytes(), kMaxStages);
  if (cut.stages < 2) return cudaErrorNotSupported;
  CUtensorMap weights, x;
  if (!describe_matrix(weights, a.weight, a.columns, a.depth, a.weight_stride, cut.box_groups * kGroup,
                       kChunk / kSlab) ||
      !describe_matrix(x, a.x, a.rows, a.depth, a.x_stride, kTokens, kChunk / kSlab))
    return cudaErrorNotSupported;
  const int bytes = L{cut.tile_rows, cut.cluster, cut.stages}.bytes();
  const Launch how{dim3(cut.clusters * cut.cluster), kThreads, bytes, cut.cluster};
  return launch_after(linear_kernel<T, kTokens, kChunk, kGated>, how, stream, a, cut, weights, x);
}

template <class T, bool kGated>
cudaError_t launch_tokens(const LinearArgs& a, int cluster, const Device& device, cudaStream_t stream) {
  const Cut cut = cut_for(a, cluster, device);
  const bool narrow = cut.tile_rows <= 16;
  if (a.rows > 16) return launch<T, 32, 256, kGated>(a, cut, device, stream);
  if (a.rows > 8 && narrow) return launch<T, 16, 512, kGated>(a, cut, device, stream);
  if (a.rows > 8) return launch<T, 16, 256, kGated>(a, cut, device, stream);
  // Rows that are not there take longer than others: no more of them than need be.
  if (narrow) return launch<T, 8, 512, kGated>(a, cut, device, stream);
  return launch<T, 8, 256, kGated>(a, cut, device, stream);
}

}  // namespace

cudaError_t linear_ring(const LinearArgs& a, int cluster, const Device& device, cudaStream_t stream) {
  if (a.norm || a.rows > kMostRows || a.depth % kSlab != 0 || !in_groups(a) || cluster < 1 || cluster > (a.gated ? 1 : 2))
    return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    return a.gated ? launch_tokens<T, true>(a, cluster, device, stream) : launch_tokens<T, false>(a, cluster, device, stream);
  });
}

}  // namespace octavo
