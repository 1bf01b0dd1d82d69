// Paged attention for many query rows (prompts, chunks of prompts, continued prefixes): bound by arithmetic.
//
// FlashAttention-2 (Dao 2023) on mma.sync: 128 packed rows (token x grouped head), or 96 for heads of 64, against 64 keys
// at a time, two stages of keys and values. Key tiles lie on absolute positions, so a row's result depends neither on how
// its prompt was cut into chunks nor on its neighbours.
#pragma once

#include "attention/extend.cuh"
#include "cache/cells.cuh"

namespace octavo {

// The same for cells in eight bits, in builds for 90a: other chips have too few registers.
cudaError_t extend_attention_cells(const AttentionArgs&, cudaStream_t);

namespace {

constexpr int kKeys = 64;
constexpr int kStages = 2;
constexpr int kSlices = kKeys / kSlice;

// Warps of a block: a thread holds 2 tiles of 16 rows, or one where the output would not fit into its registers.
template <int D>
constexpr int warps = D == 64 ? 3 : D < 64 || D == 128 ? 4 : 8;
// Rows of a block: those of a tile of the list, or half of them.
template <int D>
constexpr int block_rows = D == 64 ? 96 : 128;
template <int D>
constexpr int row_tiles = block_rows<D> / 16 / warps<D>;

template <int D>
constexpr int key_bytes = kKeys* D * 2;
template <int D>
constexpr int query_bytes = block_rows<D> * D * 2;
// Bytes of keys, or of values, as they come from the cache.
template <class C, int D>
constexpr int raw_bytes = kSlices* slice_bytes<C, D>;

template <int D>
using Tile = ExtendTile<kKeys, block_rows<D>, extend_rows(D) / block_rows<D>>;

// `swizzle`, spelled so that these kernels need fewer registers.
template <int D>
__device__ int unit_place(int token, int unit) {
  return unit ^ (D % 64 == 0 ? token & 7 : token >> 1 & 3);
}

template <class T, int D>
__device__ void load_queries(const AttentionArgs& a, const Tile<D>& t, uint32_t queries) {
  constexpr int units = D / 8;
  for (int i = threadIdx.x; i < block_rows<D> * units; i += warps<D> * 32) {
    const int row = i / units, unit = i % units, packed = t.item.tile * block_rows<D> + row;
    const int query = packed / t.group;
    const bool real = query < t.item.queries;
    const T* p = static_cast<const T*>(a.q);
    if (real)
      p += int64_t(t.item.query_row + query) * a.q_stride + (t.head * t.group + packed % t.group) * D + unit * 8;
    copy16(queries + row * (D * 2) + unit_place<D>(row, unit) * 16, p, real);
  }
  commit_copies();
}

// Brings tiles of keys and values into the stages.
template <class C, int D>
struct Loader {
  const AttentionArgs& a;
  const Tile<D>& t;
  int token;  // of the next tile
  int block;  // where bulk copies exist: lane i of warp 0 holds the block of slice i of the next tile

  __device__ Loader(const AttentionArgs& args, const Tile<D>& tile) : a(args), t(tile), token(tile.begin), block(0) {
    look_up();
  }
  __device__ int block_of(int position) const {
    return a.tables[t.item.sequence * a.table_stride + position / a.cache.block_size];
  }
  __device__ void look_up() {
#if OCTAVO_BULK_COPY
    const int position = token + int(threadIdx.x) * kSlice;
    if (threadIdx.x < kSlices && position < t.end) block = block_of(position);
#endif
  }
  // Calls f(place in the stage, address, bytes) for the pieces of a slice of keys and values.
  template <class F>
  __device__ void pieces(int slice, int block, F&& f) const {
    const C* k = static_cast<const C*>(a.cache.data) + int64_t(block) * a.cache.block_stride +
                 t.head * a.cache.head_stride;
    const int offset = (token + slice * kSlice) & (a.cache.block_size - 1);
#pragma unroll
    for (int value = 0; value < 2; ++value)
      slice_pieces<C, D>(k + value * a.cache.kv_stride, offset, a.cache.block_size,
                         [&](int at, const void* from, int count) {
                           f(value * raw_bytes<C, D> + slice * slice_bytes<C, D> + at, from, count);
                         });
  }

