// Products of codes of eight bits with codes of eight bits, on Hopper (sm_90a): out = x weight^T with scales, bias and
// residual, or activation(x gate^T) * (x up^T).
//
// The weight's rows are the 64 rows of a tensor core instruction, and x's are its columns: few of them leave nothing of it
// empty. Pairs of blocks (pair_tiles.cuh) share their rows of x. A block goes on to its next tile, whose first stages arrive
// while the results of one are stored. Gate and up rows lie in shared memory by turns, eight of each, so that both factors
// of a result are one thread's.
//
// Whole numbers add up exactly. Of floats the tensor cores keep fewer bits than a float32 has, so what they add up of 128 of
// the depth goes into float32 sums, by way of its scales where those are of blocks (DeepSeek-V3, arXiv 2412.19437, section
// 3.3.2). Every result is one chain over the depth in its order: neither tiles nor the number of rows change a bit.
#include <algorithm>

#include "device/pair_tiles.cuh"
#include "device/tensor_map.cuh"
#include "device/wgmma.cuh"
#include "linear/linear.cuh"
#include "w8a8/w8a8.cuh"

namespace octavo {
namespace {

constexpr int kWeights = 64;  // rows of the weight, for a warpgroup
constexpr int kRowBytes = 128;  // of a stage: so much of the depth, its 16-byte units swizzled by the copy
static_assert(kRowBytes == kScaledDepth);
constexpr int kInner = 32;  // of the depth, what an instruction multiplies
constexpr int kBarriers = 512, kAligning = 1024;  // bytes; what lies in front of the ring begins at a multiple of the latter
constexpr int kMostStages = 32;

// tokens: the most rows of x. Of few rows, blocks of two products that follow each other fit on a multiprocessor together,
// so that the next one's weights are on their way while this one ends.
template <class codes, int tokens, int consumers, bool in_blocks>
struct Shape {
  using C = codes;
  using Sum = typename C::Sum;
  static constexpr int kTokens = tokens, kConsumers = consumers, kThreads = (consumers + 1) * kWarpgroup;
  static constexpr bool kInBlocks = in_blocks;
  static constexpr bool kWhole = std::is_same_v<Sum, int>;
  // Columns of one instruction.
  static constexpr int kChain = kWhole || tokens <= 128 ? tokens : tokens / 2, kChains = tokens / kChain;
  static constexpr int kResident = tokens <= 32 ? 2 : 1;
  static constexpr int kMostBytes = (kResident == 2 ? 112 : 226) * 1024;
  // In front of the ring: barriers, each consumer's scales of the tile's rows of x.
  static constexpr int kHead = (kBarriers + (in_blocks ? 0 : consumers * tokens * 4) + 1023) / 1024 * 1024;
  // Scales of a stage: x's, then the weight's.
  static constexpr int kXScales = (tokens * 4 + 127) / 128 * 128;
  static constexpr int kScaleBytes = in_blocks ? kXScales + consumers * kWeights * 4 : 0;
  using Sums = Sum[kChains][kChain / 2];
};

// Tiles of a launch, in pairs along the weight's rows: of `tokens` rows of x, `height` of the weight. Tiles are as high as
// the rows they share out need: copies of rows that are not there take longer than of those that are. Instructions read on
// behind them, for results that are not stored. `steps` of the depth go through `ring` stages, which have room for `tokens`,
// and `copied` of which come.
struct Grid {
  int along_x, along_weight, tokens, copied, height, steps, ring;
  __host__ __device__ int pairs() const { return along_x * along_weight; }
  __host__ __device__ int stage_bytes() const { return (height + tokens) * kRowBytes; }
  // From a stage's beginning on, what instructions read.
  template <class S>
  __host__ __device__ int read_bytes() const {
    const int weights = S::kConsumers * kWeights, all = height + S::kTokens;
    return (weights > all ? weights : all) * kRowBytes;
  }
  // Where the scales begin, behind all of that.
  template <class S>
  __host__ __device__ int scales_at() const {
    return S::kHead + (ring - 1) * stage_bytes() + read_bytes<S>();
  }
  template <class S>
  __host__ __device__ int bytes() const {
    return scales_at<S>() + ring * S::kScaleBytes;
  }
};

struct Maps {
  CUtensorMap x, weight, x_scales, weight_scales;
};

#if OCTAVO_WGMMA

__device__ inline void copy_4d(uint32_t shared, const CUtensorMap& map, int first, int third, int fourth, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared),
      "l"(&map), "r"(first), "r"(0), "r"(third), "r"(fourth), "r"(barrier)
      : "memory");
}
template <class T, class S>
struct Block {
  using Sum = typename S::Sum;
  using Part = Sum[S::kChain / 2];

