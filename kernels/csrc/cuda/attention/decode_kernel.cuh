// Paged attention for sequences with few query rows (decoding, speculation): bound by reading K and V once.
//
// An item is one chunk of one sequence for one KV head; the grouped query heads (and tokens) are the rows of one
// tensor-core tile. The grid is fixed and walks the list of items, so one launch shape serves every batch and can be
// captured in a graph. Each warp owns a ring of slices of 16 tokens that it fills and drains alone, across items,
// without any barrier between warps; at the end of an item the four warps merge in a fixed order. Many short items are
// taken otherwise (decode_warp.cuh), and of many whole chunks a block takes runs and merges them. A second, small kernel
// folds the chunks of a sequence in a fixed order ("Flash-Decoding", Dao et al. 2023, with splits that never move). Folded
// here, by the block that counts a sequence's last chunk, all takes 30 % longer: the fence before a counter waits for the
// copies that are under way.
#pragma once

#include <algorithm>

#include "attention/decode_fold.cuh"
#include "attention/decode_pair.cuh"
#include "attention/decode_warp.cuh"

namespace octavo {

// For cells in eight bits: translation units of their own, because each takes a while to compile.
cudaError_t decode_attention_i8(const AttentionArgs&, cudaStream_t);
cudaError_t decode_attention_f8(const AttentionArgs&, cudaStream_t);

namespace {

// True if a kernel merges the chunks of a run; eight bits leave no registers for it.
template <class C, int D>
constexpr bool merges_runs = !is_scaled<C> && D <= kRunDim;

// The items of a block. With bulk copies the first ones are its own and the others are drawn from a counter, so that a
// block with a slow path to memory takes fewer. Which block computes an item does not change its result. During item n every
// warp sees what was drawn up to item n - 1, so places up to n + 2 are known. A run of chunks is one item here if the kernel
// `merges` them.
template <bool merges>
class Queue {
 public:
  static constexpr int kLength = 8, kAhead = 3;
  // Shared memory; item n lies at known[n % kLength].
  struct Places {
    int known[kLength], total, drawn_from, runs, first_run;
  };
  // In the list: the first item, and how many chunks.
  struct Turn {
    int item, chunks;
  };

  __device__ Queue(const AttentionArgs& args, Places& memory, int resident) : a(args), places(memory) {
    if (threadIdx.x == 0) {
      places.runs = merges ? a.header->runs : 0, places.first_run = a.header->first_run;
      places.total = (a.header->decode_items - places.runs * (kRun - 1)) * a.kv_heads;
      const int owners = owning_blocks(a, resident);
      places.drawn_from = kAhead * owners;
      const bool owns = int(blockIdx.x) < owners || !OCTAVO_BULK_COPY;
      const int first = owns ? block_rank(owners) : draw(kAhead);
      for (int n = 0; n < kAhead; ++n) places.known[n] = first + n * (owns ? owners : 1);
    }
    sync_warps();
  }
  __device__ int total() const { return places.total; }
  __device__ int at(int n) const {
    return OCTAVO_BULK_COPY ? places.known[n % kLength] : int(blockIdx.x) + n * int(gridDim.x);
  }
  __device__ Turn turn(int place) const {
    const int n = place / a.kv_heads, run = merges ? n - places.first_run : -1;
    if (run < 0) return {n, 1};
    return run < places.runs ? Turn{n + run * (kRun - 1), kRun} : Turn{n + places.runs * (kRun - 1), 1};
  }
  // Called by one thread, at the beginning and at the end of item n.
  __device__ int draw(int count = 1) const { return atomicAdd(&a.header->next_decode, count) + places.drawn_from; }
  __device__ void keep(int n, int place) { places.known[(n + kAhead) % kLength] = place; }

 private:
  const AttentionArgs& a;
  Places& places;
};

// Walks the slices of one warp over the items of its block, ahead of the arithmetic. With bulk copies the item after the
// one at hand is read when that begins, and its blocks are looked up one slice later, so that no warp waits for either;
// elsewhere the registers are needed for addresses.
template <class C, int D>
struct Feeder {
  const AttentionArgs& a;
  const Queue<merges_runs<C, D>>& queue;
  const int warp, lane;
  int item, slice, slices, head, begin;  // `item`: the place in the queue that follows the slices at hand
  int block, next_block;                 // lane i: the block that holds slice i, at hand and of the next item
  int next_index, next_chunks;
  bool looked_up;
  DecodeItem next;

