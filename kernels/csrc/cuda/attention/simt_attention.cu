// Paged attention that the tensor-core kernels do not take: float32, any head dim, cells in eight bits beside them, and values
// that are the first elements of keys (then V lies no distance behind K, and is narrower).
//
// A warp takes eight query rows and 32 keys at a time: a lane multiplies one key with all rows, then holds every 32nd
// group of four output columns. The lists of work are those of the other kernels: chunks of sequences with few query
// rows, whose keys go to the warps of a block by turns, and tiles of rows of longer queries, of which each warp walks
// all keys. All sums are float32 and in an order that depends on the row's own sequence alone.
#include "attention/attention.cuh"
#include "cache/cells.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 4;
constexpr int kRows = 8;       // of one warp
constexpr int kKeys = 32;      // one a lane
constexpr int kColumns = 128;  // that a warp holds in one group a lane

// Rows [first, first + kRows) of a sequence's packed query rows (token x grouped head), against keys [begin, end).
struct Job {
  int sequence, head, group, context, queries, query_row, first;
  int begin, end;

  __device__ bool has(int row) const { return first + row < queries * group; }
  __device__ int last_key(int row) const { return context - queries + (first + row) / group; }
  __device__ int first_key(const AttentionArgs& a, int row) const {
    return a.window > 0 ? max(0, last_key(row) - a.window + 1) : 0;
  }
  __device__ int token(int row) const { return query_row + (first + row) / group; }
  __device__ int query_head(int row) const { return head * group + (first + row) % group; }
};

template <class C, int N>
struct Walk {
  const AttentionArgs& a;
  const Job& job;
  const int lane;
  float* const q;        // [kRows][head_dim], in shared memory as all of these
  float* const weights;  // [kKeys][kRows]
  float m[kRows], l[kRows], o[kRows][N][4];