  const W8A8Args& a;
  const Grid grid;
  const uint32_t base;
  const char* const memory;
  const int rank, lane;
  const int consumer;  // -1: of the warpgroup that copies
  const int own_rows;  // of the tile's rows of the weight, this warp's first one of sixteen
  BufferRing ring;

  __device__ Block(const W8A8Args& args, const Grid& all, const char* at)
      : a(args), grid(all), base(shared_address(at)), memory(at), rank(blockIdx.x % kPair),
        lane(threadIdx.x % 32), consumer(uniform(threadIdx.x / kWarpgroup) - 1),
        own_rows(consumer * kWeights + uniform(threadIdx.x % kWarpgroup / 32) * 16), ring(base, all.ring) {}

  __device__ uint32_t weights_at(int stage) const { return base + S::kHead + stage * grid.stage_bytes(); }
  __device__ uint32_t x_at(int stage) const { return weights_at(stage) + grid.height * kRowBytes; }
  __device__ int scales_at(int stage) const { return grid.template scales_at<S>() + stage * S::kScaleBytes; }
  __device__ int first_pair() const { return blockIdx.x / kPair; }
  __device__ int pairs_apart() const { return gridDim.x / kPair; }

  __device__ void init_barriers() const {
    ring.init(1, kPair * 4 * S::kConsumers);
    fence_barriers();
  }

  struct Tile {
    int token, column;  // gated, columns count gate and up by turns
  };
  __device__ Tile tile(int pair) const {
    const TilePlace at = tile_place(pair, grid.along_x, grid.along_weight);
    return {at.along_x * grid.tokens, (at.along_weight * kPair + rank) * grid.height};
  }

  // This block's share of a stage: its weights, the x that both blocks bring, scales.
  __device__ int stage_bytes() const {
    return (grid.height + grid.copied) * kRowBytes + (S::kInBlocks ? (S::kTokens + grid.height) * int(sizeof(float)) : 0);
  }
  __device__ void bring_weights(const Maps& maps, const Tile& to, int step, int stage) const {
    const uint32_t barrier = ring.full + 8 * stage;
    if (a.gated) copy_4d(weights_at(stage), maps.weight, step * kRowBytes, 0, to.column / 16, barrier);
    else copy_rows(weights_at(stage), maps.weight, step * kRowBytes, to.column, barrier);
    if constexpr (S::kInBlocks) {
      const uint32_t scales = base + scales_at(stage) + S::kXScales;
      if (a.gated) copy_4d(scales, maps.weight_scales, 0, to.column / 16, step, barrier);
      else copy_rows(scales, maps.weight_scales, to.column, step, barrier);
    }
  }
  // Up to eight rows are one block's to copy, of more each copies half.
  __device__ void bring_x(const Maps& maps, const Tile& to, int step, int stage) const {
    const uint32_t barrier = ring.full + 8 * stage;
    const int from = grid.tokens == 8 ? 0 : rank * (grid.tokens / kPair);
    if (grid.tokens > 8 || rank == 0)
      copy_rows(x_at(stage) + from * kRowBytes, maps.x, step * kRowBytes, to.token + from, barrier, 3);
    if constexpr (S::kInBlocks) copy_rows(base + scales_at(stage), maps.x_scales, to.token, step, barrier);
  }
  __device__ void release(int stage) const { leave_stage(ring, stage, lane); }

