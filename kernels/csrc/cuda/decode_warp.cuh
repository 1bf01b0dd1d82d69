// Many short items: each warp takes whole ones alone. Four warps that share an item wait for its queries and for each
// other about as long as its 128 tokens take to come; here nobody waits, and what one warp waits for the others hide.
//
// A warp takes the lanes of the chunk one after the other, each from a cleared state, and joins them in their order with
// the steps of `Exchange`: who takes an item never shows in a result.
#pragma once

#include "decode_ring.cuh"

namespace octavo {
namespace {

template <class C, int D, int R>
constexpr bool fits_one_warp = OCTAVO_BULK_COPY && !is_scaled<C> && D <= kRunDim && R == 1;

// Walks the slices of the items of one warp, ahead of the arithmetic by up to an item. The first item is the warp's own,
// the others are drawn from a counter while the one before is at hand.
template <class T, int D>
class ItemFeeder {
 public:
  // The item that comes next, and its place among those of all KV heads: once its slices are being brought (`ahead`), and
  // until another is drawn.
  DecodeItem item;
  int index;
  bool ahead;

  __device__ ItemFeeder(const AttentionArgs& args, int resident)
      : ahead(false), a(args), lane(threadIdx.x % 32), total(args.header->decode_items * args.kv_heads), slice(0),
        slices(0) {
    const int blocks = owning_blocks(a, resident);
    drawn_from = blocks * kWarps, drawn = block_rank(blocks) + threadIdx.x / 32 * blocks;
    if (int(blockIdx.x) >= blocks) draw();
    known = 0;
    more();
  }
  __device__ bool any() const { return ahead; }
  // Begins to look for another item, as the arithmetic begins with this one.
  __device__ void draw() {
    if (lane == 0) drawn = atomicAdd(&a.header->next_decode, 1) + drawn_from;
    known = 0, ahead = false;
  }
  // One more step towards the next item; what a step reads is needed by the one after.
  __device__ void prepare() {
    if (known == 0) {
      index = __shfl_sync(~0u, drawn, 0);
      if (index < total) item = a.decode[index / a.kv_heads];
    } else if (known == 1 && index < total) {
      const Range range = range_of(a, item);
      if (lane < slices_of(range))
        next_block = a.tables[item.sequence * a.table_stride + (range.begin + lane * kSlice) / a.cache.block_size];
    }
    known = min(known + 1, 2);
  }
  // Goes to the next item, if there is one.
  __device__ bool more() {
    while (known < 2) prepare();
    if (index >= total) return false;
    const Range range = range_of(a, item);
    block = next_block, ahead = true;
    head = index % a.kv_heads, begin = range.begin, slice = 0, slices = slices_of(range);
    return true;
  }
  __device__ bool ready() { return slice < slices || (!ahead && more() && slices > 0); }
  __device__ bool has_first() const { return slice < slices; }
  __device__ int token() const { return begin + slice * kSlice; }
  __device__ void feed(uint32_t stage, uint32_t barrier) {
    bring_slice<T, D>(a, __shfl_sync(~0u, block, slice), head, token(), stage, barrier);
    const int of = slice % kLanes + 1;  // the lane that comes next
    slice = slice + kLanes < slices ? slice + kLanes : of < min(kLanes, slices) ? of : slices;
  }

 private:
  const AttentionArgs& a;
  const int lane, total;
  int drawn, drawn_from;  // of the first thread
  int known;  // of the next item: 0: that it was asked for, 1: which it is, 2: where its keys lie
  int next_block;
  int slice, slices, head, begin, block;  // lane i: the block that holds slice i

  __device__ static int slices_of(const Range& range) { return (range.end - range.begin + kSlice - 1) / kSlice; }
};

// A sequence of one chunk needs no fold.
template <class T, int D>
__device__ void write_result(const AttentionArgs& a, const DecodeItem& it, int head, const State<D, 1>& st) {
  const int lane = threadIdx.x % 32, row = lane / 4, group = a.heads / a.kv_heads;
  if (row >= row_count(it, group)) return;
  const int query_head = head * group + row % group;
  const float factor = normaliser(a, query_head, st.m[0], st.l[0]);
  T* out = static_cast<T*>(a.out) + int64_t(it.query_row + row / group) * a.out_stride + query_head * D + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
    *reinterpret_cast<uint32_t*>(out + n * 8) = pack<T>(st.o[n][0] * factor, st.o[n][1] * factor);
}

template <class T, int D>
__device__ void take_alone(const AttentionArgs& a, Ring<T, D> ring, float* columns, int resident) {
  const int group = a.heads / a.kv_heads;
  ItemFeeder<T, D> feeder(a, resident);
  if (!feeder.any()) return wait_for_previous_kernel();
  if (a.settled && !a.prefix && a.partial_rows == group)
    ring.fill_settled(feeder, feeder.item.context - feeder.item.queries);
  auto locate_queries = [&] {
    const DecodeItem& it = feeder.item;
    return Queries<T, D, 1>(a, feeder.index % a.kv_heads, row_count(it, group),
                         [&](int row) { return row_of(a, it, row, group); });
  };
  auto queries = locate_queries(), coming = queries;
  if (!a.prefix) wait_for_previous_kernel();
  launch_next_kernel();
  queries.hold();
  for (;;) {
    const DecodeItem it = feeder.item;
    const int head = feeder.index % a.kv_heads;
    feeder.draw();
    ring.fill(feeder);
    const Range range = range_of(a, it);
    State<D, 1> st;
    float m, l;  // of the lanes before
    bool asked = false;
#pragma unroll 1
    for (int of = 0; of < kLanes; ++of) {
      st.clear();
#pragma unroll 1
      for (int token = range.begin + of * kSlice; token < range.end; token += kLanes * kSlice) {
        uint32_t keys[1];
        ring.wait(keys);
        attend<T, D, 1>(a, it, group, keys[0], token, queries, st);
        ring.release(1);
        feeder.prepare();
        ring.fill(feeder);
        if (feeder.ahead && !asked) {  // so that the next item's queries are there when it begins
          coming = locate_queries();
          coming.hold();
          asked = true;
        }
      }
      finish(st);
      if (of > 0) st.join_before([&](int, int i) { return i == 0 ? m : i == 1 ? l : columns[(i - 2) * 32]; });
      if (of == kLanes - 1) break;
      m = st.m[0], l = st.l[0];
#pragma unroll
      for (int i = 0; i < D / 4; ++i) columns[i * 32] = st.o[i / 2][i % 2];
    }
    if (it.chunks == 1) write_result<T, D>(a, it, head, st);
    else write_partial<D>(a, head, row_count(it, group), 0, st, [&](int row) { return row_of(a, it, row, group); });
    if (!feeder.ahead && !feeder.more()) break;
    if (!asked) {
      coming = locate_queries();
      coming.hold();
    }
    queries = coming;
  }
  if (a.prefix) wait_for_previous_kernel();  // so that the fold, which waits for this kernel, finds both's results
}

}  // namespace
}  // namespace octavo
