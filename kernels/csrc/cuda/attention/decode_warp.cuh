// Many short items: each warp takes whole ones alone. Four warps that share an item wait for its queries and for each
// other about as long as its 128 tokens take to come; here no warp waits for another, and the others hide its own waits.
//
// Beside each of these warps another one supplies it: it looks up items and blocks and brings queries and slices. A warp
// that did both would spend a third of its time on copies, and wait for each look-up when its next slice begins.
//
// A warp takes the lanes of the chunk one after the other, each from a cleared state, and joins them in their order with
// the steps of `Exchange`: which warp takes an item never shows in a result.
#pragma once

#include "attention/decode_ring.cuh"

namespace octavo {
namespace {

// True if the warps of a kernel may take items alone: where registers can be shared out unevenly. Its blocks are twice as
// large then, and the second half supplies the first.
template <class C, int D, int R>
constexpr bool fits_one_warp = !is_scaled<C> && D <= kRunDim && R == 1;
constexpr int kTakerRegisters = 200, kSupplierRegisters = 56;

#if OCTAVO_UNEVEN

// Requests of streams wait in the memory's queues as soon as they are more than the memory gives in its latency, and so does
// what tiles of prefixes ask for: two slices of each warp keep the memory as busy beside them as three.
constexpr int kStagesBesideTiles = 2;
__device__ inline int stages_alone(const AttentionArgs& a, int stages) {
  return beside_tiles(a) ? min(stages, kStagesBesideTiles) : stages;
}

// True if a block found room only when all items had been handed out, which all of its threads ask: it would hold up the
// fold. No part of the kernel, whose registers would be missing elsewhere.
__device__ __noinline__ bool comes_too_late(const AttentionArgs& a, int resident) {
  const int owners = owning_blocks(a, resident);
  if (int(blockIdx.x) < owners) return false;
  return __syncthreads_and(__ldcg(&a.header->next_decode) + owners * kWarps >= a.header->decode_items * a.kv_heads);
}

// Shared memory of a warp and its supplier besides slices: their barriers, and what comes with an item. Every
// lane tells what it has read or written, because a lane that spoke for all would vouch only for itself.
template <class T, int D>
struct Handover {
  uint64_t brought[kMaxStages], taken[kMaxStages], handed, read;
  T queries[8][D];  // permuted as the cache is
  DecodeItem item;  // without queries: there is none
  int head, drawn_from, padding[2];
};

// The same and the ring of slices as one of the two sees them.
template <class T, int D>
struct Link {
  static constexpr int kStageBytes = 2 * slice_bytes<T, D>;
  Handover<T, D>& hand;
  const uint32_t slots;
  const int stages;
  int at = 0;  // in the ring
  uint32_t parity = 0, hand_parity = 0;

  // The slices of all warps lie first in `memory`.
  __device__ Link(char* memory, int warp, int count)
      : hand(reinterpret_cast<Handover<T, D>*>(memory + kWarps * count * kStageBytes)[warp]),
        slots(shared_address(memory) + warp * count * kStageBytes), stages(count) {}
  __device__ void init() const {
    for (int i = 0; i < stages; ++i)
      barrier_init(shared_address(&hand.brought[i]), 1), barrier_init(shared_address(&hand.taken[i]), 32);
    barrier_init(handed(), 32), barrier_init(read(), 32);
    fence_bulk();
  }
  __device__ uint32_t slice() const { return slots + at * kStageBytes; }
  __device__ uint32_t brought() const { return shared_address(&hand.brought[at]); }
  __device__ uint32_t taken() const { return shared_address(&hand.taken[at]); }
  __device__ uint32_t handed() const { return shared_address(&hand.handed); }
  __device__ uint32_t read() const { return shared_address(&hand.read); }
  // Where 16 bytes of a query row lie.
  __device__ uint32_t query(int row, int unit) const {
    return shared_address(hand.queries[row]) + swizzle(D, row, unit) * 16;
  }
  __device__ void advance() {
    if (++at == stages) at = 0, parity ^= 1;
  }
};

// The first item is the warp's own, the others are drawn from a counter while the one before is brought.
template <class T, int D>
class Supplier {
 public:
  __device__ Supplier(const AttentionArgs& args, Link<T, D> with, int warp, int resident)
      : a(args), link(with), lane(threadIdx.x % 32), group(args.heads / args.kv_heads) {
    const int blocks = owning_blocks(a, resident);
    drawn = block_rank(blocks) + warp * blocks;
    if (lane == 0) link.hand.drawn_from = blocks * kWarps;
    known = int(blockIdx.x) < blocks ? kDrawn : kHanded;
  }
  __device__ void supply() {
#pragma unroll 1
    while (known < kPlaced) prepare();
    if (any) adopt();
    // No more before the previous kernel has ended, because the queries would queue behind it.
    const bool history_ready = a.history_ready && !beside_tiles(a) && a.partial_rows == group && slice < slices &&
                         begin + kSlice <= item.context - item.queries;
    if (history_ready) feed();
    if (!beside_tiles(a)) wait_for_previous_kernel();
    launch_next_kernel();
    prepare();
    for (int i = history_ready; i < link.stages && slice < slices; ++i) feed();
    while (any) {
      known = 0;
      do {
        prepare();
        if (slice < slices) feed();
      } while (slice < slices || known < kAsked);
      if (any) adopt();
    }
    hand();
  }