  // Begins what the stage that comes next adds to `sums`, or, `kFirst`, sets them to.
  template <bool kFirst>
  __device__ void begin(int chain, Part& sums) const {
    const uint32_t rows = uniform((weights_at(ring.stage) + consumer * kWeights * kRowBytes) / 16);
    const uint32_t tokens = uniform((x_at(ring.stage) + chain * S::kChain * kRowBytes) / 16);
#pragma unroll
    for (int k = 0; k < kRowBytes / kInner; ++k) {
      const uint64_t left = operand<128>(rows + 2 * k), right = operand<128>(tokens + 2 * k);
      if constexpr (kFirst) {
        if (k == 0) wgmma_codes_first(sums, left, right);
        else wgmma_codes(sums, left, right);
      } else {
        wgmma_codes(sums, left, right);
      }
    }
  }

  // Whole numbers: the instructions add up everything.
  __device__ void multiply(int (&sums)[S::kChains][S::kChain / 2]) {
    int previous = 0;
    for (int i = 0; i < grid.steps; ++i) {
      ring.await_full();
      products_begin();
#pragma unroll
      for (int c = 0; c < S::kChains; ++c) begin<false>(c, sums[c]);
      products_commit();
      if (i > 0) products_wait<1>(), release(previous);
      previous = ring.stage;
      ring.advance();
    }
    products_wait<0>();
#pragma unroll
    for (int c = 0; c < S::kChains; ++c) pin(sums[c]);
    release(previous);
  }

  // Adds what a stage gave.
  __device__ void add(float (&sums)[S::kChain / 2], const float (&part)[S::kChain / 2], int stage, int chain) const {
    if constexpr (S::kInBlocks) {
      const float* scales = reinterpret_cast<const float*>(memory + scales_at(stage));
      const float* weight = scales + S::kXScales / 4 + own_rows + lane / 4;
      const float low = weight[0], high = weight[8];
      const float2* x = reinterpret_cast<const float2*>(scales + chain * S::kChain) + lane % 4;
#pragma unroll
      for (int n = 0; n < S::kChain / 8; ++n) {
        const float2 own = x[4 * n];
        sums[4 * n] = __fmaf_rn(part[4 * n], __fmul_rn(own.x, low), sums[4 * n]);
        sums[4 * n + 1] = __fmaf_rn(part[4 * n + 1], __fmul_rn(own.y, low), sums[4 * n + 1]);
        sums[4 * n + 2] = __fmaf_rn(part[4 * n + 2], __fmul_rn(own.x, high), sums[4 * n + 2]);
        sums[4 * n + 3] = __fmaf_rn(part[4 * n + 3], __fmul_rn(own.y, high), sums[4 * n + 3]);
      }
      pin(sums);  // the scales have been read when the stage is given back
      __syncwarp();
    } else {
#pragma unroll
      for (int i = 0; i < S::kChain / 2; ++i) sums[i] += part[i];
    }
  }

