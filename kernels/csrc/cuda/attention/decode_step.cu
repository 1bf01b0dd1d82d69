// The work on a packed projection of few sequences between two matrix products, in one launch: QK-norm, rotary
// embedding, the write into the cache, attention and its fold. Bit for bit what cache.cu and decode.cu do in three.
//
// A block takes one chunk of one sequence for one KV head. The keys of earlier steps begin to come before the kernel that
// makes the projection has ended. Then the block prepares the queries of its heads and the new key and value for itself,
// puts these into the slice that has their place, and, if its chunk is the last, into the cache. Of several chunks the
// block that arrives last folds them.
#include <algorithm>

#include "attention/decode.cuh"
#include "cache/rope.cuh"

namespace octavo {
namespace {

constexpr int kThreads = kWarps * 32;
constexpr int kMaxStages = 8;
constexpr int kMostGroup = 8;  // query heads of a KV head

// Rows of shared memory: a KV head's queries, then the new key, then the new value.
template <class T, int D>
using Prepared = T[kMostGroup + 2][D + 8];

#if OCTAVO_BULK_COPY

constexpr int kUnit = 8;  // elements of a thread's vectors

// A thread's facts about the token before its projection is there.
struct Place {
  int64_t position, slot;

  __device__ Place(const WriteArgs& w, int token)
      : position(w.cos_sin ? w.positions[token] : 0), slot(w.slots[token]) {}
};

template <class T, int D, bool norms>
__device__ void prepare(const WriteArgs& w, int token, const Place& at, int head, bool writes, Prepared<T, D>& rows) {
  using Vector = Elements<T, kUnit>;
  using Part = Share<D, kUnit>;
  const int group = w.heads / w.kv_heads, all = (group + 2) * Part::kThreads;
  for (int i = threadIdx.x; i < (all + 31) / 32 * 32; i += kThreads) {
    const int row = i / Part::kThreads, thread = i % Part::kThreads;
    const bool real = row < group + 2 && thread < Part::kUsed, query = row < group, value = row == group + 1;
    const Part part(w, thread);
    Vector low{}, high{};
    if (real) {
      const T* source = query ? static_cast<const T*>(w.q) + token * w.q_stride + (head * group + row) * D
                              : static_cast<const T*>(value ? w.v : w.k) + token * w.k_stride + head * D;
      low = *reinterpret_cast<const Vector*>(source + part.first * kUnit);
      high = *reinterpret_cast<const Vector*>(source + part.second * kUnit);
    }
    const T* norm = static_cast<const T*>(value ? nullptr : query ? w.q_norm : w.k_norm);
    rotate<T, D, kUnit, norms>(w, part, norm, value, real, at.position, low, high);
    if (!real) continue;
    *reinterpret_cast<Vector*>(&rows[row][part.first * kUnit]) = low;
    *reinterpret_cast<Vector*>(&rows[row][part.second * kUnit]) = high;
    if (query || !writes || at.slot < 0) continue;
    const int offset = int(at.slot) & (w.cache.block_size - 1);
    T* target = static_cast<T*>(w.cache.data) + (at.slot >> (__ffs(w.cache.block_size) - 1)) * w.cache.block_stride +
                (value ? w.cache.kv_stride : 0) + head * w.cache.head_stride + offset * D;
    *reinterpret_cast<Vector*>(target + swizzle(D, offset, part.first) * kUnit) = low;
    *reinterpret_cast<Vector*>(target + swizzle(D, offset, part.second) * kUnit) = high;
  }
}

// The slices of one warp's share of an item, some of them on their way into shared memory.
template <class T, int D>
struct Slices {
  static constexpr int kBytes = 2 * slice_bytes<T, D>;
  const AttentionArgs& a;
  const uint32_t memory, barriers;
  const int stages, warp, lane;
  int write = 0, read = 0, fed = 0, count = 0, head = 0, begin = 0, block = 0;
  uint32_t parity = 0;

