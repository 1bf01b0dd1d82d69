// Attention over the whole chunks that many sequences share: their keys are read once for a tile of query rows.
//
// An item is one chunk for one KV head and a tile of packed rows of a group's sequences. A warp holds 16 rows and walks
// all keys, lane by lane of the chunk, so that each row goes through the very steps of the decode kernel (chunk.cuh).
// Its partial results lie where that kernel would have put them, and the same fold follows. The identity that lets
// parts of the keys be merged is that of RelayAttention and Hydragen (arXiv 2402.14808, 2402.05099).
#include <algorithm>

#include "attention/chunk.cuh"
#include "attention/prefix.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxStages = 8;

template <int D>
constexpr int columns = D <= 128 ? D : D / 2;  // of the output that a warp holds
template <int D>
constexpr int row_warps = kWarps / (D / columns<D>);
template <int D>
constexpr int slices = D <= 64 ? 8 : D <= 128 ? 4 : 2;  // of one stage

static_assert(row_warps<128> * 16 == prefix_rows(128) && row_warps<256> * 16 == prefix_rows(256));

// The n-th chunk of the list, whose runs are not merged here.
__device__ inline PrefixItem chunk_item(const AttentionArgs& a, int n) {
  const int in_runs = a.header->prefix_runs * kRun;
  PrefixItem item = a.prefix[n < in_runs ? n / kRun : n - in_runs / kRun * (kRun - 1)];
  if (n < in_runs) item.chunk += n % kRun;
  return item;
}

// Brings the slices of a block's items into a ring of stages, in the order in which the lanes of a chunk take them.
template <class T, int D>
struct Loader {
  static constexpr int kStageBytes = slices<D> * 2 * slice_bytes<T, D>;
  static constexpr int kPerItem = kChunk / (kSlice * slices<D>);
  static constexpr int kPerLane = kChunk / (kSlice * kLanes);
  static_assert(kPerLane % slices<D> == 0);

  const AttentionArgs& a;
  const int total;
  int next = 0;   // how many stages of this block's items have been brought
  int block = 0;  // lane i of warp 0: the block of slice i of the next stage

  __device__ Loader(const AttentionArgs& args, int items) : a(args), total(items) { look_up(); }

  __device__ int index() const { return int(blockIdx.x) + next / kPerItem * int(gridDim.x); }
  // Inside the chunk.
  __device__ int position(int slice) const {
    const int n = next % kPerItem * slices<D> + slice;
    return (n % kPerLane * kLanes + n / kPerLane) * kSlice;
  }
  __device__ int block_of(int slice) const {
    const PrefixItem item = chunk_item(a, index() / a.kv_heads);
    return a.tables[item.sequence * a.table_stride + (item.chunk * kChunk + position(slice)) / a.cache.block_size];
  }
  __device__ void look_up() {
#if OCTAVO_BULK_COPY
    if (index() < total && threadIdx.x < slices<D>) block = block_of(threadIdx.x);
#endif
  }
  __device__ const T* keys(int of_block, int slice) const {
    return static_cast<const T*>(a.cache.data) + int64_t(of_block) * a.cache.block_stride +
           index() % a.kv_heads * a.cache.head_stride + (position(slice) & (a.cache.block_size - 1)) * D;
  }

