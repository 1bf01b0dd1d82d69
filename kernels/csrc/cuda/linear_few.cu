// Products of few rows and small matrices, as those of a small model's decode step: with linear.cu's cuts and order of
// sums, so that a row's bits are the same, but x does not pass through the ring: it comes by plain loads, whole, and
// may be normalised before it is used.
//
// Such a launch has its weights in shared memory before the previous kernel has ended. What counts is how soon its
// result is there after the wait: addresses are ready before it, and what comes after it is short.
#include "linear.cuh"

namespace octavo {
namespace {

constexpr int kMaxWidth = 8192;  // of a row that is normalised: a warp's lanes add its partial sums
constexpr int kMostRows = 8;  // with which this was measured to be ahead of linear.cu on an H200

// Shared memory: barriers, the ring, x, the norm's weights and its partial sums, the warps' sums, two inboxes for the
// other block's.
struct Layout {
  static constexpr int kRing = 1024;
  int stage_bytes, stages, x_bytes, norm_depth, rows, pitch, cluster, tile_rows;

  __host__ __device__ int x() const { return kRing + stages * stage_bytes; }
  __host__ __device__ int scales() const { return x() + x_bytes; }
  __host__ __device__ int squares() const { return scales() + norm_depth * 2; }
  __host__ __device__ int sums() const { return squares() + (norm_depth > 0 ? rows * 32 * 4 : 0); }
  __host__ __device__ int inbox() const { return sums() + kDepthWarps * rows * pitch * 4; }
  __host__ __device__ int inbox_bytes() const { return cluster == 1 ? 0 : rows * tile_rows * 4; }
  __host__ __device__ int bytes() const { return inbox() + 2 * inbox_bytes(); }
};

// Of the depth, what a stage of the ring holds.
__host__ __device__ inline int chunk_of(const Cut& cut) { return cut.tile_rows > 16 ? 256 : 512; }
__host__ __device__ inline int chunks_of(const Cut& cut, int depth) {
  return (depth + chunk_of(cut) - 1) / chunk_of(cut);
}
// Of the depth, what the blocks of a cluster take each.
__host__ __device__ inline int slice_of(const Cut& cut, int depth) {
  const int slices = (depth + kDepthSlice - 1) / kDepthSlice;
  return cut.cluster == 1 ? depth : (slices + cut.cluster - 1) / cut.cluster * kDepthSlice;
}

__host__ __device__ inline Layout layout_of(const LinearArgs& a, const Cut& cut) {
  const int x_bytes = a.rows * slice_of(cut, a.depth) * 2, pitch = (cut.tile_rows + 15) / 16 * 16 + kPad;
  return {cut.tile_rows * chunk_of(cut) * 2, cut.stages, x_bytes, a.norm ? a.depth : 0, a.rows, pitch, cut.cluster,
          cut.tile_rows};
}

#if OCTAVO_BULK_COPY

// Keeps an address from being computed any later than here.
template <class V>
__device__ inline void settle(V*& address) {
  asm volatile("" : "+l"(address));
}

__device__ __noinline__ float activated_otherwise(Activation kind, float x) { return activated(kind, x); }

template <class T>
struct Block : Portion {
  struct Tile {
    int box, groups, rows;  // of the gate, if there is one; but rows: of the ring
  };
  using Sums = float[kTiles][4];

  const LinearArgs& a;
  const Cut& cut;
  const CUtensorMap& weight_map;
  const Layout layout;
  char* shared;
  uint32_t base;
  int chunk, chunks;  // of the depth, that the ring holds at once; how many of them
  int lane, warp, parts, row_lane, depth_lane;  // lane: in the warp; the others are the warp's
  uint32_t per_part;  // reciprocal of `parts`, in 2^32ths; zero: one part

  __device__ Block(const LinearArgs& args, const Cut& pieces, const CUtensorMap& weights, char* smem)
      : Portion(pieces, args.depth, args.gated ? 2 : 1, blockIdx.x),
        a(args),
        cut(pieces),
        weight_map(weights),
        layout(layout_of(args, pieces)),
        shared(smem),
        base(shared_address(smem)),
        chunk(chunk_of(pieces)),
        chunks(chunks_of(pieces, depth)),
        lane(threadIdx.x % 32),
        warp(__shfl_sync(~0u, threadIdx.x / 32, 0)),  // so that the compiler knows it is the warp's
        parts((depth / 8 + 31) / 32),
        row_lane(warp % kRowWarps),
        depth_lane(warp / kRowWarps),
        per_part(~0u / parts + 1) {}

