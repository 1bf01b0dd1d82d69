// Attention over the whole chunks that many sequences share, on Hopper (sm_90a).
//
// One warpgroup multiplies 64 query rows with the keys of a chunk, two warps bring what it needs. A block takes half of a
// multiprocessor. The other half belongs to a block of the decode kernel, which streams what the sequences do not share:
// one is bound by the tensor cores, the other by memory. Where little is to be streamed, a second block of this kernel takes
// it. The steps are those of chunk.cuh, with products of a
// warpgroup instead of a warp's: both add the products of 16 keys (or 16 columns) at once, so results keep their bits.
#include "buffer_ring.cuh"
#include "chunk.cuh"
#include "prefix.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

namespace octavo {
namespace {

constexpr int kRows = 64;
constexpr int kSlices = 4, kKeys = kSlices * kSlice;  // of one tile
constexpr int kPerLane = kChunk / kLanes / kKeys;     // tiles
constexpr int kTiles = kLanes * kPerLane;
constexpr int kStages = 2;
constexpr int kConsumers = 128, kThreads = kConsumers + 2 * 32;
constexpr int kRegisters = 168;  // of a thread: two blocks find room
constexpr int kVote = 1;         // named barrier
constexpr int kHalves = prefix_rows(128) / kRows;
constexpr int kColumns = kMapColumns;
static_assert(kPerLane == 2 && kStages == kPerLane && kLanes % 2 == 0 && prefix_rows(64) == prefix_rows(128));

// Shared memory: every tile is [D / 64][rows][64].
template <int D>
struct Layout {
  static constexpr int kParts = D / kColumns;
  static constexpr int kQueryBytes = kRows * D * 2, kTileBytes = kKeys * D * 2;
  static constexpr int kKeysAt = kQueryBytes, kValuesAt = kKeysAt + kStages * kTileBytes;
  static constexpr int kSumsAt = kValuesAt + kStages * kTileBytes;
  static constexpr int kSums = (D / 2 + 1) * 32;  // floats of one warp
  static constexpr int kBarriersAt = kSumsAt + 4 * kSums * 4;
  static constexpr int kBytes = kBarriersAt + 8 * (2 + 4 * kStages);
};

template <int D>
struct Rings {
  BufferRing queries, keys, values;
  __device__ Rings(uint32_t shared)
      : queries(shared + Layout<D>::kBarriersAt, 1),
        keys(queries.full + 8 * 2, kStages),
        values(keys.full + 8 * 2 * kStages, kStages) {}
};

// The work of a block: items of the list are halved into tiles of 64 rows. All first halves come before the second ones,
// which may be empty. If there is enough for the decode kernel, the second half of the blocks gets nothing.
struct Work {
  int index = -1;

