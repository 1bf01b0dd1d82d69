// Paged attention for sequences with few query rows (decoding, speculation): bound by reading K and V once.
//
// An item is one chunk of one sequence for one KV head; the grouped query heads (and tokens) are the rows of one
// tensor-core tile. The grid is fixed and walks the list of items, so one launch shape serves every batch and can be
// captured in a graph. Each warp owns a ring of slices of 16 tokens that it fills and drains alone, across items,
// without any barrier between warps; at the end of an item the four warps merge in a fixed order. A second, small kernel
// folds the chunks of a sequence in a fixed order ("Flash-Decoding", Dao et al. 2023, with splits that never move). Folded
// here, by the block that counts a sequence's last chunk, all takes 30 % longer: the fence before a counter waits for the
// copies that are under way.
#pragma once

#include <algorithm>

#include "decode_warp.cuh"

namespace octavo {

// For cells in eight bits: translation units of their own, because each takes a while to compile.
cudaError_t decode_attention_i8(const AttentionArgs&, cudaStream_t);
cudaError_t decode_attention_f8(const AttentionArgs&, cudaStream_t);

namespace {

// The items of a block. With bulk copies the first ones are its own and the others are drawn from a counter, so that a
// block with a slow path to memory takes fewer. Who computes an item does not change its result. During item n every
// warp sees what was drawn up to item n - 1, so places up to n + 2 are known.
class Queue {
 public:
  static constexpr int kLength = 8, kAhead = 3;
  // Shared memory; item n lies at known[n % kLength].
  struct Places {
    int known[kLength], total, drawn_from;
  };

  __device__ Queue(const AttentionArgs& args, Places& memory, int resident) : a(args), places(memory) {
    if (threadIdx.x == 0) {
      places.total = a.header->decode_items * a.kv_heads;
      const int owners = owning_blocks(a, resident);
      places.drawn_from = kAhead * owners;
      const bool owns = int(blockIdx.x) < owners || !OCTAVO_BULK_COPY;
      const int first = owns ? block_rank(owners) : draw(kAhead);
      for (int n = 0; n < kAhead; ++n) places.known[n] = first + n * (owns ? owners : 1);
    }
    __syncthreads();
  }
  __device__ int total() const { return places.total; }
  __device__ int at(int n) const {
    return OCTAVO_BULK_COPY ? places.known[n % kLength] : int(blockIdx.x) + n * int(gridDim.x);
  }
  // Of one thread, at the beginning and at the end of item n.
  __device__ int draw(int count = 1) const { return atomicAdd(&a.header->next_decode, count) + places.drawn_from; }
  __device__ void keep(int n, int place) { places.known[(n + kAhead) % kLength] = place; }

 private:
  const AttentionArgs& a;
  Places& places;
};

// Walks the slices of one warp over the items of its block, ahead of the arithmetic. With bulk copies the item after the
// one at hand is read when that begins, and its blocks are looked up one slice later, so that nobody waits for either;
// elsewhere the registers are needed for addresses.
template <class C, int D>
struct Feeder {
  const AttentionArgs& a;
  const Queue& queue;
  const int warp, lane;
  int item, slice, slices, head, begin;  // `item`: the place in the queue that follows the slices at hand
  int block, next_block;                 // lane i: the block that holds slice i, at hand and of the next item
  int next_index;
  bool looked_up;
  DecodeItem next;

  __device__ Feeder(const AttentionArgs& args, const Queue& items)
      : a(args), queue(items), warp(threadIdx.x / 32), lane(threadIdx.x % 32), item(0), slice(0), slices(0), head(0),
        begin(0), block(0), next_block(0) {
    if (OCTAVO_BULK_COPY) read();
  }

  __device__ void read() {
    next_index = queue.at(item);
    if (next_index < queue.total()) next = a.decode[next_index / a.kv_heads];
    looked_up = false;
  }
  __device__ void look_up() {
    if (next_index >= queue.total()) return;
    const Range range = range_of(a, next);
    if (lane < range.slices(warp))
      next_block = a.tables[next.sequence * a.table_stride +
                            (range.begin + (warp + lane * kWarps) * kSlice) / a.cache.block_size];
    looked_up = true;
  }