  __device__ void load(uint32_t stage, [[maybe_unused]] uint32_t barrier) {
    if (token < t.end) {
#if OCTAVO_BULK_COPY
      if (threadIdx.x == 0)
        barrier_expect(barrier, min(kSlices, (t.end - token + kSlice - 1) / kSlice) * 2 * slice_bytes<C, D>);
      if (threadIdx.x < kSlices && token + int(threadIdx.x) * kSlice < t.end)
        pieces(threadIdx.x, block,
               [&](int at, const void* from, int count) { copy_bulk(stage + at, from, count, barrier); });
#else
#pragma unroll 1  // few registers are left
      for (int s = 0; s < kSlices && token + s * kSlice < t.end; ++s)
        pieces(s, block_of(token + s * kSlice), [&](int at, const void* from, int count) {
#pragma unroll 1
          for (int i = threadIdx.x * 16; i < count; i += warps<D> * 32 * 16)
            copy16(stage + at + i, static_cast<const char*>(from) + i);
        });
#endif
    }
#if !OCTAVO_BULK_COPY
    commit_copies();
#endif
    token += kKeys;
    look_up();
  }
};

// Turns a stage of cells in eight bits into tiles of keys and values, scales included.
template <class T, class C, int D>
__device__ void widen_tiles(uint32_t stage, uint32_t keys) {
#pragma unroll 2
  for (int i = threadIdx.x; i < 2 * kKeys * (D / 16); i += warps<D> * 32) {
    const int row = i % kKeys, unit = i / kKeys % (D / 16), token = row % kSlice;
    const bool value = i >= kKeys * (D / 16);
    const uint32_t slice = stage + (value ? raw_bytes<C, D> : 0) + row / kSlice * slice_bytes<C, D>;
    const uint32_t cells = slice + token * D + swizzle_units(D / 16, token, unit) * 16;
    uint32_t in[4], out[2][4];
    float scale;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(in[0]), "=r"(in[1]), "=r"(in[2]), "=r"(in[3])
                 : "r"(cells)
                 : "memory");
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(slice + kSlice * D + token * 4) : "memory");
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t pair[2];
      if (value) widen<true>(C{}, in[w], pair[0], pair[1]);
      else widen<false>(C{}, in[w], pair[0], pair[1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = unpack<f16>(pair[half]);
        out[half][w] = pack<T>(x.x * scale, x.y * scale);
      }
    }
    const uint32_t to = keys + (value ? key_bytes<D> : 0) + row * (D * 2);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + unit_place<D>(row, 2 * unit + half) * 16),
                   "r"(out[half][0]), "r"(out[half][1]), "r"(out[half][2]), "r"(out[half][3])
                   : "memory");
  }
}

// Scores of one warp's rows against a tile of keys.
template <class T, int D>
__device__ void score(uint32_t queries, uint32_t keys, float (&s)[row_tiles<D>][kKeys / 8][4]) {
  const int lane = threadIdx.x % 32, query = threadIdx.x / 32 * row_tiles<D> * 16 + (lane & 15);
  const int key = (lane & 7) + (lane >> 4) * 8;
#pragma unroll
  for (int m = 0; m < row_tiles<D>; ++m)
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t q[row_tiles<D>][4];
#pragma unroll
    for (int m = 0; m < row_tiles<D>; ++m)
      ldmatrix(q[m], queries + (query + m * 16) * (D * 2) + unit_place<D>(query, 2 * k + (lane >> 4)) * 16);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t b[4];
      ldmatrix(b, keys + (key + n * 16) * (D * 2) + unit_place<D>(key, 2 * k + (lane >> 3 & 1)) * 16);
#pragma unroll
      for (int m = 0; m < row_tiles<D>; ++m) {
        mma<T>(s[m][2 * n], q[m], b[0], b[1]);
        mma<T>(s[m][2 * n + 1], q[m], b[2], b[3]);
      }
    }
  }
}

template <int D>
__device__ void mask(const AttentionArgs& a, const Tile<D>& t, int token, float (&s)[row_tiles<D>][kKeys / 8][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < row_tiles<D>; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = (threadIdx.x / 32 * row_tiles<D> + m) * 16 + lane / 4 + 8 * r;
      const int query = (t.item.tile * block_rows<D> + row) / t.group;
      const int last = t.offset + query, low = t.lowest(a, query);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int position = token + n * 8 + lane % 4 * 2 + i;
          if (position > last || position < low) s[m][n][2 * r + i] = -INFINITY;
        }
    }
}

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
constexpr int kResident = 1;  // as many blocks as the shared memory of these chips holds
#else
constexpr int kResident = 2;
#endif

template <class T, class C, int D>
__global__ void __launch_bounds__(warps<D> * 32, D <= 128 ? kResident : 1) extend_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(8) uint64_t barriers[kStages];
  constexpr int M = row_tiles<D>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int stage_bytes = 2 * raw_bytes<C, D>;
  const uint32_t queries = shared_address(shared), widened = queries + query_bytes<D>;
  const uint32_t stages = widened + (is_scaled<C> ? 2 * key_bytes<D> : 0);
  const uint32_t full = shared_address(barriers);
#if OCTAVO_BULK_COPY
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(full + i * 8, 1);
    fence_bulk();
  }
  __syncthreads();