  struct Tile {
    int sequence, chunk, first_row, rows, head;
  };
  // The next tile that has rows; false: none is left. Counts are read again: registers are few.
  __device__ bool next(const AttentionArgs& a, Tile& t) {
    const int items = a.header->prefix_items, count = items * a.kv_heads;
    const int step = a.header->decode_items < kHalves * items ? gridDim.x : gridDim.x / 2;
    index = index >= 0 ? index + step : int(blockIdx.x) < step ? int(blockIdx.x) : count * kHalves;
    for (; index < count * kHalves; index += step) {
      const int half = index / count, place = index % count;
      const PrefixItem item = a.prefix[place / a.kv_heads];
      const int rows = item.rows - half * kRows;
      if (rows <= 0) continue;
      t = {item.sequence, item.chunk, item.first_row + half * kRows, min(rows, kRows), place % a.kv_heads};
      return true;
    }
    return false;
  }
};

#if OCTAVO_WGMMA

// One warp brings keys and values in the order in which the lanes of a chunk take them.
template <int D>
__device__ void bring_tiles(const AttentionArgs& a, const CUtensorMap& k_map, const CUtensorMap& v_map, uint32_t shared,
                            BufferRing keys, BufferRing values) {
  using L = Layout<D>;
  constexpr int boxes = kSlices * L::kParts;
  static_assert(2 * boxes <= 32);
  const int lane = threadIdx.x % 32, slice = lane % kSlices, part = lane / kSlices % L::kParts;
  const int mine = (part * kKeys + slice * kSlice) * kColumns * 2;
  Work work;
  Work::Tile t;
  while (work.next(a, t)) {
    const int first = t.chunk * kChunk;
    const int block = a.tables[t.sequence * a.table_stride + (first + lane * kSlice) / a.cache.block_size];
#pragma unroll 1
    for (int i = 0; i < kTiles; ++i) {
      const int place = (i % kPerLane * kSlices + slice) * kLanes + i / kPerLane;  // of the slice in the chunk
      const int from = __shfl_sync(~0u, block, place), token = place * kSlice & (a.cache.block_size - 1);
      barrier_wait(keys.empty_now(), keys.parity ^ 1);
      if (lane == 0) barrier_expect(keys.full_now(), L::kTileBytes);
      __syncwarp();
      if (lane < boxes)
        copy_box(shared + L::kKeysAt + keys.stage * L::kTileBytes + mine, k_map, part, token, t.head, from,
                 keys.full_now());
      barrier_wait(values.empty_now(), values.parity ^ 1);
      if (lane == 0) barrier_expect(values.full_now(), L::kTileBytes);
      __syncwarp();
      if (lane < boxes)
        copy_box(shared + L::kValuesAt + values.stage * L::kTileBytes + mine, v_map, part, token, t.head, from,
                 values.full_now());
      keys.advance(), values.advance();
    }
  }
}

// The other one brings queries: the rows of a tile lie apart in memory.
template <class T, int D>
__device__ void bring_queries(const AttentionArgs& a, uint32_t queries, BufferRing ring) {
  constexpr int units = D / 8, at_once = 32 / units;  // rows
  const int lane = threadIdx.x % 32, unit = lane % units, group = a.heads / a.kv_heads;
  const uint32_t target = queries + unit / 8 * (kRows * kColumns * 2);
  Work work;
  Work::Tile t;
  while (work.next(a, t)) {
    int64_t from[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane + 32 * half;
      if (row >= t.rows) continue;
      const QueryRow at = prefix_row(a, t.sequence, t.first_row + row, t.chunk, group);
      from[half] = int64_t(at.token) * a.q_stride + (t.head * group + at.row % group) * D;
    }
    barrier_wait(ring.empty_now(), ring.parity ^ 1);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll 4
      for (int i = 0; i < 32; i += at_once) {
        const int row = half * 32 + i + lane / units;
        const int64_t offset = __shfl_sync(~0u, from[half], row % 32);
        const bool real = row < t.rows;
        const T* source = static_cast<const T*>(a.q) + (real ? offset + unit * 8 : 0);
        copy16(target + row * (kColumns * 2) + ((unit ^ row) & 7) * 16, source, real);
      }
    commit_copies();
    wait_copies<0>();
    fence_bulk();
    barrier_arrive_once(ring.full_now());
    ring.advance();
  }
}

// Whether any thread of the warpgroup says so.
__device__ inline bool vote(bool mine) {
  int result;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\nselp.b32 %0, 1, 0, q;\n}\n"
      : "=r"(result)
      : "r"(int(mine)), "n"(kVote), "n"(kConsumers)
      : "memory");
  return result;
}

template <class T, int D>
struct Consumer {
  using L = Layout<D>;
  using Scores = float[kSlices][2][4];
  const AttentionArgs& a;
  const uint32_t shared;
  float* const sums;  // of this warp: what the lanes before gave
  const int warp, lane;
  const float unit;
  Rings<D> rings;
  State<D, 2> st;

  __device__ Consumer(const AttentionArgs& args, char* memory)
      : a(args), shared(shared_address(memory)),
        sums(reinterpret_cast<float*>(memory + L::kSumsAt) + threadIdx.x / 32 * L::kSums),
        warp(threadIdx.x / 32), lane(threadIdx.x % 32), unit(score_unit(args)), rings(shared) {}