  __device__ uint32_t full(int stage) const { return base + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return base + 8 * (kMaxStages + stage); }
  __device__ uint32_t received(int inbox) const { return base + 8 * (2 * kMaxStages + inbox); }
  __device__ uint32_t stage_at(int stage) const { return base + Layout::kRing + stage * layout.stage_bytes; }
  __device__ int box_rows() const { return cut.box_groups * kGroup; }
  __device__ Tile tile(int i) const {
    const int begin = boxes * i / tiles, groups = (boxes * (i + 1) / tiles - begin) * cut.box_groups;
    return {first_box + begin, groups, groups * (a.gated ? 2 * kGroup : kGroup)};
  }

  __device__ void init_barriers() const {
    for (int s = 0; s < cut.stages; ++s) barrier_init(full(s), 1), barrier_init(empty(s), kConsumers);
    barrier_init(received(0), 1), barrier_init(received(1), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  // One warp's part: weights into the ring, from before the previous kernel has ended.
  __device__ void load() const {
    const int box_bytes = box_rows() * chunk * 2;
    const uint64_t policy = read_once_policy();
    bool begun = false;
    auto begin_launch = [&] {
      if (cut.cluster > 1) cluster_sync();
      wait_for_previous_kernel();
      launch_next_kernel();
      begun = true;
    };
    int stage = 0, phase = 1;
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      const Tile t = tile(i);
#pragma unroll 1
      for (int c = 0; c < chunks; ++c) {
        if (!begun && phase == 0) begin_launch();  // the ring is full
        if (lane == 0) {
          barrier_wait(empty(stage), phase);
          barrier_expect(full(stage), t.rows * chunk * 2);
          const int slab = begin / kSlab + c * (chunk / kSlab);
          uint32_t to = stage_at(stage);
          const int own = t.groups * kGroup, up = a.columns / 2 - own;
#pragma unroll 1
          for (int b = 0; b < t.rows; b += box_rows(), to += box_bytes)
            copy_box(to, weight_map, t.box * box_rows() + b + (b < own ? 0 : up), slab, full(stage), policy);
        }
        __syncwarp();
        if (++stage == cut.stages) stage = 0, phase ^= 1;
      }
    }
    if (!begun) begin_launch();
  }

  __device__ void load_scales() const {
    for (int i = threadIdx.x; i < layout.norm_depth / 8; i += kConsumers * 32)
      reinterpret_cast<uint4*>(shared + layout.scales())[i] = static_cast<const uint4*>(a.norm)[i];
  }

  // Rows of x lie in slabs of the depth as a copied box would, without the rows that are not there.
  __device__ uint4* x_at(int row, int unit) const {
    return reinterpret_cast<uint4*>(shared + layout.x() + (unit / 8 * a.rows + row) * 128 + ((unit ^ row) & 7) * 16);
  }

  // What a lane brings of x: the unit'th 16 bytes of its row's slice. Null: nothing.
  struct Piece {
    int row, unit;
    const uint4* from;
  };
  // Of one warp's part of the rows: 32 units of one of them.
  __device__ Piece piece(int part) const {
    const int units = depth / 8, row = a.rows == 1 ? 0 : per_part == 0 ? part : int(__umulhi(part, per_part));
    const int unit = (part - row * parts) * 32 + lane;
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride + begin;
    return {row, unit, part < a.rows * parts && unit < units ? reinterpret_cast<const uint4*>(x) + unit : nullptr};
  }
  static constexpr int kAtOnce = 4;  // parts
  __device__ void locate(Piece (&pieces)[kAtOnce], int first) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) pieces[i] = piece(first + i * kConsumers);
  }