  __device__ Slices(const AttentionArgs& args, uint32_t slots, uint32_t full, int places)
      : a(args), memory(slots), barriers(full), stages(places), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  __device__ void begin_item(const DecodeItem& it, const Range& range, int kv_head) {
    count = max(range.slices(warp), 0), head = kv_head, begin = range.begin + warp * kSlice, fed = 0;
    if (lane < count)
      block = a.tables[it.sequence * a.table_stride + (begin + lane * kWarps * kSlice) / a.cache.block_size];
    while (fed < min(stages, count)) feed();
  }
  __device__ void feed() {
    const int token = begin + fed * kWarps * kSlice;
    const T* k = static_cast<const T*>(a.cache.data) + int64_t(__shfl_sync(~0u, block, fed)) * a.cache.block_stride +
                 head * a.cache.head_stride + (token & (a.cache.block_size - 1)) * D;
    if (lane == 0) {
      const uint32_t stage = memory + write * kBytes, barrier = barriers + write * 8;
      barrier_expect(barrier, kBytes);
      const uint64_t policy = read_once_policy();
      copy_bulk(stage, k, kBytes / 2, barrier, policy);
      copy_bulk(stage + kBytes / 2, k + a.cache.kv_stride, kBytes / 2, barrier, policy);
    }
    ++fed;
    if (++write == stages) write = 0;
  }
  __device__ uint32_t wait() const {
    barrier_wait(barriers + read * 8, parity);
    return memory + read * kBytes;
  }
  __device__ void release() {
    __syncwarp();
    if (++read == stages) read = 0, parity ^= 1;
    if (fed < count) feed();
  }
};

// Puts the new key and value where the copied slice has what its slot held before.
template <class T, int D>
__device__ void patch(uint32_t keys, int token, const Prepared<T, D>& rows, int group) {
  constexpr int units = D / 8;
  for (int i = threadIdx.x % 32; i < 2 * units; i += 32) {
    const bool value = i >= units;
    const int unit = i % units;
    const uint4 x = *reinterpret_cast<const uint4*>(&rows[group + value][unit * 8]);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(keys + (value ? slice_bytes<T, D> : 0) + token * D * 2 +
                                                                  swizzle(D, token, unit) * 16),
                 "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
  }
  fence_bulk();
  __syncwarp();
}

// True if this block is the last one of the item's sequence and head to leave its partial result.
__device__ bool arrives_last(int32_t* arrivals, int chunks) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(arrivals, 1) == chunks - 1;
    if (last) *arrivals = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

#endif

template <class T, int D, bool norms>
__global__ void __launch_bounds__(kThreads, D <= 128 ? 2 : 1)
    decode_step_kernel(const __grid_constant__ DecodeStepArgs p, const int stages) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps][kMaxStages];
  __shared__ __align__(16) Prepared<T, D> rows;
  __shared__ float4 outputs[kFoldGroups][D / 4];
  __shared__ float2 sums[kFoldGroups];
  const AttentionArgs& a = p.attention;
  const int warp = threadIdx.x / 32, group = a.heads / a.kv_heads;
  Slices<T, D> slices(a, shared_address(shared) + warp * stages * Slices<T, D>::kBytes, shared_address(barriers[warp]),
                      stages);
  const Exchange<D, 1> exchange(shared + kWarps * stages * Slices<T, D>::kBytes);
  if (threadIdx.x % 32 == 0) {
    for (int i = 0; i < stages; ++i) barrier_init(slices.barriers + i * 8, 1);
    fence_bulk();
  }
  __syncwarp();
  const int total = a.header->decode_items * a.kv_heads;
  if (int(blockIdx.x) >= total) return wait_for_previous_kernel();
  for (int index = blockIdx.x; index < total; index += gridDim.x) {
    const DecodeItem it = a.decode[index / a.kv_heads];
    const int head = index % a.kv_heads;
    const Range range = range_of(a, it);
    const Place place(p.write, it.query_row);
    slices.begin_item(it, range, head);
    if (index == int(blockIdx.x)) {
      wait_for_previous_kernel();
      launch_next_kernel();
    }
    prepare<T, D, norms>(p.write, it.query_row, place, head, range.end == it.context, rows);
    __syncthreads();
    const Queries<T, D, 1> queries(&rows[0][0], D + 8, group);
    State<D, 1> st;
    st.clear();
    for (int token = range.begin + warp * kSlice; token < range.end; token += kWarps * kSlice) {
      const uint32_t keys = slices.wait();
      if (token + kSlice >= it.context) patch<T, D>(keys, it.context - 1 - token, rows, group);
      attend<T, D>(a, it, group, keys, token, queries, st);
      slices.release();
    }
    st.l[0] = warp_sum<4>(st.l[0]);
    exchange.leave(st);
    __syncthreads();
    exchange.join(group, [&](int row, int column, const auto& f) {
      constexpr int apart = Exchange<D, 1>::kApart;
      if (it.chunks != 1) write_partial<D>(a, head, row_of(a, it, row, group), column, f, apart);
      else write_folded<T>(a, it.query_row, head, row, column, f, apart);
    });
    if (it.chunks == 1) continue;  // the next item's barrier comes before anything that was read here is overwritten
    __syncthreads();
    if (!arrives_last(p.arrivals + it.sequence * a.kv_heads + head, it.chunks)) continue;
    for (int row = 0; row < group; ++row) {
      fold_row<T, D, kThreads>(a, a.folds[it.sequence], head, row, {}, outputs, sums);
      __syncthreads();
    }
  }
#endif
}