  // Whether there is a slice to bring, up to the item after the `current` one.
  __device__ bool ready(int current) {
    if (slice < slices) {
      if (OCTAVO_BULK_COPY && !looked_up) look_up();
      return true;
    }
    for (; item <= current + 1 || !OCTAVO_BULK_COPY;) {
      if (!OCTAVO_BULK_COPY) read();
      if (next_index >= queue.total()) return false;
      if (!looked_up) look_up();
      const Range range = range_of(a, next);
      slice = 0, slices = max(range.slices(warp), 0), head = next_index % a.kv_heads;
      begin = range.begin + warp * kSlice, block = next_block;
      ++item;
      if (OCTAVO_BULK_COPY) read();
      if (slices > 0) return true;
    }
    return false;
  }

  __device__ bool has_first() { return ready(0) && item == 1; }
  __device__ int token() const { return begin + slice * kWarps * kSlice; }  // the first of the slice that comes next
  __device__ void feed(uint32_t stage, uint32_t barrier) {
    bring_slice<C, D>(a, __shfl_sync(~0u, block, slice), head, token(), stage, barrier);
    ++slice;
  }
};

// The same for no more chunks than groups: all loads are under way at once, in few registers.
template <int D>
__device__ Folded fold_few(const AttentionArgs& a, const FoldItem& it, int head, int row, int column) {
  const int64_t first = partial_row(a, it.first_slot, head) + row, step = int64_t(a.kv_heads) * a.partial_rows;
  float2 sum[kFoldGroups];
  float4 x[kFoldGroups];
#pragma unroll
  for (int c = 0; c < kFoldGroups; ++c) {
    if (c >= it.chunks) break;
    sum[c] = __ldcg(reinterpret_cast<const float2*>(a.partial_sums) + first + c * step);
    x[c] = __ldcg(reinterpret_cast<const float4*>(a.partial + (first + c * step) * D + column));
  }
  Folded f;
  f.clear();
#pragma unroll
  for (int c = 0; c < kFoldGroups; ++c)
    if (c < it.chunks) f.m = fmaxf(f.m, sum[c].x);
#pragma unroll
  for (int c = 0; c < kFoldGroups; ++c)
    if (c < it.chunks) f.add(fast_exp2(__fsub_rn(sum[c].x, f.m)), sum[c].y, x[c]);
  return f;
}

// Folds the chunks of query rows: kRows a block, side by side, or one after the other by all its threads. With `few` only
// sequences of few chunks are folded side by side, which leaves room for more blocks. A block takes the same rows of all
// parts of a sequence, or of every gridDim.z-th one. The batch chooses kRows, `few` and the number of threads, and none
// changes a result.
template <class T, int D, int kThreads, int kRows, bool few>
__global__ void __launch_bounds__(kThreads, (few ? 768 : 512) / kThreads)
    fold_kernel(const __grid_constant__ AttentionArgs a) {
  const FoldItem all = a.folds[blockIdx.x];
  wait_for_previous_kernel();
  launch_next_kernel();
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) a.header->next_decode = 0;
  if (all.chunks <= 1) return;
  const int group = a.heads / a.kv_heads, queries = a.partial_rows / group;  // of a part
  const int mine = blockIdx.y * kRows + threadIdx.x / (D / 4), column = threadIdx.x % (D / 4) * 4;
  if (few && all.chunks <= kFoldGroups && all.queries <= queries) {
    const int head = mine / a.partial_rows, row = mine % a.partial_rows;
    if (head < a.kv_heads && row < all.queries * group && int(threadIdx.x) < kRows * (D / 4))
      write_folded<T>(a, all.query_row, head, row, column, fold_few<D>(a, all, head, row, column));
    return;
  }
  for (int part = blockIdx.z; part * queries < all.queries; part += gridDim.z) {
    const FoldItem it{all.first_slot + part * all.chunks, all.chunks, all.query_row + part * queries,
                      min(all.queries - part * queries, queries)};
    if constexpr (kRows > 1 && !few) {
      const int head = mine / a.partial_rows, row = mine % a.partial_rows;
      if (head < a.kv_heads && row < it.queries * group && int(threadIdx.x) < kRows * (D / 4))
        write_folded<T>(a, it.query_row, head, row, column, fold_columns<D>(a, it, head, row, column));
    } else {
      __shared__ float4 outputs[kFoldGroups][D / 4];
      __shared__ float2 sums[kFoldGroups];
      for (int place = blockIdx.y * kRows; place < (int(blockIdx.y) + 1) * kRows; ++place) {
        const int head = place / a.partial_rows, row = place % a.partial_rows;
        if (head >= a.kv_heads || row >= it.queries * group) continue;
        fold_row<T, D, kThreads>(a, it, head, row, outputs, sums);
        __syncthreads();  // before the next row's sums replace these
      }
    }
  }
}

// Where sequences share prefixes, most have few chunks.
template <class T, int D>
cudaError_t launch_fold(const AttentionArgs& a, cudaStream_t stream) {
  constexpr int kRows = 128 / (D / 4);
  const int rows = a.kv_heads * a.partial_rows, parts = a.extends && a.window == 0 ? kSplitRows / kDecodeRows : 1;
  if (a.sequences * rows <= (a.prefix ? 1024 : 512))
    return launch_after(fold_kernel<T, D, 256, 1, false>, dim3(a.sequences, rows, parts), 256, 0, stream, a);
  const dim3 grid(a.sequences, (rows + kRows - 1) / kRows);
  auto kernel = a.prefix ? fold_kernel<T, D, 128, kRows, true> : fold_kernel<T, D, 128, kRows, false>;
  return launch_after(kernel, grid, 128, 0, stream, a);
}

// Kernels over eight bits are the same for both types of 16-bit data, which T does not tell: calls f with a value of it.
template <class T, class C, class F>
__host__ __device__ inline void with_result_type(const AttentionArgs& a, F&& f) {
  if constexpr (!is_scaled<C>) f(T{});
  else if (a.dtype == Dtype::bf16) f(bf16{});
  else f(f16{});
}

// Shared memory for the queries of one warp.
template <class C, int D, int R>
constexpr int query_bytes = is_scaled<C> ? HalfQueries<D, R>::kBytes : 0;
template <class C, int D>
constexpr int at_once = is_scaled<C> ? slices_at_once<D> : 1;

// As many blocks as the registers of a multiprocessor have room for.
template <int D>
constexpr int blocks_that_fit = D > 128 ? 1 : 2;

// R = 1: at most eight query rows; R = 2: at most sixteen.
template <class T, class C, int D, int R>
__global__ void __launch_bounds__(kWarps * 32, blocks_that_fit<D>)
    decode_kernel(const __grid_constant__ AttentionArgs a, const int stages, const int resident) {
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps][kMaxStages];
  __shared__ Queue::Places places;
  const int warp = threadIdx.x / 32, group = a.heads / a.kv_heads;
  constexpr int stage_bytes = Ring<C, D>::kStageBytes;
  [[maybe_unused]] constexpr int kAtOnce = at_once<C, D>;
  Ring<C, D> ring(shared_address(shared) + warp * stages * stage_bytes, shared_address(barriers[warp]), stages);
  [[maybe_unused]] const uint32_t own =
      shared_address(shared) + kWarps * stages * stage_bytes + Exchange<D, R>::kBytes + warp * query_bytes<C, D, R>;

#if OCTAVO_BULK_COPY
  if (threadIdx.x % 32 == 0) {
    for (int i = 0; i < stages; ++i) barrier_init(ring.barriers + i * 8, 1);
    fence_bulk();
  }
  __syncwarp();
#endif
  if constexpr (fits_one_warp<C, D, R>) {
    if (takes_alone(a)) {
      static_assert(Exchange<D, R>::kBytes >= kWarps * D * 32);
      float* columns = reinterpret_cast<float*>(shared + kWarps * stages * stage_bytes) + warp * (D * 8) + threadIdx.x % 32;
      return take_alone<T, D>(a, ring, columns, resident);
    }
  }
  Queue queue(a, places, resident);
  Feeder<C, D> feeder(a, queue);
#if OCTAVO_BULK_COPY
  // Parts of a split query are left out: what is before one of them may be of another.
  if (a.settled && !a.prefix && a.partial_rows == group) {
    const int settled = feeder.next.context - feeder.next.queries;
    ring.fill_settled(feeder, settled);
  }
#endif
  feeder.ready(0);
  int index = queue.at(0);
  const bool works = index < queue.total();
  DecodeItem it{};
  if (works) it = a.decode[index / a.kv_heads];
  auto locate = [&](int row) { return row_of(a, it, row, group); };
  // `before`: what happens once they are found, before they are read.
  auto read_queries = [&](auto&& before) {
    const int head = index % a.kv_heads, count = row_count(it, group);
    if constexpr (is_scaled<C>) {
      before();
      return HalfQueries<D, R>(a, head, count, locate, own);
    } else {
      Queries<T, D, R> queries(a, head, count, locate);
      before();
      queries.hold();
      return queries;
    }
  };
  // After the prefix kernel there is nothing to wait for: its blocks let this one begin when the queries and keys were
  // there, and nothing of theirs is read here.
  auto queries = read_queries([&] {
    if (!a.prefix) wait_for_previous_kernel();
    launch_next_kernel();
  });
  if (!works) return wait_for_previous_kernel();
  for (int n = 0;; ++n) {
    [[maybe_unused]] int later = 0;
#if OCTAVO_BULK_COPY
    if (threadIdx.x == 0) later = queue.draw();
#endif
    ring.fill(feeder, n);
    const Range range = range_of(a, it);
    StateFor<C, D, R> st;
    st.clear();
    constexpr int step = kWarps * kSlice;
    int token = range.begin + warp * kSlice;
    auto advance = [&](auto slices) {
      constexpr int N = decltype(slices)::value;
      uint32_t keys[N];
      ring.wait(keys);
      if constexpr (is_scaled<C>) attend_cells<C>(a, it, group, keys, token, queries, st);
      else attend<T, D, R>(a, it, group, keys[0], token, queries, st);
      ring.release(N);
      ring.fill(feeder, n);
      token += N * step;
    };
    if constexpr (kAtOnce > 1)
      while (token + (kAtOnce - 1) * step < range.end) advance(std::integral_constant<int, kAtOnce>{});
    while (token < range.end) advance(std::integral_constant<int, 1>{});
    if (OCTAVO_BULK_COPY && threadIdx.x == 0) queue.keep(n, later);
    finish(st);

    // The next item's queries come while this one's warps merge. Before that the state's registers would be missing.
    const DecodeItem done = it;
    const int head = index % a.kv_heads, rows = row_count(done, group);
    const Exchange<D, R> exchange(shared + kWarps * stages * stage_bytes);
    __syncthreads();  // what was left of the last item has been read
    exchange.leave(st);
    index = queue.at(n + 1);
    const bool more = index < queue.total();
    if (more) {
      it = a.decode[index / a.kv_heads];
      queries = read_queries([] {});
    }
    __syncthreads();
    exchange.join(rows, [&](int row, int column, const Folded& f) {
      if (done.chunks != 1) return write_partial<D>(a, head, row_of(a, done, row, group), column, f);
      with_result_type<T, C>(a, [&](auto tag) { write_folded<decltype(tag)>(a, done.query_row, head, row, column, f); });
    });
    if (!more) break;
  }
  if (a.prefix) wait_for_previous_kernel();  // so that the fold, which waits for this kernel, finds both's results
}