 private:
  // How far it is with the item that comes next: the one before has been handed over; its number has been drawn, itself been
  // read, the places of its keys been looked up; its queries are on their way.
  enum Step { kHanded = 1, kDrawn, kRead, kPlaced, kAsked };
  const AttentionArgs& a;
  Link<T, D> link;
  const int lane, group;
  int drawn;      // of the first thread
  int known;
  bool any = false;       // whether there is one
  DecodeItem item;
  int next_head, next_block;
  int slice = 0, slices = 0, head, begin, block;  // at hand; lane i: the block that holds slice i

  // One more step towards the next item; what a step reads is needed by the one after.
  __device__ void prepare() {
    if (known == 0) {
      hand();
    } else if (known == kHanded) {
      if (lane == 0) drawn = atomicAdd(&a.header->next_decode, 1) + link.hand.drawn_from;
    } else if (known == kDrawn) {
      const int index = __shfl_sync(~0u, drawn, 0), place = index / a.kv_heads;
      any = index < a.header->decode_items * a.kv_heads;
      item = any ? a.decode[place] : DecodeItem{};
      next_head = index - place * a.kv_heads;
    } else if (known == kRead) {
      const Range range = range_of(a, item);
      const int token = range.begin + lane * kSlice;
      if (token < range.end)
        next_block = a.tables[item.sequence * a.table_stride + (token >> (__ffs(a.cache.block_size) - 1))];
    } else if (known == kPlaced) {
      ask();
    }
    known = min(known + 1, int(kAsked));
  }
  __device__ void adopt() {
    const Range range = range_of(a, item);
    head = next_head, begin = range.begin, slice = 0, slices = (range.end - range.begin + kSlice - 1) / kSlice;
    block = next_block;
  }
  // For the queries, as soon as those of the item before have been read.
  __device__ void ask() {
    barrier_wait(link.read(), link.hand_parity ^ 1);
    link.hand_parity ^= 1;
    const int rows = row_count(item, group);
    constexpr int units = D / 8;
#pragma unroll 1
    for (int i = lane; i < 8 * units; i += 32) {
      const int row = i / units, unit = i % units;
      const T* from = static_cast<const T*>(a.q);
      if (row < rows) {
        const QueryRow at = row_of(a, item, row, group);
        from += int64_t(at.token) * a.q_stride + (next_head * group + at.row % group) * D + unit * 8;
      }
      copy16(link.query(row, unit), from, row < rows);
    }
    commit_copies();
  }
  // Most of the slices of the item before have been taken by now: the queries are there.
  __device__ void hand() {
    wait_copies<0>();
    if (lane == 0) link.hand.item = item, link.hand.head = next_head;
    barrier_arrive_once(link.handed());
  }
  __device__ void feed() {
    barrier_wait(link.taken(), link.parity ^ 1);
    bring_slice<T, D>(a, __shfl_sync(~0u, block, slice), head, begin + slice * kSlice, link.slice(), link.brought());
    link.advance();
    const int of = slice % kLanes + 1;  // the lane that comes next
    slice = slice + kLanes < slices ? slice + kLanes : of < min(kLanes, slices) ? of : slices;
  }
};

// Called by all threads, before the warps and their suppliers meet.
__device__ inline void sync_roles() { barrier_sync(2, 2 * kWarps * 32); }

template <class T, int D>
__device__ void supply_alone(const AttentionArgs& a, char* memory, int stages, int resident) {
  const int warp = threadIdx.x / 32 - kWarps;
  Supplier<T, D> supplier(a, Link<T, D>(memory, warp, stages), warp, resident);
  sync_roles();
  supplier.supply();
}

// A sequence of one chunk needs no fold. `token` and `query_head`: those of the row lane / 4, below `rows` or not.
template <class T, int D>
__device__ void write_result(const AttentionArgs& a, int rows, int token, int query_head, const State<D, 1>& st) {
  const bool real = threadIdx.x % 32 / 4 < rows;
  const float2 factor = st.of_outputs(real ? normaliser(a, query_head, st.m[0], st.l[0]) : 0.0f);
  T* out = static_cast<T*>(a.out) + int64_t(token) * a.out_stride + query_head * D + threadIdx.x % 4 * 2;
#pragma unroll
  for (int k = 0; k < D / 16; ++k)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair = transpose(pack<T>(st.o[k][2 * half] * factor.x, st.o[k][2 * half + 1] * factor.y));
      if (real) *reinterpret_cast<uint32_t*>(out + k * 16 + half * 8) = pair;
    }
}

// Leaves rows below `rows` for the fold; `at`: where the partial result of row lane / 4 lies.
template <int D>
__device__ void write_partial(const AttentionArgs& a, int rows, int64_t at, const State<D, 1>& st) {
  const int lane = threadIdx.x % 32;
  if (lane % 4 == 0 && lane / 4 < rows) *reinterpret_cast<float2*>(a.partial_sums + at * 2) = make_float2(st.m[0], st.l[0]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane % 4 * 2 + i;
    float* out = a.partial + __shfl_sync(~0u, at, row * 4) * D + lane / 4;
    if (row < rows)
#pragma unroll
      for (int k = 0; k < D / 16; ++k) out[k * 16] = st.o[k][i], out[k * 16 + 8] = st.o[k][2 + i];
  }
}

template <class T, int D>
__device__ void take_alone(const AttentionArgs& a, char* memory, int stages) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = a.heads / a.kv_heads;
  const int token_of_row = lane / 4 / group, head_of_row = lane / 4 % group;
  Link<T, D> link(memory, warp, stages);
  if (lane == 0) link.init();
  sync_roles();
  for (;;) {
    barrier_wait(link.handed(), link.hand_parity);
    link.hand_parity ^= 1;
    const DecodeItem it = link.hand.item;
    if (it.queries == 0) return;
    const int head = link.hand.head;
    Queries<T, D, 1> queries([&](int row, int unit) { return link.query(row, unit); });
    barrier_arrive_once(link.read());
    const Range range = range_of(a, it);
    State<D, 1> st, all;
#pragma unroll 1
    for (int of = 0; of < kLanes; ++of) {
      int token = range.begin + of * kSlice;
      const auto take = [&](auto first) {
        barrier_wait(link.brought(), link.parity);
        attend<T, D, first>(a, it, group, link.slice(), token, queries, st, [&] { barrier_arrive_once(link.taken()); });
        link.advance();
        token += kLanes * kSlice;
      };
      if (token < range.end) take(std::true_type{});
      else st.clear();
#pragma unroll 1
      while (token < range.end) take(std::false_type{});
      finish(st);
      if (of > 0) all.join(st);
      else all = st;
    }
    const int rows = row_count(it, group);
    if (it.chunks != 1) {
      const QueryRow to = lane / 4 < rows ? row_of(a, it, lane / 4, group) : QueryRow{};
      write_partial<D>(a, rows, partial_row(a, to.slot, head) + to.row, all);
    } else {
      write_result<T, D>(a, rows, it.query_row + token_of_row, head * group + head_of_row, all);
    }
  }
}

#endif

}  // namespace
}  // namespace octavo