  __device__ Walk(const AttentionArgs& args, const Job& work, float* queries, float* scratch)
      : a(args), job(work), lane(threadIdx.x % 32), q(queries), weights(scratch) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      m[r] = kNoScore, l[r] = 0.0f;
#pragma unroll
      for (int n = 0; n < N; ++n) o[r][n][0] = o[r][n][1] = o[r][n][2] = o[r][n][3] = 0.0f;
    }
    __syncwarp();
    for (int i = lane * 4; i < kRows * a.head_dim; i += 128) {
      const int row = i / a.head_dim, column = i % a.head_dim;
      float x[4] = {};
      if (job.has(row))
        load_values(a.dtype, a.q, job.token(row) * a.q_stride + job.query_head(row) * a.head_dim + column, x);
      *reinterpret_cast<float4*>(q + i) = make_float4(x[0], x[1], x[2], x[3]);
    }
    __syncwarp();
  }

  // Keys [token, token + kKeys), those that lie in the job's range.
  __device__ void absorb(int token) {
    const int D = a.head_dim, bs = a.cache.block_size, key = token + lane, within = key & (bs - 1);
    const bool valid = key >= job.begin && key < job.end;
    int64_t block = 0;  // where the block's K for this head begins
    if (valid)
      block = int64_t(a.tables[job.sequence * a.table_stride + key / bs]) * a.cache.block_stride +
              job.head * a.cache.head_stride;
    const C* cells = static_cast<const C*>(a.cache.data) + block;
    float s[kRows] = {};
    if (valid) {
      const C* row = cells + within * D;
      for (int d = 0; d < D; d += 4) {
        float x[4];
        load_cells(row, D, within, d, false, x);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float4 y = *reinterpret_cast<const float4*>(q + r * D + d);
          s[r] += x[0] * y.x + x[1] * y.y + x[2] * y.z + x[3] * y.w;
        }
      }
    }
    float key_scale = 1.0f, value_scale = 1.0f;
    if constexpr (is_scaled<C>) {
      if (valid) {
        key_scale = scales_of(const_cast<C*>(cells), D, bs)[within];
        value_scale = scales_of(const_cast<C*>(cells) + a.cache.kv_stride, D, bs)[within];
      }
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float x = s[r] * key_scale * a.scale;
      if (a.softcap > 0.0f) x = a.softcap * tanhf(x / a.softcap);
      const bool seen = valid && key <= job.last_key(r) && key >= job.first_key(a, r);
      x = seen ? x * kLog2e : -INFINITY;
      float top = x;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
      top = fmaxf(top, m[r]);
      const float factor = exp2f(m[r] - top), p = seen ? exp2f(x - top) : 0.0f;
      m[r] = top, l[r] = l[r] * factor + p;
      weights[lane * kRows + r] = seen ? p * value_scale : 0.0f;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[r][n][i] *= factor;
    }
    __syncwarp();
    const int low = max(0, job.begin - token), high = min(kKeys, job.end - token);
    for (int j = low; j < high; ++j) {
      const int of_key = (token + j) & (bs - 1);
      const C* row = static_cast<const C*>(a.cache.data) + __shfl_sync(~0u, block, j) + a.cache.kv_stride + of_key * D;
      float p[kRows];
#pragma unroll
      for (int r = 0; r < kRows; r += 4)
        *reinterpret_cast<float4*>(p + r) = *reinterpret_cast<const float4*>(weights + j * kRows + r);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int column = n * kColumns + lane * 4;
        if (column >= a.value_dim) continue;
        float x[4];
        load_cells(row, D, of_key, column, true, x);
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
          for (int i = 0; i < 4; ++i) o[r][n][i] += p[r] * x[i];
      }
    }
  }

  // Every `turns`-th tile of keys from the `turn`-th on; tiles lie on absolute positions.
  __device__ void run(int turn, int turns) {
    for (int token = job.begin / kKeys * kKeys + turn * kKeys; token < job.end; token += turns * kKeys) absorb(token);
#pragma unroll
    for (int r = 0; r < kRows; ++r) l[r] = warp_sum(l[r]);
  }

  __device__ int floats() const { return kRows * (a.head_dim + 2); }  // of what a warp holds: queries, then results
  __device__ void store(float* memory) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (lane == 0) memory[r] = m[r], memory[kRows + r] = l[r];
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (const int column = n * kColumns + lane * 4; column < a.value_dim)
          *reinterpret_cast<float4*>(memory + 2 * kRows + r * a.value_dim + column) =
              make_float4(o[r][n][0], o[r][n][1], o[r][n][2], o[r][n][3]);
    }
  }
  __device__ void merge(const float* memory) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float high = memory[r], top = fmaxf(m[r], high), mine = exp2f(m[r] - top), other = exp2f(high - top);
      m[r] = top, l[r] = l[r] * mine + memory[kRows + r] * other;
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (const int column = n * kColumns + lane * 4; column < a.value_dim)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            o[r][n][i] = o[r][n][i] * mine + memory[2 * kRows + r * a.value_dim + column + i] * other;
    }
  }

  __device__ void write_result() const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!job.has(r)) break;
      const int head = job.query_head(r);
      const float factor = normaliser(a, head, m[r], l[r]);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int column = n * kColumns + lane * 4;
        const float x[4] = {o[r][n][0] * factor, o[r][n][1] * factor, o[r][n][2] * factor, o[r][n][3] * factor};
        if (column < a.value_dim)
          store_values(a.dtype, a.out, job.token(r) * a.out_stride + head * a.value_dim + column, x);
      }
    }
  }
  // For the fold.
  __device__ void write_partial(int slot) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!job.has(r)) break;
      const int64_t at = (int64_t(slot) * a.kv_heads + job.head) * a.partial_rows + job.first + r;
      if (lane == 0) *reinterpret_cast<float2*>(a.partial_sums + at * 2) = make_float2(m[r], l[r]);
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (const int column = n * kColumns + lane * 4; column < a.value_dim)
          *reinterpret_cast<float4*>(a.partial + at * a.value_dim + column) =
              make_float4(o[r][n][0], o[r][n][1], o[r][n][2], o[r][n][3]);
    }
  }
};

// Shared memory: what each warp holds or hands over, [kRows][head_dim + 2], then the weights of each.
__device__ inline float* weights_of(float* memory, int head_dim, int warp) {
  return memory + kWarps * kRows * (head_dim + 2) + warp * kKeys * kRows;
}
int shared_bytes(int head_dim) { return kWarps * kRows * (head_dim + 2 + kKeys) * int(sizeof(float)); }

template <class C, int N>
__global__ void __launch_bounds__(kWarps * 32) chunk_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  wait_for_previous_kernel();
  launch_next_kernel();
  const int warp = threadIdx.x / 32, group = a.heads / a.kv_heads, total = a.header->decode_items * a.kv_heads;
  for (int index = blockIdx.x; index < total; index += gridDim.x) {
    const DecodeItem it = a.decode[index / a.kv_heads];
    const int parts = it.queries * group > kRows ? 2 : 1, turns = kWarps / parts, turn = warp / parts;
    Job job{it.sequence, index % a.kv_heads, group, it.context, it.queries, it.query_row, warp % parts * kRows, 0, 0};
    job.begin = max(it.chunk * kChunk, job.first_key(a, 0));
    job.end = min(it.context, (it.chunk + 1) * kChunk);
    float* mine = memory + warp * kRows * (a.head_dim + 2);
    Walk<C, N> walk(a, job, mine, weights_of(memory, a.head_dim, warp));
    walk.run(turn, turns);
    __syncwarp();
    if (turn > 0) walk.store(mine);
    __syncthreads();
    if (turn == 0) {
      for (int i = 1; i < turns; ++i) walk.merge(memory + (warp + i * parts) * walk.floats());
      if (it.chunks == 1) walk.write_result();
      else walk.write_partial(it.slot);
    }
    __syncthreads();
  }
}