  __device__ void load(uint32_t stage, [[maybe_unused]] uint32_t barrier) {
    constexpr int bytes = slice_bytes<T, D>;
    if (index() < total) {
#if OCTAVO_BULK_COPY
      if (threadIdx.x == 0) barrier_expect(barrier, kStageBytes);
      __syncwarp();
      if (threadIdx.x < slices<D>) {
        const T* k = keys(block, threadIdx.x);
        copy_bulk(stage + threadIdx.x * 2 * bytes, k, bytes, barrier);
        copy_bulk(stage + threadIdx.x * 2 * bytes + bytes, k + a.cache.kv_stride, bytes, barrier);
      }
#else
#pragma unroll 1
      for (int s = 0; s < slices<D>; ++s) {
        const T* k = keys(block_of(s), s);
#pragma unroll 1
        for (int i = threadIdx.x * 16; i < bytes; i += kWarps * 32 * 16) {
          copy16(stage + s * 2 * bytes + i, reinterpret_cast<const char*>(k) + i);
          copy16(stage + s * 2 * bytes + bytes + i, reinterpret_cast<const char*>(k + a.cache.kv_stride) + i);
        }
      }
#endif
      ++next;
      look_up();
    }
#if !OCTAVO_BULK_COPY
    commit_copies();  // also when nothing is left: groups are counted
#endif
  }
};

// The ring: a stage is full when its copies have landed and empty when every lane has let go of it: one that spoke for its
// warp would vouch only for itself.
template <class T, int D>
struct Ring {
  static constexpr int kStageBytes = Loader<T, D>::kStageBytes;
  const uint32_t slots, full, empty;
  const int stages;
  int at = 0;
  uint32_t parity = 0;

  __device__ uint32_t wait() const {
#if OCTAVO_BULK_COPY
    barrier_wait(full + at * 8, parity);
#else
    wait_oldest(stages);
    __syncthreads();
#endif
    return slots + at * kStageBytes;
  }
  // At first one stage less is filled than there are, with bulk copies: see `release`.
  __device__ void start(Loader<T, D>& loader) {
    if (OCTAVO_BULK_COPY && threadIdx.x >= 32) return;
    for (int i = 0; i < stages - OCTAVO_BULK_COPY; ++i) loader.load(slots + i * kStageBytes, full + i * 8);
  }
  // Lets go of the stage at hand. With bulk copies the one before it is filled, which the other warps, too, are likely
  // to have left by now.
  __device__ void release(Loader<T, D>& loader) {
#if OCTAVO_BULK_COPY
    barrier_arrive_once(empty + at * 8);
    if (threadIdx.x < 32) {
      const int last = at == 0 ? stages - 1 : at - 1;
      barrier_wait(empty + last * 8, at == 0 ? parity ^ 1 : parity);
      loader.load(slots + last * kStageBytes, full + last * 8);
    }
#else
    __syncthreads();
    loader.load(slots + at * kStageBytes, 0);
#endif
    if (++at == stages) at = 0, parity ^= 1;
  }
};

template <class T, int D, bool kCapped>
__global__ void __launch_bounds__(kWarps * 32, 1) prefix_kernel(const __grid_constant__ AttentionArgs a, const int stages) {
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(8) uint64_t full[kMaxStages], empty[kMaxStages];
  using Load = Loader<T, D>;
  constexpr int C = columns<D>, kPair = kCapped && D <= 128 ? 1 : 2;  // slices whose scores are computed together
  const int warp = threadIdx.x / 32, first = warp % row_warps<D> * 16, column = warp / row_warps<D> * C;
  if (leaves_without_tiles(a)) return;
  const int group = a.heads / a.kv_heads;
  const int total = (a.header->prefix_items + a.header->prefix_runs * (kRun - 1)) * a.kv_heads;
#if OCTAVO_BULK_COPY
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      barrier_init(shared_address(full) + i * 8, 1);
      barrier_init(shared_address(empty) + i * 8, kWarps * 32);
    }
    fence_bulk();
    if (blockIdx.x == 0) begin_tiles(a, total);
  }
  __syncthreads();