  // Brings the block's slice of x into shared memory. Normalises the rows, if asked to, with the arithmetic of norm.cu
  // in its order: a row's bits do not tell who did it. A warp takes what one of norm.cu's would, of any row. `pieces`
  // are the first that it takes; `besides` is loaded on the way.
  __device__ uint2 take_rows(Piece (&pieces)[kAtOnce], const uint2* besides) const {
    using Vector = Elements<T, 8>;
    const int all = a.rows * parts;
    float* squares = reinterpret_cast<float*>(shared + layout.squares());
    uint2 found{};
    int first = warp;
#pragma unroll 1
    do {
      uint4 raw[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        raw[i] = make_uint4(0, 0, 0, 0);
        if (pieces[i].from) raw[i] = __ldcg(pieces[i].from);
      }
      if (besides) found = __ldcg(besides), besides = nullptr;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * kConsumers >= all) break;
        if (pieces[i].from) *x_at(pieces[i].row, pieces[i].unit) = raw[i];
        if (!a.norm) continue;
        const float sum = warp_sum(sum_of_squares(reinterpret_cast<const Vector&>(raw[i])));
        if (lane == 0) squares[pieces[i].row * 32 + pieces[i].unit / 32] = sum;
      }
      if (first += kAtOnce * kConsumers; first < all) locate(pieces, first);
    } while (first < all);
    barrier_sync(1, kConsumers * 32);
    if (!a.norm) return found;
#pragma unroll 1
    for (int part = warp; part < all; part += kConsumers) {
      const Piece p = piece(part);
      const float inverse = inverse_rms(warp_sum(lane < parts ? squares[p.row * 32 + lane] : 0.0f), a.depth, a.eps);
      if (!p.from) continue;
      const uint4 raw = *x_at(p.row, p.unit);
      const uint4 weights = reinterpret_cast<const uint4*>(shared + layout.scales())[p.unit];
      const Vector x = reinterpret_cast<const Vector&>(raw), scale = reinterpret_cast<const Vector&>(weights);
      float y[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = to_float(x.at[j]) * inverse * (to_float(scale.at[j]) + a.offset);
      *x_at(p.row, p.unit) =
          make_uint4(pack<T>(y[0], y[1]), pack<T>(y[2], y[3]), pack<T>(y[4], y[5]), pack<T>(y[6], y[7]));
    }
    barrier_sync(1, kConsumers * 32);
    return found;
  }

  // Where a lane reads its fragments: of the groups of rows that this warp multiplies, from a stage's beginning on, and
  // of the two halves of x. A warp takes every fourth step of the depth, so that each step lies two slabs after the one
  // before, in the same half of its slab.
  struct Fragments {
    uint32_t weights[kTiles], low, high;
  };
  static constexpr int kSlabsApart = kDepthWarps * kStep / kSlab;
  __device__ Fragments fragments() const {
    Fragments f;
    const int row = lane & 7, quarter = lane >> 3, slab = depth_lane / 2, unit = depth_lane % 2 * 4;
    const int pitch = cut.box_groups == 1 ? chunk * 2 : 128;  // a box holds one group or all of the tile's
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      f.weights[j] = slab * box_rows() * 128 + (j * kRowWarps + row_lane) * kGroup * pitch + row * 128 +
                     ((unit + quarter) ^ row) * 16;
    const int x_row = min(row + quarter % 2 * 8, a.rows - 1);  // what comes of rows beyond the last nobody reads
    const uint32_t x = base + layout.x() + (slab * a.rows + x_row) * 128;
    f.low = x + ((unit + quarter / 2) ^ (x_row & 7)) * 16, f.high = x + ((unit + 2 + quarter / 2) ^ (x_row & 7)) * 16;
    return f;
  }

  // Steps of a chunk that this warp takes.
  __device__ int steps_of(int c) const {
    const int there = min(chunk, depth - c * chunk);
    return (there - depth_lane * kStep + kDepthWarps * kStep - 1) / (kDepthWarps * kStep);
  }