  __device__ Feeder(const AttentionArgs& args, const Queue<merges_runs<C, D>>& items)
      : a(args), queue(items), warp(threadIdx.x / 32), lane(threadIdx.x % 32), item(0), slice(0), slices(0), head(0),
        begin(0), block(0), next_block(0) {
    if (OCTAVO_BULK_COPY) read();
  }

  __device__ void read() {
    next_index = queue.at(item);
    if (next_index < queue.total()) {
      const auto turn = queue.turn(next_index);
      next = a.decode[turn.item], next_chunks = turn.chunks;
    }
    looked_up = false;
  }
  __device__ void look_up() {
    if (next_index >= queue.total()) return;
    const Range range = range_of(a, next, next_chunks);
    if (lane < range.slices(warp))
      next_block = a.tables[next.sequence * a.table_stride +
                            (range.begin + (warp + lane * kWarps) * kSlice) / a.cache.block_size];
    looked_up = true;
  }

  // True if there is a slice to bring, up to the item after the `current` one.
  __device__ bool ready(int current) {
    if (slice < slices) {
      if (OCTAVO_BULK_COPY && !looked_up) look_up();
      return true;
    }
    for (; item <= current + 1 || !OCTAVO_BULK_COPY;) {
      if (!OCTAVO_BULK_COPY) read();
      if (next_index >= queue.total()) return false;
      if (!looked_up) look_up();
      const Range range = range_of(a, next, next_chunks);
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

template <class C, int D, int R>
constexpr bool supplies = OCTAVO_UNEVEN && fits_one_warp<C, D, R>;

// R = 1: at most eight query rows of a sequence; R = 2: at most sixteen. kPairs: with R = 1, items of groups have sixteen, too.
template <class T, class C, int D, int R, bool kPairs>
__global__ void __launch_bounds__(kWarps * 32 * (1 + supplies<C, D, R>), blocks_that_fit<D>)
    decode_kernel(const __grid_constant__ AttentionArgs a, const int stages, const int resident) {
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps][kMaxStages];
  __shared__ typename Queue<merges_runs<C, D>>::Places places;
#if OCTAVO_UNEVEN
  if constexpr (supplies<C, D, R>) {
    static_assert(sizeof(Handover<T, D>) * kWarps <= Exchange<D, R>::kBytes);
    const bool alone = a.header->alone;
    if (alone && a.prefix && comes_too_late(a, resident)) return;
    if (threadIdx.x / 32 >= kWarps) {
      give_registers<kSupplierRegisters>();
      if (alone) supply_alone<T, D>(a, shared, stages_alone(a, stages), resident);
      return;
    }
    take_registers<kTakerRegisters>();
    if (alone) return take_alone<T, D>(a, shared, stages_alone(a, stages));
  }
#endif
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
  Queue<merges_runs<C, D>> queue(a, places, resident);
  Feeder<C, D> feeder(a, queue);
#if OCTAVO_BULK_COPY
  // Parts of a split query are left out: what is before one of them may be of another.
  if (a.history_ready && !beside_tiles(a) && a.partial_rows == group) {
    const int history = feeder.next.context - feeder.next.queries;
    ring.fill_history(feeder, history);
  }
#endif
  feeder.ready(0);
  int index = queue.at(0);
  const bool works = index < queue.total();
  DecodeItem it{};
  int chunks = 1;
  auto read_item = [&] {
    const auto turn = queue.turn(index);
    it = a.decode[turn.item], chunks = turn.chunks;
  };
  if (works) read_item();
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
  auto queries = read_queries([&] {
    if (!beside_tiles(a)) wait_for_previous_kernel();
    launch_next_kernel();
  });
  if (!works) return;
  for (int n = 0;; ++n) {
    [[maybe_unused]] int later = 0;
#if OCTAVO_BULK_COPY
    if (threadIdx.x == 0) later = queue.draw();
#endif
    ring.fill(feeder, n);
    const Range range = range_of(a, it, chunks);
    StateFor<C, D, R> st;
    constexpr int step = kWarps * kSlice;
    int token = range.begin + warp * kSlice;
    auto advance = [&](auto slices) {
      constexpr int N = decltype(slices)::value;
      uint32_t keys[N];
      ring.wait(keys);
      if constexpr (is_scaled<C>) attend_cells<C>(a, it, group, keys, token, queries, st);
      else attend<T, D>(a, it, group, keys[0], token, queries, st);
      ring.release(N);
      ring.fill(feeder, n);
      token += N * step;
    };
    const DecodeItem done = it;
    const int head = index % a.kv_heads, rows = row_count(done, group);
    const Exchange<D, R> exchange(shared + kWarps * stages * stage_bytes);
    bool more = true;
    if constexpr (kPairs) {
      if (rows > 8) {
        auto read_next = [&] {
          index = queue.at(n + 1);
          more = index < queue.total();
          if (more) read_item(), queries = read_queries([] {});
        };
        auto all_slices = [&](auto&& attend_one) {
          for (; token < range.end; token += step) {
            uint32_t keys[1];
            ring.wait(keys);
            attend_one(keys[0]);
            ring.release(1);
            ring.fill(feeder, n);
          }
          if (OCTAVO_BULK_COPY && threadIdx.x == 0) queue.keep(n, later);
        };
        take_pair<T, D>(a, done, head, queries, exchange, all_slices, read_next);
        if (!more) break;
        continue;
      }
    }
    [[maybe_unused]] Folded<Exchange<D, R>::kFours> merged;  // the chunks of a run until now
    static_assert(!merges_runs<C, D> || Exchange<D, R>::kFours == Exchange<D, R>::kMine);  // all that the thread has
#pragma unroll 1
    for (int c = 0, last = false; !last; ++c) {
      const int end = min(range.end, (done.chunk + c + 1) * kChunk);
      last = !merges_runs<C, D> || end == range.end;
      st.clear();
      if constexpr (kAtOnce > 1)
        while (token + (kAtOnce - 1) * step < end) advance(std::integral_constant<int, kAtOnce>{});
      while (token < end) advance(std::integral_constant<int, 1>{});
      if (OCTAVO_BULK_COPY && last && threadIdx.x == 0) queue.keep(n, later);
      finish(st);

      // The next item's queries come while this one's warps merge. Before that the state's registers would be missing.
      sync_warps();  // what was left of the last chunk has been read
      exchange.leave(st);
      if (last) {
        index = queue.at(n + 1);
        more = index < queue.total();
        if (more) read_item(), queries = read_queries([] {});
      }
      sync_warps();
      exchange.join(rows, [&](int row, int column, auto f) {
        if constexpr (merges_runs<C, D>) {
          if (c > 0) {
            merged.join(f);
            f = merged;
          }
          merged = f;
          if (!last) return;
        }
        constexpr int apart = Exchange<D, R>::kApart;
        if (done.chunks != 1) return write_partial<D>(a, head, row_of(a, done, row, group), column, f, apart);
        with_result_type<T, C>(a, [&](auto tag) {
          write_folded<decltype(tag)>(a, done.query_row, head, row, column, f, apart);
        });
      });
    }
    if (!more) break;
  }
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
  auto kernel = decode_kernel<T, C, D, R, false>;
  if constexpr (R == 1 && !is_scaled<C>)
    if (a.rows) kernel = decode_kernel<T, C, D, R, true>;
  const int threads = kWarps * 32 * (1 + (fits_one_warp<C, D, R> && runs_hopper_code(device)));
  const Launch how{dim3(device.multiprocessors * resident), threads, stages * ring_bytes + rest};
  cudaError_t error = launch_after(kernel, how, stream, a, stages, resident);
  if (error != cudaSuccess) return error;
  const Merges merges{merges_runs<C, D>, prefix_merges_runs(device, D, a.softcap)};
  with_result_type<T, C>(a, [&](auto tag) { error = launch_fold<decltype(tag), D>(a, device, merges, stream); });
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