  __device__ void release(uint32_t barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive_once(barrier);
  }
  __device__ float (&flat(Scores& s))[kSlices * 8] { return reinterpret_cast<float(&)[kSlices * 8]>(s); }
  __device__ float (&outputs())[D / 2] { return reinterpret_cast<float(&)[D / 2]>(st.o); }

  // A lane has two tiles, and an item four lanes: tile `i` of lane `of` always lies in stage i, and `of` tells the phase.
  // Starts the scores of a tile, once its keys are there.
  __device__ void score(Scores& s, int i, int of) {
    barrier_wait(rings.keys.full + 8 * i, of & 1);
    const uint32_t q = uniform(shared / 16), k = uniform((shared + L::kKeysAt + i * L::kTileBytes) / 16);
    products_begin();
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      const uint64_t rows = operand(q + n / 4 * (kRows * kColumns * 2 / 16) + n % 4 * 2, 1024);
      const uint64_t columns = operand(k + n / 4 * (kKeys * kColumns * 2 / 16) + n % 4 * 2, 1024);
      if (n == 0) wgmma_first(T{}, flat(s), rows, columns);
      else wgmma(T{}, flat(s), rows, columns);
    }
    products_commit();
  }
  // Waits for them, with at most kPending later products under way.
  template <int kPending>
  __device__ void scored(Scores& s, int i) {
    products_wait<kPending>(flat(s));
    release(rings.keys.empty + 8 * i);
  }
  // Starts adding the weighted values of a tile. Before the first slice of a lane there is nothing to rescale.
  template <int i>
  __device__ void weigh(const Weights<2, kSlices>& w, int of) {
    const uint32_t v = uniform((shared + L::kValuesAt + i * L::kTileBytes) / 16);
    bool rescaled = false;
#pragma unroll
    for (int j = i == 0; j < kSlices; ++j) rescaled |= w.rescaled[j];
    barrier_wait(rings.values.full + 8 * i, of & 1);
    if (vote(rescaled)) {
      products_wait<0>(outputs());
#pragma unroll
      for (int j = 0; j < kSlices; ++j) {
        if (j + i > 0 && w.rescaled[j]) st.scale(0, w.factor[j][0]), st.scale(1, w.factor[j][1]);
        products_begin();
        wgmma_transposed(T{}, outputs(), w.at[j], operand(v + j * 128, 1024, kKeys * kColumns * 2));
        products_commit();
        products_wait<0>(outputs());
      }
    } else {
      products_begin();
#pragma unroll
      for (int j = 0; j < kSlices; ++j)
        wgmma_transposed(T{}, outputs(), w.at[j], operand(v + j * 128, 1024, kKeys * kColumns * 2));
      products_commit();
    }
  }
  __device__ void weighed(Weights<2, kSlices>& w, int i) {
    products_wait<0>(outputs());
#pragma unroll
    for (int n = 0; n < kSlices * 4; ++n) asm volatile("" : "+r"(w.at[n / 4][n % 4]));  // they were being read until now
    release(rings.values.empty + 8 * i);
  }

  // Ends a lane: joins it with those before, which lie in shared memory, the sums of a row once for the threads that
  // share it.
  __device__ void join(int of) {
    float *const mine = sums + lane, *const shared_sums = sums + D / 2 * 32 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) st.l[r] = warp_sum<4>(st.l[r]);
    if (of > 0)
      st.join_before([&](int r, int i) { return i < 2 ? shared_sums[(2 * r + i) * 8] : mine[(r * (D / 4) + i - 2) * 32]; });
    __syncwarp();
    if (of == kLanes - 1) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane % 4 == 0) shared_sums[2 * r * 8] = st.m[r], shared_sums[(2 * r + 1) * 8] = st.l[r];