  // Floats: each stage's sums begin anew. Those of one chain are two, so that the next stage is multiplied while one's are
  // added; of two chains there are no registers for that, and the other warpgroup multiplies meanwhile.
  __device__ void multiply(float (&sums)[S::kChains][S::kChain / 2]) {
    if constexpr (S::kChains == 1) multiply_ahead(sums[0]);
    else multiply_by_turns(sums);
  }
  __device__ int start(Part& part) {
    ring.await_full();
    products_begin();
    begin<true>(0, part);
    products_commit();
    const int stage = ring.stage;
    ring.advance();
    return stage;
  }
  __device__ void multiply_ahead(float (&sums)[S::kChain / 2]) {
    Part even, odd;
    int stage = start(even), next = stage;
    for (int i = 1; i < grid.steps; i += 2) {
      next = start(odd);
      products_wait<1>(even);
      add(sums, even, stage, 0), release(stage);
      stage = next;
      if (i + 1 == grid.steps) break;
      next = start(even);
      products_wait<1>(odd);
      add(sums, odd, stage, 0), release(stage);
      stage = next;
    }
    if (grid.steps % 2 == 1) products_wait<0>(even), add(sums, even, stage, 0);
    else products_wait<0>(odd), add(sums, odd, stage, 0);
    release(stage);
  }
  __device__ void multiply_by_turns(float (&sums)[S::kChains][S::kChain / 2]) {
    for (int i = 0; i < grid.steps; ++i) {
      ring.await_full();
#pragma unroll
      for (int c = 0; c < S::kChains; ++c) {
        Part part;
        products_begin();
        begin<true>(c, part);
        products_commit();
        products_wait<0>(part);
        add(sums[c], part, ring.stage, c);
      }
      release(ring.stage);
      ring.advance();
    }
  }

  __device__ void compute() {
    // The second one lags by a stage, and so multiplies on while the first stores.
    if (consumer > 0) barrier_wait(ring.full + 8 * min(1, grid.steps - 1), 0);
    for (int pair = first_pair(); pair < grid.pairs(); pair += pairs_apart()) {
      const Tile to = tile(pair);
      const Columns columns = columns_of(to);
      typename S::Sums sums;
#pragma unroll
      for (auto& chain : sums)
#pragma unroll
        for (Sum& sum : chain) sum = 0;
      const RowScales scales = row_scales_of(to);
      multiply(sums);
      keep(scales);
      if (a.gated) store_gated(to, columns, sums);
      else store_plain(to, columns, sums);
    }
  }

  // Scales of the tile's rows of x, which the previous kernel may have written. Loaded before the sums and kept in shared
  // memory after them, they are waited for once a tile; each consumer has its own, since the two store by turns.
  static constexpr int kScalesEach = (S::kTokens + kWarpgroup - 1) / kWarpgroup;
  struct RowScales {
    float of[kScalesEach];
  };
  __device__ float* kept() const {
    return reinterpret_cast<float*>(const_cast<char*>(memory) + kBarriers) + consumer * S::kTokens;
  }
  __device__ RowScales row_scales_of(const Tile& to) const {
    wait_for_previous_kernel();
    RowScales scales{};
    if constexpr (!S::kInBlocks) {
#pragma unroll
      for (int i = 0; i < kScalesEach; ++i) {
        scales.of[i] = a.x.scales[min(to.token + int(threadIdx.x % kWarpgroup) + i * kWarpgroup, a.rows - 1)];
        hold(scales.of[i]);
      }
    }
    return scales;
  }
  __device__ void keep(const RowScales& scales) const {
    if constexpr (S::kInBlocks) return;
    barrier_sync(1 + consumer, kWarpgroup);  // the previous tile's have been read
#pragma unroll
    for (int i = 0; i < kScalesEach; ++i) {
      const int token = threadIdx.x % kWarpgroup + i * kWarpgroup;
      if (token < S::kTokens) kept()[token] = scales.of[i];
    }
    barrier_sync(1 + consumer, kWarpgroup);
  }