template <class T, int D, bool norms>
cudaError_t launch(const DecodeStepArgs& p, const Device& device, cudaStream_t stream) {
  constexpr int resident = D <= 128 ? 2 : 1, ring_bytes = kWarps * 2 * slice_bytes<T, D>;
  constexpr int merge_bytes = Exchange<D, 1>::kBytes;
  constexpr int reserved = 1024 + kWarps * kMaxStages * 8 + int(sizeof(Prepared<T, D>)) + kFoldGroups * (D * 4 + 8) + 64;
  const int room = std::min(device.shared_per_multiprocessor / resident, device.shared_per_block) - reserved;
  const int stages = std::min((room - merge_bytes) / ring_bytes, kMaxStages);
  if (stages < 2) return cudaErrorNotSupported;
  const Launch how{dim3(device.multiprocessors * resident), kThreads, stages * ring_bytes + merge_bytes};
  return launch_after(decode_step_kernel<T, D, norms>, how, stream, p, stages);
}

}  // namespace

cudaError_t decode_step(const DecodeStepArgs& p, cudaStream_t stream) {
  const WriteArgs& w = p.write;
  const AttentionArgs& a = p.attention;
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  // More items than blocks are better off with decode.cu, which looks ahead over items.
  const bool few = a.sequences * a.kv_heads <= 2 * device.multiprocessors;
  if (a.dtype == Dtype::f32 || a.cache.cells != Cells::plain) return cudaErrorNotSupported;
  if (device.major < 9 || !few || a.prefix || a.heads / a.kv_heads > kMostGroup || (w.cos_sin && w.rotary_dim % 16 != 0) ||
      w.k_stride != w.v_stride)
    return cudaErrorNotSupported;
  return with_half(w.dtype, [&](auto tag) {
    using T = decltype(tag);
    const bool norms = w.q_norm || w.k_norm;
    switch (a.head_dim) {
      case 64: return norms ? launch<T, 64, true>(p, device, stream) : launch<T, 64, false>(p, device, stream);
      case 128: return norms ? launch<T, 128, true>(p, device, stream) : launch<T, 128, false>(p, device, stream);
      case 256: return norms ? launch<T, 256, true>(p, device, stream) : launch<T, 256, false>(p, device, stream);
      default: return cudaErrorNotSupported;
    }
  });
}

}  // namespace octavo