  // Multiplies `steps` steps of the warp's kMine groups, with x from `at` bytes after its first fragments on.
  template <int kMine>
  __device__ void multiply(const Fragments& f, uint32_t stage, uint32_t at, int steps, Sums& sums) const {
    const uint32_t next = kSlabsApart * box_rows() * 128, next_x = kSlabsApart * a.rows * 128;
#pragma unroll 2
    for (int i = 0; i < steps; ++i, stage += next, at += next_x) {
      uint32_t low[4], high[4], w[kMine][4];
      ldmatrix(low, f.low + at);
      ldmatrix(high, f.high + at);
#pragma unroll
      for (int j = 0; j < kMine; ++j) ldmatrix(w[j], stage + f.weights[j]);
#pragma unroll
      for (int j = 0; j < kMine; ++j) mma<T>(sums[j], low, w[j][0], w[j][1]);
#pragma unroll
      for (int j = 0; j < kMine; ++j) mma<T>(sums[j], high, w[j][2], w[j][3]);
    }
  }
  __device__ void multiply(int mine, const Fragments& f, uint32_t stage, uint32_t at, int steps, Sums& sums) const {
    switch (mine) {
      case 1: return multiply<1>(f, stage, at, steps, sums);
      case 2: return multiply<2>(f, stage, at, steps, sums);
      case 3: return multiply<3>(f, stage, at, steps, sums);
      case 4: return multiply<4>(f, stage, at, steps, sums);
    }
  }

  // Puts this warp's sums where all threads can add them: [depth warp][row of x][row of the tile].
  __device__ void share(int mine, const Sums& sums) const {
    float* to = reinterpret_cast<float*>(shared + layout.sums()) + depth_lane * a.rows * layout.pitch + lane % 4 * 2 +
                row_lane * kGroup;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = lane / 4 + 8 * half;
      if (token >= a.rows) break;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        if (j >= mine) break;
        *reinterpret_cast<float2*>(to + token * layout.pitch + j * kRowWarps * kGroup) =
            make_float2(sums[j][2 * half], sums[j][2 * half + 1]);
      }
    }
  }

  __device__ float4 total(int token, int row) const {
    const float* at = reinterpret_cast<const float*>(shared + layout.sums()) + token * layout.pitch + row;
    const int step = a.rows * layout.pitch;
    float4 sum = *reinterpret_cast<const float4*>(at);
#pragma unroll
    for (int w = 1; w < kDepthWarps; ++w) sum = sum + *reinterpret_cast<const float4*>(at + w * step);
    return sum;
  }

  // The four columns that this thread stores of one row: of the tile, from row `row` of it on; `out` null: none.
  struct Target {
    int token, row, column;
    T* out;
    const uint2* residual;  // null: none
  };
  // The last box may reach over the edge.
  __device__ int quads_of(const Tile& t) const {
    return min(t.groups, cut.groups - t.box * cut.box_groups) * kGroup / 4;
  }
  __device__ Target target(const Tile& t) const {
    const int token = threadIdx.x / 16, quad = threadIdx.x % 16 * cut.cluster + rank;
    const int column = t.box * box_rows() + quad * 4;
    const bool real = token < a.rows && quad < quads_of(t);
    const T* residual = static_cast<const T*>(a.residual) + token * a.residual_stride + column;
    return {token, quad * 4, column, real ? static_cast<T*>(a.out) + token * a.out_stride + column : nullptr,
            real && a.residual ? reinterpret_cast<const uint2*>(residual) : nullptr};
  }

  __device__ float gated(float gate, float up) const {  // rounded as if they had been stored
    const float x = to_float(from_float<T>(gate));
    const bool is_silu = a.activation == Activation::silu;
    const float y = is_silu ? activate<Activation::silu>(x) : activated_otherwise(a.activation, x);
    return y * to_float(from_float<T>(up));
  }

  __device__ void store(const Target& to, float4 v, float4 up, uint2 addend) const {
    if (a.bias) v = v + load4<T>(a.bias, to.column);
    if (a.gated) {
      if (a.bias) up = up + load4<T>(a.bias, a.columns / 2 + to.column);
      v = {gated(v.x, up.x), gated(v.y, up.y), gated(v.z, up.z), gated(v.w, up.w)};
    }
    if (a.residual) v = v + load4<T>(&addend, 0);
    *reinterpret_cast<uint2*>(to.out) = make_uint2(pack<T>(v.x, v.y), pack<T>(v.z, v.w));
  }

  // Each block of a pair collects, from both, the partial sums of every second quad of the tile. Each gets at least
  // one, so that neither can run ahead by two exchanges and overwrite an inbox.
  __device__ float4 exchange(int count, const Tile& t, const Target& to) const {
    const uint32_t barrier = received(count & 1);
    const int token = threadIdx.x / 16, quad = threadIdx.x % 16, own = quads_of(t) / 2, from_one = a.rows * own;
    const int inbox = layout.inbox() + (count & 1) * layout.inbox_bytes();
    if (threadIdx.x == 0) barrier_expect(barrier, 2 * from_one * 16);
    if (token < a.rows && quad < 2 * own)
      send(base + inbox + (rank * from_one + token * own + quad / 2) * 16, barrier, quad % 2, total(token, quad * 4));
    barrier_wait(barrier, count >> 1 & 1);
    if (!to.out) return {};
    const float4* from = reinterpret_cast<const float4*>(shared + inbox) + to.token * own + threadIdx.x % 16;
    return from[0] + from[from_one];
  }

  // The other warps' part.
  __device__ void compute() const {
    if (cut.cluster > 1) cluster_sync();
    load_scales();
    const Fragments places = fragments();
    Tile t = tile(0);
    Target to = target(t);
    Piece pieces[kAtOnce];
    locate(pieces, warp);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) settle(pieces[i].from);
    settle(to.out), settle(to.residual);
    wait_for_previous_kernel();
    uint2 addend = take_rows(pieces, to.residual);
    int stage = 0, phase = 0;