  // A thread's two rows of the weight: of a product, columns that are eight apart; gated, one of the gate and one of
  // what it multiplies.
  struct Columns {
    int first, second;
    float first_scale, second_scale;
  };
  __device__ Columns columns_of(const Tile& to) const {
    Columns c;
    const int row = to.column + own_rows;
    c.first = (a.gated ? row / 2 : row) + lane / 4;
    c.second = c.first + (a.gated ? a.columns / 2 : 8);
    const auto scale = [&](int column) { return S::kInBlocks ? 1.0f : a.weight.scales[min(column, a.columns - 1)]; };
    c.first_scale = scale(c.first), c.second_scale = scale(c.second);
    hold(c.first_scale), hold(c.second_scale);
    return c;
  }
  __device__ float bias_at(int column) const {
    return a.bias ? element<T>(a.bias, min(column, a.columns - 1)) : 0.0f;
  }
  // Scales of the tile's rows `token` and `token + 1`.
  __device__ float2 x_scales(int token) const {
    if constexpr (S::kInBlocks) return {1.0f, 1.0f};
    else return *reinterpret_cast<const float2*>(kept() + token);
  }
  __device__ float value(Sum sum, float x_scale, float weight_scale) const {
    if constexpr (S::kInBlocks) return sum;
    else return scaled(sum, x_scale, weight_scale);
  }
  __device__ float2 values(Sum low, Sum high, float2 x_scales, float weight_scale, float bias) const {
    return {__fadd_rn(value(low, x_scales.x, weight_scale), bias), __fadd_rn(value(high, x_scales.y, weight_scale), bias)};
  }
  // Sum `i` of the eight tokens `n`.
  __device__ Sum at(const typename S::Sums& sums, int n, int i) const {
    constexpr int per_chain = S::kChain / 8;
    return sums[n / per_chain][n % per_chain * 4 + i];
  }

  // Sixteen tokens at a time, two eights of columns: four units of 16 bytes, one for each of four threads.
  __device__ void store_plain(const Tile& to, const Columns& columns, const typename S::Sums& sums) const {
    const int unit = lane % 4, row = own_rows + unit % 2 * 8, column = to.column + row;
    const float biases[2] = {bias_at(columns.first), bias_at(columns.second)};
    const int end = min(a.rows, to.token + grid.tokens);
    const auto token_at = [&](int n) { return to.token + (n + unit / 2) * 8 + lane / 4; };
    const auto is_real = [&](int n) { return token_at(n) < end && row < grid.height && column < a.columns; };
    const auto addend = [&](int n) {
      if (!a.residual || !is_real(n)) return make_uint4(0, 0, 0, 0);
      return *reinterpret_cast<const uint4*>(static_cast<const T*>(a.residual) + token_at(n) * a.residual_stride + column);
    };
    uint4 next = addend(0);
#pragma unroll
    for (int n = 0; n < S::kTokens / 8; n += 2) {
      if (n * 8 >= grid.tokens) break;
      const int token = token_at(n);
      const bool real = is_real(n);
      uint32_t words[4], more[4] = {};
      if (a.residual) {
        const uint4 raw = next;
        if (n + 2 < S::kTokens / 8) next = addend(n + 2);  // on its way while this one is added
        more[0] = raw.x, more[1] = raw.y, more[2] = raw.z, more[3] = raw.w;
        transpose_quad(more);
#pragma unroll
        for (uint32_t& word : more) word = transpose(word);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int eight = n + i / 2, half = i % 2;
        words[i] = 0;
        if (eight >= S::kTokens / 8) continue;
        float2 sum = values(at(sums, eight, 2 * half), at(sums, eight, 2 * half + 1),
                            x_scales(eight * 8 + unit * 2),
                            half ? columns.second_scale : columns.first_scale, biases[half]);
        if (a.residual) {
          const float2 addend = unpack<T>(more[i]);
          sum.x = __fadd_rn(sum.x, addend.x), sum.y = __fadd_rn(sum.y, addend.y);
        }
        words[i] = transpose(pack<T>(sum.x, sum.y));
      }
      transpose_quad(words);
      if (real)
        *reinterpret_cast<uint4*>(static_cast<T*>(a.out) + token * a.out_stride + column) = {words[0], words[1], words[2], words[3]};
    }
  }

