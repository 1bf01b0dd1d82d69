// Paged attention for sequences with few query rows (decoding, speculation): bound by reading K and V once.
//
// An item is one chunk of one sequence for one KV head; the grouped query heads (and tokens) are the rows of one
// tensor-core tile. The grid is fixed and walks the list of items, so one launch shape serves every batch and can be
// captured in a graph. Each warp owns a ring of slices of 16 tokens that it fills and drains alone, across items,
// without any barrier between warps; at the end of an item the four warps merge in a fixed order. A second, small kernel
// folds the chunks of a sequence in a fixed order ("Flash-Decoding", Dao et al. 2023, with splits that never move).
#include <algorithm>

#include "attention.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxStages = 8;

template <class T, int D>
constexpr int slice_bytes = kSlice* D* int(sizeof(T));

// Tokens [begin, end) of the context that an item covers; begin is a multiple of the slice.
struct Range {
  int begin, end;
  __device__ int slices(int warp) const { return (end - begin + kSlice * (kWarps - warp) - 1) / (kSlice * kWarps); }
};

__device__ Range range_of(const AttentionArgs& a, const DecodeItem& it) {
  int begin = it.chunk * kChunk;
  if (a.window > 0) begin = max(begin, max(0, it.context - it.queries + 1 - a.window) / kSlice * kSlice);
  return {begin, max(begin, min(it.context, (it.chunk + 1) * kChunk))};
}

// The items of a block. With bulk copies the first two are its own and the others are drawn from a counter, two items
// ahead, so that a block with a slow path to memory takes fewer. Who computes an item does not change its result.
struct Queue {
  static constexpr int kLength = 4;
  const int* drawn;  // shared memory: item n lies at n % kLength
  int total;

  __device__ int at(int n) const {
    return n < 2 || !OCTAVO_BULK_COPY ? int(blockIdx.x) + n * int(gridDim.x) : drawn[n % kLength];
  }
};

// Walks the slices of one warp over the items of its block, ahead of the arithmetic.
template <class T, int D>
struct Feeder {
  const AttentionArgs& a;
  const Queue& queue;
  const int warp, lane;
  int item, slice, slices, head, begin;  // `item`: the place in the queue that follows the slices at hand
  int block;                             // lane i: the block that holds slice i

  __device__ Feeder(const AttentionArgs& args, const Queue& items)
      : a(args), queue(items), warp(threadIdx.x / 32), lane(threadIdx.x % 32), item(0), slice(0), slices(0), head(0),
        begin(0), block(0) {}

  // Whether there is a slice to bring, up to the item after the `current` one: further ones are not drawn yet.
  __device__ bool ready(int current) {
    if (slice < slices) return true;
    for (; item <= current + 1 || !OCTAVO_BULK_COPY;) {
      const int index = queue.at(item);
      if (index >= queue.total) return false;
      ++item;
      const DecodeItem it = a.decode[index / a.kv_heads];
      const Range range = range_of(a, it);
      slice = 0, slices = max(range.slices(warp), 0);
      if (slices == 0) continue;
      head = index % a.kv_heads;
      begin = range.begin + warp * kSlice;
      if (lane < slices)
        block = a.tables[it.sequence * a.table_stride + (begin + lane * kWarps * kSlice) / a.cache.block_size];
      return true;
    }
    return false;
  }

  __device__ void feed(uint32_t stage, [[maybe_unused]] uint32_t barrier) {
    const int token = begin + slice * kWarps * kSlice;
    const T* k = static_cast<const T*>(a.cache.data) +
                 int64_t(__shfl_sync(~0u, block, slice)) * a.cache.block_stride + head * a.cache.head_stride +
                 (token & (a.cache.block_size - 1)) * D;
    const T* v = k + a.cache.kv_stride;
    constexpr int bytes = slice_bytes<T, D>;
#if OCTAVO_BULK_COPY
    if (lane == 0) {
      barrier_expect(barrier, 2 * bytes);
      const uint64_t policy = read_once_policy();
      copy_bulk(stage, k, bytes, barrier, policy);
      copy_bulk(stage + bytes, v, bytes, barrier, policy);
    }
#else
#pragma unroll
    for (int i = 0; i < bytes; i += 512) {
      copy16(stage + i + lane * 16, reinterpret_cast<const char*>(k) + i + lane * 16);
      copy16(stage + bytes + i + lane * 16, reinterpret_cast<const char*>(v) + i + lane * 16);
    }
#endif
    ++slice;
  }
};