template <class T, class C, int D, int R>
cudaError_t launch(const AttentionArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  constexpr int reserved = 1024 + kWarps * kMaxStages * 8 + 16;  // by the system, and the static variables
  constexpr int ring_bytes = kWarps * 2 * slice_bytes<C, D>;
  constexpr int rest = Exchange<D, R>::kBytes + kWarps * query_bytes<C, D, R>;
  auto stages_for = [&](int per_multiprocessor) {
    const int room = std::min(device.shared_per_multiprocessor / per_multiprocessor - reserved,
                              device.shared_per_block - reserved);
    return std::min((room - rest) / ring_bytes, kMaxStages);
  };
  constexpr int least = std::max(2, at_once<C, D>);
  // Over eight bits there is more to compute for each byte, and the registers (up to 168) are enough for three.
  int resident = D > 128 ? 1 : is_scaled<C> && R == 1 ? 3 : 2;
  while (resident > 1 && stages_for(resident) < least) --resident;
  const int stages = stages_for(resident);
  if (stages < least) return cudaErrorInvalidValue;  // too little shared memory: plain kernels
  const int bytes = stages * ring_bytes + rest;
  auto kernel = decode_kernel<T, C, D, R>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  error = launch_after(kernel, dim3(device.multiprocessors * resident), kWarps * 32, bytes, stream, a, stages, resident);
  if (error != cudaSuccess) return error;
  with_result_type<T, C>(a, [&](auto tag) { error = launch_fold<decltype(tag), D>(a, stream); });
  return error;
}

template <class T, class C>
cudaError_t launch(const AttentionArgs& a, cudaStream_t stream) {
  auto run = [&](auto dim) {
    constexpr int D = decltype(dim)::value;
    return a.partial_rows <= 8 ? launch<T, C, D, 1>(a, stream) : launch<T, C, D, 2>(a, stream);
  };
  if constexpr (is_scaled<C>) return with_common_head_dim(a.head_dim, run);
  else return with_head_dim(a.head_dim, run);
}

}  // namespace
}  // namespace octavo