  // Thirty-two tokens at a time, one eight of columns.
  __device__ void store_gated(const Tile& to, const Columns& columns, const typename S::Sums& sums) const {
    const int unit = lane % 4, row = own_rows, column = (to.column + row) / 2;
    const float gate_bias = bias_at(columns.first), up_bias = bias_at(columns.second);
    const int end = min(a.rows, to.token + grid.tokens);
#pragma unroll
    for (int n = 0; n < S::kTokens / 8; n += 4) {
      if (n * 8 >= grid.tokens) break;
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = 0;
        if (n + i >= S::kTokens / 8) continue;
        const float2 x = x_scales((n + i) * 8 + unit * 2);
        const float2 gate = values(at(sums, n + i, 0), at(sums, n + i, 1), x, columns.first_scale, gate_bias);
        const float2 up = values(at(sums, n + i, 2), at(sums, n + i, 3), x, columns.second_scale, up_bias);
        words[i] = transpose(
            pack<T>(gated<T>(a.activation, gate.x, up.x), gated<T>(a.activation, gate.y, up.y)));
      }
      transpose_quad(words);
      const int token = to.token + (n + unit) * 8 + lane / 4;
      if (token < end && row < grid.height && column < a.columns / 2)
        *reinterpret_cast<uint4*>(static_cast<T*>(a.out) + token * a.out_stride + column) = {words[0], words[1], words[2], words[3]};
    }
  }
};

#endif

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident)
    w8a8_wide_kernel(const __grid_constant__ W8A8Args a, const __grid_constant__ Maps maps, const Grid grid) {
#if OCTAVO_WGMMA
  extern __shared__ char memory[];
  const uint32_t before = -shared_address(memory) & 1023u;
  Block<T, S> block(a, grid, memory + before);
  if (threadIdx.x == 0) block.init_barriers();
  __syncthreads();
  cluster_arrive(), cluster_wait();
  if (threadIdx.x >= kWarpgroup) {
    if constexpr (S::kConsumers == 2) take_registers<232>();  // with 40 all of the 168 that each thread begins with
    block.compute();
  } else {
    if constexpr (S::kConsumers == 2) give_registers<40>();
    if (threadIdx.x == 0) bring_tiles(block, maps, grid.steps);
  }
#endif
}

constexpr int over(int n, int by) { return (n + by - 1) / by; }

// [gate; up] as [eights][gate, up][8][depth], or, `in_blocks`, its scales as [groups][eights][gate, up][8].
bool describe_weight(Maps& maps, const W8A8Args& a, int height, bool in_blocks) {
  constexpr auto byte = CU_TENSOR_MAP_DATA_TYPE_UINT8, number = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const cuuint64_t depth = a.depth, columns = a.columns, row = a.weight.stride, groups = over(a.depth, kScaledDepth);
  const cuuint64_t group = a.weight.scales_stride * sizeof(float);
  const cuuint32_t high = height;
  if (!a.gated)
    return describe_tensor<2>(maps.weight, a.weight.codes, {depth, columns}, {row}, {kRowBytes, high}, byte) &&
           (!in_blocks || describe_tensor<2>(maps.weight_scales, a.weight.scales, {columns, groups}, {group}, {high, 1},
                                             number, BoxRows::dense));
  return describe_tensor<4>(maps.weight, a.weight.codes, {depth, 8, 2, columns / 16}, {row, row * (columns / 2), row * 8},
                            {kRowBytes, 8, 2, high / 16}, byte) &&
         (!in_blocks || describe_tensor<4>(maps.weight_scales, a.weight.scales, {8, 2, columns / 16, groups},
                                           {columns / 2 * sizeof(float), 8 * sizeof(float), group}, {8, 2, high / 16, 1},
                                           number, BoxRows::dense));
}
bool describe_x(Maps& maps, const W8A8Args& a, int box, int tokens, bool in_blocks) {
  const cuuint64_t depth = a.depth, rows = a.rows, groups = over(a.depth, kScaledDepth);
  return describe_tensor<2>(maps.x, a.x.codes, {depth, rows}, {cuuint64_t(a.x.stride)}, {kRowBytes, cuuint32_t(box)},
                            CU_TENSOR_MAP_DATA_TYPE_UINT8) &&
         (!in_blocks || describe_tensor<2>(maps.x_scales, a.x.scales, {rows, groups}, {a.x.scales_stride * sizeof(float)},
                                           {cuuint32_t(tokens), 1}, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, BoxRows::dense));
}