#endif
  wait_for_previous_kernel();
  launch_next_kernel();
  // Scores s stand for s * unit in the log2 domain.
  const float unit = (a.softcap > 0.0f ? a.softcap : a.scale) * kLog2e;
  const int total = a.header->extend_items * Tile<D>::kParts * a.kv_heads;
  int stage = 0;
  [[maybe_unused]] uint32_t parity = 0;

  for (int round = 0; round * int(gridDim.x) < total; ++round) {
    const int place = extend_place(round);
    if (place >= total) continue;
    const Tile<D> t(a, place / a.kv_heads, place % a.kv_heads);
    if (!t.has_rows()) continue;
    load_queries<T, D>(a, t, queries);
    Loader<C, D> loader(a, t);
    for (int i = 0; i < kStages; ++i) {
      const int s = (stage + i) % kStages;
      loader.load(stages + s * stage_bytes, full + s * 8);
    }
    wait_copies<OCTAVO_BULK_COPY ? 0 : kStages>();
    __syncthreads();

    float o[M][D / 8][4], top[M][2], sum[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      top[m][0] = top[m][1] = kNoScore, sum[m][0] = sum[m][1] = 0.0f;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0.0f;
    }
    const int first_query = (t.item.tile * block_rows<D> + warp * M * 16) / t.group;
    const int last_query = (t.item.tile * block_rows<D> + warp * M * 16 + M * 16 - 1) / t.group;

    for (int token = t.begin; token < t.end; token += kKeys) {
      const uint32_t keys = is_scaled<C> ? widened : stages + stage * stage_bytes, values = keys + key_bytes<D>;
#if OCTAVO_BULK_COPY
      barrier_wait(full + stage * 8, parity);
#else
      wait_copies<kStages - 1>();
      __syncthreads();
#endif
      auto bring_next = [&] { loader.load(stages + stage * stage_bytes, full + stage * 8); };
      if constexpr (is_scaled<C>) {
        widen_tiles<T, C, D>(stages + stage * stage_bytes, keys);
        __syncthreads();
        bring_next();
      }
      const int lowest = t.lowest(a, t.item.tile * block_rows<D> / t.group);
      if (token + kKeys > t.end || token < lowest) {
        clear_values<D>(values, kKeys, lowest - token, t.end - token, threadIdx.x, warps<D> * 32);
        __syncthreads();
      }
      float s[M][kKeys / 8][4];
      score<T, D>(queries, keys, s);
      if (a.softcap > 0.0f) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) s[m][n][i] = tanhf(s[m][n][i] * (a.scale / a.softcap));
      }
      if (token + kKeys - 1 > t.offset + first_query || token < t.lowest(a, last_query)) mask<D>(a, t, token, s);

#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float high = s[m][0][2 * r];
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) high = fmaxf(high, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
          high = fmaxf(top[m][r], quad_max(high));
          if (__any_sync(~0u, high > top[m][r])) {
            const float factor = fast_exp2((top[m][r] - high) * unit);
            sum[m][r] *= factor;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) o[m][n][2 * r] *= factor, o[m][n][2 * r + 1] *= factor;
            top[m][r] = high;
          }
          const float shift = high * unit;
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const float p = fast_exp2(s[m][n][2 * r + i] * unit - shift);
              s[m][n][2 * r + i] = p;
              sum[m][r] += p;
            }
        }

      const int row = lane & 15;
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        uint32_t weights[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            weights[m][i] = pack<T>(s[m][2 * k + i / 2][i % 2 * 2], s[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          uint32_t b[4];
          ldmatrix_transposed(b, values + (k * 16 + row) * (D * 2) + unit_place<D>(row, 2 * n + (lane >> 4)) * 16);
#pragma unroll
          for (int m = 0; m < M; ++m) {
            mma<T>(o[m][2 * n], weights[m], b[0], b[1]);
            mma<T>(o[m][2 * n + 1], weights[m], b[2], b[3]);
          }
        }
      }
      __syncthreads();
      if (!is_scaled<C>) bring_next();
      if (++stage == kStages) stage = 0, parity ^= 1;
    }

#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int packed = t.item.tile * block_rows<D> + (warp * M + m) * 16 + lane / 4 + 8 * r;
        const int query = packed / t.group, head = t.head * t.group + packed % t.group;
        const float l = warp_sum<4>(sum[m][r]);
        if (query >= t.item.queries) continue;
        const float factor = normaliser(a, head, top[m][r] * unit, l);
        T* out = static_cast<T*>(a.out) + int64_t(t.item.query_row + query) * a.out_stride + head * D;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
          *reinterpret_cast<uint32_t*>(out + n * 8 + lane % 4 * 2) =
              pack<T>(o[m][n][2 * r] * factor, o[m][n][2 * r + 1] * factor);
      }
    __syncthreads();  // before the next tile's queries replace these
  }
}

template <class T, class C, int D>
cudaError_t launch(const AttentionArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  constexpr int tiles = is_scaled<C> ? 2 * key_bytes<D> : 0;
  constexpr int bytes = query_bytes<D> + tiles + kStages * 2 * raw_bytes<C, D>;
  if (bytes + 64 > device.shared_per_block) return cudaErrorInvalidValue;
  const int resident = D <= 128 && 2 * (bytes + 1088) <= device.shared_per_multiprocessor ? 2 : 1;
  return launch_after(extend_kernel<T, C, D>, {dim3(device.multiprocessors * resident), warps<D> * 32, bytes}, stream, a);
}

template <class T, class C>
cudaError_t launch(const AttentionArgs& a, cudaStream_t stream) {
  auto run = [&](auto dim) { return launch<T, C, decltype(dim)::value>(a, stream); };
  if constexpr (is_scaled<C>) return with_common_head_dim(a.head_dim, run);
  else return with_head_dim(a.head_dim, run);
}

}  // namespace
}  // namespace octavo