// The slices of one warp that are in shared memory or on their way there.
template <class T, int D>
struct Ring {
  static constexpr int kStageBytes = 2 * slice_bytes<T, D>;
  const uint32_t slots, barriers;
  const int stages;
  int filled = 0, write = 0, read = 0;
  uint32_t parity = 0;

  __device__ Ring(uint32_t memory, uint32_t full, int count) : slots(memory), barriers(full), stages(count) {}

  __device__ void fill(Feeder<T, D>& feeder, int current) {
    while (filled < stages) {
      if (feeder.ready(current)) feeder.feed(slots + write * kStageBytes, barriers + write * 8);
      else if (OCTAVO_BULK_COPY) return;
#if !OCTAVO_BULK_COPY
      commit_copies();  // also when nothing is left: groups are counted
#endif
      ++filled;
      if (++write == stages) write = 0;
    }
  }
  __device__ uint32_t wait() const;
  __device__ void release() {
    __syncwarp();
    --filled;
    if (++read == stages) read = 0, parity ^= 1;
  }
};

#if !OCTAVO_BULK_COPY
__device__ void wait_ring(int stages) {
  switch (stages) {
    case 2: return wait_copies<1>();
    case 3: return wait_copies<2>();
    case 4: return wait_copies<3>();
    case 5: return wait_copies<4>();
    case 6: return wait_copies<5>();
    case 7: return wait_copies<6>();
    default: return wait_copies<7>();
  }
}
#endif

// Waits for the oldest slice and gives its place.
template <class T, int D>
__device__ uint32_t Ring<T, D>::wait() const {
#if OCTAVO_BULK_COPY
  barrier_wait(barriers + read * 8, parity);
#else
  wait_ring(stages);
  __syncwarp();
#endif
  return slots + read * kStageBytes;
}

// Softmax state of one warp: a thread holds row lane / 4 (and, with R = 2, row lane / 4 + 8) of every n-tile.
template <int D, int R>
struct State {
  float m[R], l[R];
  float o[D / 8][4];

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < R; ++r) m[r] = kNoScore, l[r] = 0.0f;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
  }
  __device__ void scale(int r, float factor) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) o[n][2 * r] *= factor, o[n][2 * r + 1] *= factor;
  }

  static constexpr int kFloats = R * (2 + D / 4);
  __device__ void store(float* buffer) const {
    float* p = buffer + threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      p[0] = m[r], p[32] = l[r], p += 64;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) p[0] = o[n][2 * r], p[32] = o[n][2 * r + 1], p += 64;
    }
  }
  __device__ void fold(const float* buffer) {
    const float* p = buffer + threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float top = fmaxf(m[r], p[0]), old_weight = fast_exp2(m[r] - top), new_weight = fast_exp2(p[0] - top);
      m[r] = top, l[r] = l[r] * old_weight + p[32] * new_weight, p += 64;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        o[n][2 * r] = o[n][2 * r] * old_weight + p[0] * new_weight;
        o[n][2 * r + 1] = o[n][2 * r + 1] * old_weight + p[32] * new_weight;
        p += 64;
      }
    }
  }
};

// The query rows of an item as tensor-core fragments: in registers, or read again for each slice where those are full.
template <class T, int D>
struct Queries {
  static constexpr bool kHeld = D <= 128;
  const T* rows[2];  // of rows lane / 4 and lane / 4 + 8; null: padding
  uint32_t held[kHeld ? D / 16 : 1][4];

  __device__ Queries(const AttentionArgs& a, const DecodeItem& it, int head, int count) {
    const int group = a.heads / a.kv_heads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = threadIdx.x % 32 / 4 + 8 * half;
      rows[half] = row < count ? static_cast<const T*>(a.q) + int64_t(it.query_row + row / group) * a.q_stride +
                                     (head * group + row % group) * D + threadIdx.x % 4 * 2
                               : nullptr;
    }
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) read(k, held[k]);
    }
  }
  __device__ void read(int k, uint32_t (&out)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out[i] = rows[i % 2] ? *reinterpret_cast<const uint32_t*>(rows[i % 2] + k * 16 + i / 2 * 8) : 0;
  }
  __device__ void fragment(int k, uint32_t (&out)[4]) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = held[k][i];
    } else {
      read(k, out);
    }
  }
};