#pragma unroll 1
    for (int i = 0;;) {
      const int mine = (t.rows / kGroup - row_lane + kRowWarps - 1) / kRowWarps;
      Sums sums{};
      uint32_t at = 0;
#pragma unroll 1
      for (int c = 0; c < chunks; ++c) {
        barrier_wait(full(stage), phase);
        const int steps = steps_of(c);
        multiply(mine, places, stage_at(stage), at, steps, sums);
        at += steps * kSlabsApart * a.rows * 128;
        __syncwarp();
        if (lane == 0) barrier_arrive_one(empty(stage));
        if (++stage == cut.stages) stage = 0, phase ^= 1;
      }
      barrier_sync(1, kConsumers * 32);
      share(mine, sums);
      barrier_sync(1, kConsumers * 32);
      float4 v{}, up{};
      if (cut.cluster == 1) {
        if (to.out) v = total(to.token, to.row);
        if (to.out && a.gated) up = total(to.token, t.groups * kGroup + to.row);
      } else {
        v = exchange(i, t, to);
      }
      if (to.out) store(to, v, up, addend);
      if (++i == tiles) break;
      t = tile(i), to = target(t);
      if (to.residual) addend = __ldcg(to.residual);
    }
  }
};

#endif

template <class T>
__global__ void __launch_bounds__(kThreads, 2) linear_few_kernel(
    const __grid_constant__ LinearArgs a, const __grid_constant__ Cut cut,
    const __grid_constant__ CUtensorMap weights) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(1024) char smem[];
  const Block<T> block(a, cut, weights, smem);
  if (threadIdx.x == 0) block.init_barriers();
  __syncthreads();
  if (block.warp == kConsumers) block.load();
  else block.compute();
#endif
}

}  // namespace

cudaError_t linear_few(const LinearArgs& a, const Cut& planned, const Device& device, cudaStream_t stream) {
  Cut cut = planned;
  if (a.rows > kMostRows || !is_small(a, cut, device) || (a.norm && (cut.cluster > 1 || a.depth > kMaxWidth)))
    return cudaErrorNotSupported;
  const int sides = a.gated ? 2 : 1, most_boxes = (cut.boxes + cut.clusters - 1) / cut.clusters;
  const int tile_boxes = cut.tile_rows / (cut.box_groups * kGroup * sides);
  const int all = (most_boxes + tile_boxes - 1) / tile_boxes * chunks_of(cut, slice_of(cut, a.depth));
  cut.stages = 0;
  const Layout fixed = layout_of(a, cut);
  cut.stages = std::min({(half_of(device) - fixed.bytes()) / fixed.stage_bytes, all, kMaxStages});
  if (cut.stages < std::min(all, 2)) return cudaErrorNotSupported;
  CUtensorMap weights;
  if (!describe_matrix(weights, a.weight, a.columns, a.depth, a.weight_stride, cut.box_groups * kGroup,
                       chunk_of(cut) / kSlab))
    return cudaErrorNotSupported;
  const int bytes = layout_of(a, cut).bytes();
  return with_half(a.dtype, [&](auto tag) {
    return launch_clusters(linear_few_kernel<decltype(tag)>, cut, bytes, stream, a, cut, weights);
  });
}

}  // namespace octavo