template <class S>
Grid grid_of(const W8A8Args& a, int height) {
  const int along_x = over(a.rows, S::kTokens);
  const int tokens = a.rows <= 8 ? 8 : over(over(a.rows, along_x), 16) * 16;
  Grid grid{along_x, over(a.columns, height * kPair), tokens, a.rows <= 8 ? a.rows : tokens, height,
            over(a.depth, kRowBytes), 0};
  const int other = kAligning + S::kHead + grid.read_bytes<S>() - grid.stage_bytes();
  grid.ring = std::min((S::kMostBytes - other) / (grid.stage_bytes() + S::kScaleBytes), kMostStages);
  return grid;
}

template <class T, class S>
cudaError_t launch(const W8A8Args& a, int height, const Device& device, cudaStream_t stream) {
  const Grid grid = grid_of<S>(a, height);
  if (grid.ring < 2) return cudaErrorNotSupported;
  Maps maps{};
  if (!describe_weight(maps, a, height, S::kInBlocks) ||
      !describe_x(maps, a, grid.tokens == 8 ? grid.copied : grid.copied / kPair, S::kTokens, S::kInBlocks))
    return cudaErrorNotSupported;
  const int pairs = std::min(grid.pairs(), device.multiprocessors / kPair);
  const Launch how{dim3(kPair * pairs), S::kThreads, kAligning + grid.bytes<S>(), kPair};
  return launch_after(w8a8_wide_kernel<T, S>, how, stream, a, maps, grid);
}

// With the tile that is asked for, which is one of these.
template <class T, class C, bool in_blocks>
cudaError_t launch_tile(const W8A8Args& a, const W8A8Launch& tile, const Device& device, cudaStream_t stream) {
  const auto is = [&](int consumers, int tokens) { return tile.consumers == consumers && tile.tokens == tokens; };
  if (is(1, 8)) return launch<T, Shape<C, 8, 1, in_blocks>>(a, tile.height, device, stream);
  if (is(1, 16)) return launch<T, Shape<C, 16, 1, in_blocks>>(a, tile.height, device, stream);
  if (is(1, 32)) return launch<T, Shape<C, 32, 1, in_blocks>>(a, tile.height, device, stream);
  if (is(1, 64)) return launch<T, Shape<C, 64, 1, in_blocks>>(a, tile.height, device, stream);
  if (is(1, 128)) return launch<T, Shape<C, 128, 1, in_blocks>>(a, tile.height, device, stream);
  if (is(2, 128)) return launch<T, Shape<C, 128, 2, in_blocks>>(a, tile.height, device, stream);
  if (is(2, 208)) return launch<T, Shape<C, 208, 2, in_blocks>>(a, tile.height, device, stream);
  if (is(2, 256)) return launch<T, Shape<C, 256, 2, in_blocks>>(a, tile.height, device, stream);
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t w8a8_wide(const W8A8Args& a, const W8A8Launch& tile, const Device& device, cudaStream_t stream) {
  const bool fits = tile.height > 0 && tile.height % 16 == 0 && tile.height <= tile.consumers * kWeights;
  if (device.major != 9 || !fits || (tile.tokens == 8 && a.rows > 8) || !in_eights(a)) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.cells == Cells::i8 && !a.in_blocks) return launch_tile<T, Int8, false>(a, tile, device, stream);
    if (a.cells != Cells::f8) return cudaErrorInvalidValue;
    if (a.in_blocks) return launch_tile<T, Fp8, true>(a, tile, device, stream);
    return launch_tile<T, Fp8, false>(a, tile, device, stream);
  });
}

}  // namespace octavo