// One slice of 16 tokens, the first at position `token`.
template <class T, int D, int R>
__device__ void attend(const AttentionArgs& a, const DecodeItem& it, int group, uint32_t keys, int token,
                       const Queries<T, D>& queries, State<D, R>& st) {
  const int lane = threadIdx.x % 32;
  const uint32_t values = keys + slice_bytes<T, D>;
  const int first_last = it.context - it.queries;  // last key that the first query sees
  const int lowest = a.window > 0 ? first_last + 1 - a.window : 0;
  const int highest_low = a.window > 0 ? it.context - a.window : 0;
  if (token + kSlice > it.context || token < lowest) {
    clear_values<D>(values, kSlice, lowest - token, it.context - token, lane, 32);
    __syncwarp();
  }

  float s[2][4] = {};
  {
    const int row = (lane & 7) + (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t q[4], b[4];
      queries.fragment(k, q);
      ldmatrix(b, keys + row * (D * 2) + swizzle(D, row, 2 * k + (lane >> 3 & 1)) * 16);
      mma<T>(s[0], q, b[0], b[1]);
      mma<T>(s[1], q, b[2], b[3]);
    }
  }

  const bool masked = token + kSlice - 1 > first_last || token < highest_low;
  float p[2][4] = {};
#pragma unroll
  for (int r = 0; r < R; ++r) {
    float x[4] = {s[0][2 * r], s[0][2 * r + 1], s[1][2 * r], s[1][2 * r + 1]};
    if (a.softcap > 0.0f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = tanhf(x[i] * (a.scale / a.softcap)) * (a.softcap * kLog2e);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] *= a.scale * kLog2e;
    }
    if (masked) {
      const int last = first_last + (lane / 4 + 8 * r) / group;
      const int low = a.window > 0 ? last - a.window + 1 : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = token + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (position > last || position < low) x[i] = -INFINITY;
      }
    }
    const float top = fmaxf(st.m[r], quad_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]))));
    if (__any_sync(~0u, top > st.m[r])) {
      const float factor = fast_exp2(st.m[r] - top);
      st.scale(r, factor);
      st.l[r] *= factor;
      st.m[r] = top;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = fast_exp2(x[i] - top);
    st.l[r] += (x[0] + x[1]) + (x[2] + x[3]);
    p[0][2 * r] = x[0], p[0][2 * r + 1] = x[1], p[1][2 * r] = x[2], p[1][2 * r + 1] = x[3];
  }
  const uint32_t weights[4] = {pack<T>(p[0][0], p[0][1]), R == 2 ? pack<T>(p[0][2], p[0][3]) : 0,
                               pack<T>(p[1][0], p[1][1]), R == 2 ? pack<T>(p[1][2], p[1][3]) : 0};
  const int row = lane & 15;
#pragma unroll
  for (int n = 0; n < D / 16; ++n) {
    uint32_t b[4];
    ldmatrix_transposed(b, values + row * (D * 2) + swizzle(D, row, 2 * n + (lane >> 4)) * 16);
    mma<T>(st.o[2 * n], weights, b[0], b[1]);
    mma<T>(st.o[2 * n + 1], weights, b[2], b[3]);
  }
}

template <class T, int D, int R>
__device__ void write_result(const AttentionArgs& a, const DecodeItem& it, int head, int rows,
                             const State<D, R>& st) {
  const int lane = threadIdx.x % 32, group = a.heads / a.kv_heads;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = lane / 4 + 8 * r;
    if (row >= rows) continue;
    const int query_head = head * group + row % group;
    const float factor = normaliser(a, query_head, st.m[r], st.l[r]);
    T* out = static_cast<T*>(a.out) + int64_t(it.query_row + row / group) * a.out_stride + query_head * D;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<uint32_t*>(out + n * 8 + lane % 4 * 2) =
          pack<T>(st.o[n][2 * r] * factor, st.o[n][2 * r + 1] * factor);
  }
}

__device__ int64_t partial_row(const AttentionArgs& a, int slot, int head) {
  return (int64_t(slot) * a.kv_heads + head) * a.partial_rows;
}

template <int D, int R>
__device__ void write_partial(const AttentionArgs& a, const DecodeItem& it, int head, int rows,
                              const State<D, R>& st) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int row = lane / 4 + 8 * r;
    if (row >= rows) continue;
    const int64_t at = partial_row(a, it.slot, head) + row;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<float2*>(a.partial + at * D + n * 8 + lane % 4 * 2) =
          make_float2(st.o[n][2 * r], st.o[n][2 * r + 1]);
    if (lane % 4 == 0) *reinterpret_cast<float2*>(a.partial_sums + at * 2) = make_float2(st.m[r], st.l[r]);
  }
}