#endif
  wait_for_previous_kernel();
  launch_next_kernel();
  const float unit = score_unit(a);
  Ring<T, D> ring{shared_address(shared), shared_address(full), shared_address(empty), stages};
  // Where there is room, the lanes done so far lie in shared memory: registers are what hides latencies here.
  [[maybe_unused]] float* sums = reinterpret_cast<float*>(shared + stages * Load::kStageBytes);
  Load loader(a, total);
  ring.start(loader);

  for (int index = blockIdx.x; index < total; index += gridDim.x) {
    auto locate = [&](int row) {
      const PrefixItem item = chunk_item(a, index / a.kv_heads);  // read again for the results: registers are few
      return prefix_row(a, item.sequence, item.first_row + first + row, item.chunk, group);
    };
    const int count = chunk_item(a, index / a.kv_heads).rows - first;
    Queries<T, D> queries(a, index % a.kv_heads, count, locate);
    queries.hold();
    State<C, 2> st;
#if OCTAVO_BULK_COPY
    float* sum = sums + warp * State<C, 2>::kFloats * 32;
    const State<C, 2>& result = st;
#else
    State<C, 2> sum, &result = sum;
#endif
#pragma unroll 1
    for (int lane = 0; lane < kLanes; ++lane) {
      st.clear();
#pragma unroll 1
      for (int part = 0; part < Load::kPerLane / slices<D>; ++part) {
        const uint32_t stage = ring.wait();
        if (count > 0) {
#pragma unroll 1
          for (int i = 0; i < slices<D>; i += kPair) {
            const uint32_t keys = stage + i * 2 * slice_bytes<T, D>;
            float s[kPair][2][4];
            score<T, D, kPair>(queries, keys, 2 * slice_bytes<T, D>, s);
            if constexpr (kCapped) {
#pragma unroll
              for (int j = 0; j < kPair; ++j) cap<2>(a, s[j]);
            }
            absorb<T, D, C, kPair>(s, unit, keys + slice_bytes<T, D>, 2 * slice_bytes<T, D>, column / 8, st);
          }
        }
        ring.release(loader);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) st.l[r] = warp_sum<4>(st.l[r]);
#if OCTAVO_BULK_COPY
      if (lane > 0) st.follow(sum);
      if (lane < kLanes - 1) st.store(sum);
#else
      if (lane == 0) sum = st;
      else sum.merge(st);
#endif
    }
    write_partial<D, C>(a, index % a.kv_heads, count, column, result, locate);
  }
#if !OCTAVO_BULK_COPY
  wait_copies<0>();
#endif
  __syncthreads();
  if (threadIdx.x == 0 && int(blockIdx.x) < total) end_tiles(a, (total - 1 - int(blockIdx.x)) / int(gridDim.x) + 1);
}

template <class T, int D>
cudaError_t launch(const AttentionArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  constexpr int reserved = 1024 + 2 * kMaxStages * 8;  // by the system, and the static variables
  const int room = std::min(device.shared_per_multiprocessor, device.shared_per_block + 1024) - reserved;
  const int sums = device.major >= 9 ? kWarps * State<columns<D>, 2>::kFloats * 32 * 4 : 0;
  const int stages = std::min((room - sums) / Loader<T, D>::kStageBytes, kMaxStages);
  if (stages < 2) return cudaErrorInvalidConfiguration;
  auto kernel = a.softcap > 0.0f ? prefix_kernel<T, D, true> : prefix_kernel<T, D, false>;
  const Launch how{dim3(device.multiprocessors), kWarps * 32, stages * Loader<T, D>::kStageBytes + sums};
  return launch_after(kernel, how, stream, a, stages);
}

}  // namespace

cudaError_t prefix_attention(const AttentionArgs& a, cudaStream_t stream) {
  if (a.cache.cells != Cells::plain) return cudaErrorInvalidValue;
#if OCTAVO_HOPPER
  if (cudaError_t error = prefix_attention_wgmma(a, stream); error != cudaErrorInvalidValue) return error;
#endif
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.head_dim) {
      case 32: return launch<T, 32>(a, stream);
      case 64: return launch<T, 64>(a, stream);
      case 96: return launch<T, 96>(a, stream);
      case 128: return launch<T, 128>(a, stream);
      case 256: return launch<T, 256>(a, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

}  // namespace octavo