template <class C, int N>
__global__ void __launch_bounds__(kWarps * 32) tile_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  wait_for_previous_kernel();
  launch_next_kernel();
  const int warp = threadIdx.x / 32, group = a.heads / a.kv_heads, heads = a.kv_heads;
  const int rows = extend_rows(a.head_dim), parts = rows / (kWarps * kRows);  // of a tile of the list, one a block
  const int total = a.header->extend_items * heads * parts;
  for (int index = blockIdx.x; index < total; index += gridDim.x) {
    const ExtendItem it = a.extend[index / parts / heads];
    const int first = it.tile * rows + (index % parts * kWarps + warp) * kRows;
    Job job{it.sequence, index / parts % heads, group, it.context, it.queries, it.query_row, first, 0, 0};
    if (!job.has(0)) continue;
    const int last = min(kRows, it.queries * group - first) - 1;
    job.begin = job.first_key(a, 0), job.end = max(0, job.last_key(last) + 1);
    Walk<C, N> walk(a, job, memory + warp * kRows * (a.head_dim + 2), weights_of(memory, a.head_dim, warp));
    walk.run(0, 1);
    walk.write_result();
  }
}

// Folds the chunks of one query row in ascending order, then the same row of each further part of the queries.
__global__ void fold_kernel(const __grid_constant__ AttentionArgs a) {
  wait_for_previous_kernel();
  launch_next_kernel();
  FoldItem it = a.folds[blockIdx.x];
  const int group = a.heads / a.kv_heads, head = blockIdx.y / a.partial_rows, row = blockIdx.y % a.partial_rows;
  const int column = threadIdx.x * 4, queries = a.partial_rows / group;  // of a part
  if (it.chunks <= 1 || column >= a.value_dim) return;
  for (; row < it.queries * group && row < queries * group; it.queries -= queries) {
    float m = kNoScore, l = 0.0f, o[4] = {};
    for (int c = 0; c < it.chunks; ++c) {
      const int64_t at = (int64_t(it.first_partial + c) * a.kv_heads + head) * a.partial_rows + row;
      const float2 sum = *reinterpret_cast<const float2*>(a.partial_sums + at * 2);
      const float4 x = *reinterpret_cast<const float4*>(a.partial + at * a.value_dim + column);
      const float top = fmaxf(m, sum.x), mine = exp2f(m - top), other = exp2f(sum.x - top);
      m = top, l = l * mine + sum.y * other;
      o[0] = o[0] * mine + x.x * other, o[1] = o[1] * mine + x.y * other;
      o[2] = o[2] * mine + x.z * other, o[3] = o[3] * mine + x.w * other;
    }
    const int query_head = head * group + row % group;
    const float factor = normaliser(a, query_head, m, l);
    const float x[4] = {o[0] * factor, o[1] * factor, o[2] * factor, o[3] * factor};
    store_values(a.dtype, a.out,
                 int64_t(it.query_row + row / group) * a.out_stride + query_head * a.value_dim + column, x);
    it.first_partial += it.chunks, it.query_row += queries;
  }
}

template <class C, int N>
cudaError_t launch(const AttentionArgs& a, bool decodes, bool extends, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const Launch how{dim3(4 * device.multiprocessors), kWarps * 32, shared_bytes(a.head_dim)};
  cudaError_t error = cudaSuccess;
  if (decodes) error = launch_after(chunk_kernel<C, N>, how, stream, a);
  if (decodes && error == cudaSuccess)
    error = launch_after(fold_kernel, {dim3(a.sequences, a.kv_heads * a.partial_rows), 128}, stream, a);
  if (extends && error == cudaSuccess) error = launch_after(tile_kernel<C, N>, how, stream, a);
  return error;
}

}  // namespace

cudaError_t simt_attention(const AttentionArgs& a, bool decodes, bool extends, cudaStream_t stream) {
  const bool coded_latent = a.cache.cells != Cells::plain && a.cache.kv_stride == 0;
  if (a.prefix || coded_latent || a.value_dim % 4 != 0 || a.value_dim > 4 * kColumns) return cudaErrorInvalidValue;
  return with_cells(a.dtype, a.cache.cells, [&](auto tag) {
    using C = decltype(tag);
    if (a.value_dim <= kColumns) return launch<C, 1>(a, decodes, extends, stream);
    if (a.value_dim <= 2 * kColumns) return launch<C, 2>(a, decodes, extends, stream);
    return launch<C, 4>(a, decodes, extends, stream);
  });
}

}  // namespace octavo