// Folds the chunks of one query row: the n-th of kGroups groups takes every kGroups-th chunk from n on, then the groups
// merge in order. The number of threads, chosen by the batch, only says how many groups run at a time.
template <class T, int D, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) fold_kernel(const __grid_constant__ AttentionArgs a) {
  constexpr int kGroups = 8, kAtOnce = kThreads / (D / 4) < kGroups ? kThreads / (D / 4) : kGroups;
  __shared__ float4 outputs[kGroups][D / 4];
  __shared__ float2 sums[kGroups];
  const FoldItem it = a.folds[blockIdx.x];
  wait_for_previous_kernel();
  launch_next_kernel();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) a.header->next_decode = 0;
  const int head = blockIdx.y / a.partial_rows, row = blockIdx.y % a.partial_rows, group = a.heads / a.kv_heads;
  if (it.chunks <= 1 || row >= it.queries * group) return;
  const int part = threadIdx.x / (D / 4), column = threadIdx.x % (D / 4) * 4;
  const int64_t first = partial_row(a, it.first_slot, head) + row, step = int64_t(a.kv_heads) * a.partial_rows;
  for (int n = part; part < kAtOnce && n < kGroups; n += kAtOnce) {
    float m = kNoScore, l = 0.0f;
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int c = n; c < it.chunks; c += kGroups) {
      const float2 sum = __ldcg(reinterpret_cast<const float2*>(a.partial_sums) + first + c * step);
      const float4 x = __ldcg(reinterpret_cast<const float4*>(a.partial + (first + c * step) * D + column));
      const float top = fmaxf(m, sum.x), old_weight = fast_exp2(m - top), weight = fast_exp2(sum.x - top);
      l = l * old_weight + sum.y * weight;
      o.x = o.x * old_weight + x.x * weight, o.y = o.y * old_weight + x.y * weight;
      o.z = o.z * old_weight + x.z * weight, o.w = o.w * old_weight + x.w * weight;
      m = top;
    }
    outputs[n][column / 4] = o;
    if (column == 0) sums[n] = make_float2(m, l);
  }
  __syncthreads();
  if (part > 0) return;
  float m = kNoScore, l = 0.0f;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) m = fmaxf(m, sums[i].x);
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const float weight = fast_exp2(sums[i].x - m);
    const float4 x = outputs[i][column / 4];
    l += sums[i].y * weight;
    o.x += x.x * weight, o.y += x.y * weight, o.z += x.z * weight, o.w += x.w * weight;
  }
  const int query_head = head * group + row % group;
  const float factor = normaliser(a, query_head, m, l);
  T* out = static_cast<T*>(a.out) + int64_t(it.query_row + row / group) * a.out_stride + query_head * D + column;
  *reinterpret_cast<uint2*>(out) = make_uint2(pack<T>(o.x * factor, o.y * factor), pack<T>(o.z * factor, o.w * factor));
}

template <class T, int D>
cudaError_t launch_fold(const AttentionArgs& a, cudaStream_t stream) {
  const dim3 rows(a.sequences, a.kv_heads * a.partial_rows);
  if (rows.x * rows.y > 1024) return launch_after(fold_kernel<T, D, 64>, rows, 64, 0, stream, a);
  return launch_after(fold_kernel<T, D, 256>, rows, 256, 0, stream, a);
}

// R = 1: at most eight query rows; R = 2: at most sixteen.
template <class T, int D, int R>
__global__ void __launch_bounds__(kWarps * 32, D <= 128 ? 2 : 1)
    decode_kernel(const __grid_constant__ AttentionArgs a, const int stages) {
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps][kMaxStages];
  __shared__ int drawn[Queue::kLength];
  const int warp = threadIdx.x / 32, group = a.heads / a.kv_heads;
  constexpr int stage_bytes = Ring<T, D>::kStageBytes;
  Ring<T, D> ring(shared_address(shared) + warp * stages * stage_bytes, shared_address(barriers[warp]), stages);
  float* merge = reinterpret_cast<float*>(shared + kWarps * stages * stage_bytes);

#if OCTAVO_BULK_COPY
  if (threadIdx.x % 32 == 0) {
    for (int i = 0; i < stages; ++i) barrier_init(ring.barriers + i * 8, 1);
    fence_bulk();
  }
  __syncwarp();