#pragma unroll
      for (int i = 0; i < D / 4; ++i) mine[(r * (D / 4) + i) * 32] = st.o[i / 2][2 * r + i % 2];
    }
    __syncwarp();
  }

  __device__ void attend(const Work::Tile& t) {
    const int group = a.heads / a.kv_heads, count = t.rows - warp * 16;
    int to[2] = {};  // where the results of this thread's rows go: slot and row of each, read early and kept small
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      if (row >= count) continue;
      const QueryRow at = prefix_row(a, t.sequence, t.first_row + warp * 16 + row, t.chunk, group);
      to[r] = at.slot * kDecodeRows + at.row;
    }

    Scores s;
    Weights<2, kSlices> even, odd;  // of a lane's two tiles
    barrier_wait(rings.queries.full_now(), rings.queries.parity);
    score(s, 0, 0);
    scored<0>(s, 0);
#pragma unroll 1
    for (int of = 0; of < kLanes; ++of) {
      float m[2] = {kNoScore, kNoScore}, l[2] = {0.0f, 0.0f};
      soften<T>(s, unit, m, l, even);
      if (of > 0) weighed(odd, 1), join(of - 1);
      st.clear();
      score(s, 1, of);
      weigh<0>(even, of);
      scored<1>(s, 1);
      if (of == kLanes - 1) {
        release(rings.queries.empty_now());
        rings.queries.advance();
      }

      soften<T>(s, unit, m, l, odd);
      weighed(even, 0);
#pragma unroll
      for (int r = 0; r < 2; ++r) st.m[r] = m[r], st.l[r] = l[r];
      if (of < kLanes - 1) {
        score(s, 0, of + 1);
        weigh<1>(odd, of);
        scored<1>(s, 0);
      } else {
        weigh<1>(odd, of);
      }
    }
    weighed(odd, 1), join(kLanes - 1);
    write_partial<D, D, 2>(a, t.head, count, 0, st, [&](int row) {
      return QueryRow{0, to[row / 8] % kDecodeRows, to[row / 8] / kDecodeRows};
    });
  }

  __device__ void run() {
    Work work;
    Work::Tile t;
    while (work.next(a, t)) attend(t);
  }
};

#endif

template <class T, int D>
__global__ void __maxnreg__(kRegisters)
    prefix_wgmma_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ CUtensorMap keys,
                        const __grid_constant__ CUtensorMap values) {
#if OCTAVO_WGMMA
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const Rings<D> rings(shared);
  if (threadIdx.x == 0) {
    barrier_init(rings.queries.full, 32), barrier_init(rings.queries.empty, kConsumers / 32);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(rings.keys.full + 8 * i, 1), barrier_init(rings.keys.empty + 8 * i, kConsumers / 32);
      barrier_init(rings.values.full + 8 * i, 1), barrier_init(rings.values.empty + 8 * i, kConsumers / 32);
    }
    fence_bulk();
  }
  __syncthreads();
  wait_for_previous_kernel();
  launch_next_kernel();
  const int warp = threadIdx.x / 32;
  if (warp < kConsumers / 32) Consumer<T, D>(a, memory).run();
  else if (warp == kConsumers / 32) bring_tiles<D>(a, keys, values, shared, rings.keys, rings.values);
  else bring_queries<T, D>(a, shared, rings.queries);
#endif
}

template <class T, int D>
cudaError_t launch(const AttentionArgs& a, const Device& device, cudaStream_t stream) {
  CUtensorMap keys, values;
  cudaError_t error = describe_cache(keys, a, 0, kSlice);
  if (error == cudaSuccess) error = describe_cache(values, a, a.cache.kv_stride, kSlice);
  if (error != cudaSuccess) return error;
  auto kernel = prefix_wgmma_kernel<T, D>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout<D>::kBytes);
  // Otherwise the shared memory of a multiprocessor might be set to what one block needs.
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  return launch_after(kernel, dim3(2 * device.multiprocessors), kThreads, Layout<D>::kBytes, stream, a, keys, values);
}

}  // namespace

cudaError_t prefix_attention_wgmma(const AttentionArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major != 9 || a.softcap > 0.0f) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.head_dim) {
      case 64: return launch<T, 64>(a, device, stream);
      case 128: return launch<T, 128>(a, device, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

}  // namespace octavo