#endif
  const Queue queue{drawn, a.header->decode_items * a.kv_heads};
  Feeder<T, D> feeder(a, queue);
  feeder.ready(0);
  wait_for_previous_kernel();
  launch_next_kernel();

  int index = queue.at(0);
  if (index >= queue.total) return;
  DecodeItem it = a.decode[index / a.kv_heads];
  Queries<T, D> queries(a, it, index % a.kv_heads, it.queries * group);
  for (int n = 0;; ++n) {
    [[maybe_unused]] int later = 0;
#if OCTAVO_BULK_COPY
    if (threadIdx.x == 0) later = atomicAdd(&a.header->next_decode, 1) + 2 * int(gridDim.x);
#endif
    ring.fill(feeder, n);
    const Range range = range_of(a, it);
    State<D, R> st;
    st.clear();
    for (int token = range.begin + warp * kSlice; token < range.end; token += kWarps * kSlice) {
      attend<T, D, R>(a, it, group, ring.wait(), token, queries, st);
      ring.release();
      ring.fill(feeder, n);
    }
    if (OCTAVO_BULK_COPY && threadIdx.x == 0) drawn[(n + 2) % Queue::kLength] = later;
#pragma unroll
    for (int r = 0; r < R; ++r) st.l[r] = warp_sum<4>(st.l[r]);

    // The next item's queries come while this one's warps merge.
    const DecodeItem done = it;
    const int head = index % a.kv_heads, rows = done.queries * group;
    index = queue.at(n + 1);
    const bool more = index < queue.total;
    if (more) {
      it = a.decode[index / a.kv_heads];
      queries = Queries<T, D>(a, it, index % a.kv_heads, it.queries * group);
    }
    // Warps 2 and 3 go into 0 and 1, then 1 into 0. Whoever has handed over goes on with the next item at once.
    enum { kFree = 1, kHalves, kQuarter };
    constexpr int floats = State<D, R>::kFloats * 32;
    if (warp >= 2) {
      if (n > 0) barrier_sync(kFree, kWarps * 32);
      st.store(merge + (warp - 2) * floats);
    }
    barrier_sync(kHalves, kWarps * 32);
    if (warp < 2) {
      st.fold(merge + warp * floats);
      if (more) barrier_arrive(kFree, kWarps * 32);
    }
    if (warp == 1) {
      // Warp 0 has read the last item's: it has passed the barrier above.
      st.store(merge + 2 * floats);
      barrier_arrive(kQuarter, 64);
    }
    if (warp == 0) {
      barrier_sync(kQuarter, 64);
      st.fold(merge + 2 * floats);
      if (done.chunks == 1) write_result<T, D, R>(a, done, head, rows, st);
      else write_partial<D, R>(a, done, head, rows, st);
    }
    if (!more) break;
  }
}

template <class T, int D, int R>
cudaError_t launch(const AttentionArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  constexpr int reserved = 1024 + kWarps * kMaxStages * 8 + 16;  // by the system, and the static variables
  constexpr int merge_bytes = 3 * State<D, R>::kFloats * 32 * 4, ring_bytes = kWarps * 2 * slice_bytes<T, D>;
  auto stages_for = [&](int per_multiprocessor) {
    const int room = std::min(device.shared_per_multiprocessor / per_multiprocessor - reserved,
                              device.shared_per_block - reserved);
    return std::min((room - merge_bytes) / ring_bytes, kMaxStages);
  };
  const int resident = D <= 128 && stages_for(2) >= 2 ? 2 : 1, stages = stages_for(resident);
  if (stages < 2) return cudaErrorInvalidConfiguration;
  const int bytes = stages * ring_bytes + merge_bytes;
  auto kernel = decode_kernel<T, D, R>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  error = launch_after(kernel, dim3(device.multiprocessors * resident), kWarps * 32, bytes, stream, a, stages);
  if (error != cudaSuccess) return error;
  return launch_fold<T, D>(a, stream);
}

template <class T, int D>
cudaError_t launch_rows(const AttentionArgs& a, cudaStream_t stream) {
  return a.partial_rows <= 8 ? launch<T, D, 1>(a, stream) : launch<T, D, 2>(a, stream);
}

}  // namespace

cudaError_t decode_attention(const AttentionArgs& a, cudaStream_t stream) {
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.head_dim) {
      case 32: return launch_rows<T, 32>(a, stream);
      case 64: return launch_rows<T, 64>(a, stream);
      case 96: return launch_rows<T, 96>(a, stream);
      case 128: return launch_rows<T, 128>(a, stream);
      case 256: return launch_rows<T, 256>(a, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

}  // namespace octavo
