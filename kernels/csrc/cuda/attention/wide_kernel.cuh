// Attention of heads with 512 values on Hopper (sm_90a), for decodes and prompts alike.
//
// A block has one tile of 64 packed query rows at a time, in shared memory, and walks tiles of 64 tokens from the first on. All
// heads that read a KV head are rows of one tile, so keys are read once for them; of a latent row, which is key and value, one
// copy serves both products. A producer warpgroup brings queries and keys; cells in eight bits pass its registers, where they
// become elements of the data's type. Two consumer warpgroups share everything else: of
// the scores each has the tile's half of 32 tokens, of the output the half of 256 columns, 128 registers of a thread. They
// agree on each row's highest score, and hand each other their weights, through shared memory (FlashAttention, arXiv
// 2205.14135, with the split of the output that wide heads need).
//
// Rows of a tile do not meet, and tiles of keys that a row does not see change none of its bits. So where the plan cuts no
// keys, a row depends neither on its neighbours nor on how its prompt was cut.
#pragma once

#include "attention/attention.cuh"
#include "attention/wide.cuh"
#include "attention/wide_cells.cuh"
#include "device/buffer_ring.cuh"
#include "device/tensor_map.cuh"

namespace octavo {
namespace {

constexpr int kConsumers = 2 * kWarpgroup, kThreads = kConsumers + kWarpgroup;
constexpr int kLoaders = 96;  // threads that bring queries, or cells in eight bits; the warp before them brings the other
constexpr int kScores = kWideKeys / 2, kOutputs = kWideValues / 2;  // columns of a consumer warpgroup
constexpr int kPart = kWideKeys * 128;                              // bytes of 64 columns of a tile
static_assert(kWideRows == 64 && kWideKeys == 64);

// Weights are relative to a score of the row that lies no more than this below the highest, in the log2 domain: where they
// stay so, the output needs no new scale.
constexpr float kSlack = 8.0f;
// The least power of two that a scale counts with: weights relative to less would have no room in a sum.
constexpr float kLeastPower = -64.0f;

// Named barriers of the consumers; 0 is __syncthreads.
enum Named { kMaxima = 1, kWeights = 2, kSums = 3, kCleared = 4 };

// Shared memory: every tile is [columns / 64][64][64], swizzled. Scales of cells in eight bits are those of each tile's tokens.
template <int W, bool coded = false>
struct Layout {
  static constexpr int kParts = W / 64, kTile = kParts * kPart;
  static constexpr int kTilesAt = kTile, kWeightsAt = 3 * kTile, kMaximaAt = kWeightsAt + kPart;
  static constexpr int kSumsAt = kMaximaAt + 2 * kWideRows * 4, kScalesAt = kSumsAt + 2 * kWideRows * 4;
  static constexpr int kBarriersAt = kScalesAt + (coded ? 2 * kWideKeys * 4 : 0);
  static constexpr int kBytes = kBarriersAt + 8 * 6 + 1024;  // what begins at a multiple of 1,024
};

// A stretch of tiles of keys of one tile of rows.
struct Segment {
  int sequence, row_tile, head, query_row, queries, context;
  int first, last, all;  // tiles of keys, and how many the rows see

  __device__ int first_row() const { return row_tile * kWideRows; }
  // The last token that a packed row sees. Rows behind the last query pass for that one's.
  __device__ int last_key(int row, int group) const {
    return context - queries + min((first_row() + row) / group, queries - 1);
  }
  __device__ bool is_whole() const { return first == 0 && last == all; }
  __device__ int slot() const { return 2 * int(blockIdx.x) + (first == 0); }
};

// The segments of a block.
struct Walk {
  const WideArgs& a;
  const int group;
  WideStart at;
  const WideStart end;

  __device__ explicit Walk(const WideArgs& args)
      : a(args), group(args.heads / args.kv_heads), at(args.starts[blockIdx.x]), end(args.starts[blockIdx.x + 1]) {}
  __device__ bool is_over() const {
    if (at.sequence != end.sequence) return at.sequence > end.sequence;
    return at.tile != end.tile ? at.tile > end.tile : at.key >= end.key;
  }
  __device__ bool next(Segment& s) {
    while (!is_over()) {
      const WideSequence q(a.context_lens, a.query_start, at.sequence);
      if (at.tile >= q.tiles(group, a.kv_heads)) {
        at = {at.sequence + 1, 0, 0, 0};
        continue;
      }
      const bool ends = at.sequence == end.sequence && at.tile == end.tile;
      s = {at.sequence, at.tile / a.kv_heads, at.tile % a.kv_heads, q.row, q.queries, q.context, at.key, 0, 0};
      s.all = q.key_tiles(s.row_tile, group), s.last = ends ? end.key : s.all;
      at.tile += 1, at.key = 0;
      return true;
    }
    return false;
  }
};

#if OCTAVO_WGMMA

// Both buffers of tiles are a ring of latent rows, or one has keys and the other values.
template <int W, bool latent, bool coded>
struct Rings {
  BufferRing queries, keys, values;
  __device__ explicit Rings(uint32_t shared)
      : queries(shared + Layout<W, coded>::kBarriersAt, 1), keys(queries.full + 8 * 2, latent ? 2 : 1),
        values(latent ? keys.full : keys.full + 8 * 2, latent ? 2 : 1) {}
  __device__ void init() const {
    constexpr int of_tiles = coded ? kLoaders : 1, of_queries = coded ? 32 : kLoaders;  // threads that say so
    queries.init(of_queries, kConsumers / 32), keys.init(of_tiles, kConsumers / 32);
    if (!latent) values.init(of_tiles, kConsumers / 32);
  }
};

// The first tiles of keys of a segment, and of values, into the L2.
template <class T, int W, bool latent>
__device__ void prefetch_tiles(const WideArgs& a, const Segment& s) {
  const int bs = a.cache.block_size, lane = threadIdx.x % 32, end = min(s.context, min(s.last, s.first + 2) * kWideKeys);
  for (int token = s.first * kWideKeys + lane * bs; token < end; token += 32 * bs) {
    const T* block = static_cast<const T*>(a.cache.data) + int64_t(a.tables[s.sequence * a.table_stride + token / bs]) * a.cache.block_stride +
                     s.head * a.cache.head_stride;
    const int there = min(bs, end - token) * W * int(sizeof(T));
    prefetch_bulk(block, there);
    if (!latent) prefetch_bulk(block + a.cache.kv_stride, there);
  }
}

// One warp brings the tiles of keys, or by turns of keys and of values, in boxes of 64 columns of `box` tokens. Tables and plan are
// older than the previous kernel; a cell may be one of its own.
template <class T, int W, bool latent>
__device__ void bring_tiles(const WideArgs& a, const CUtensorMap& keys, const CUtensorMap& values, int box, uint32_t shared) {
  using L = Layout<W>;
  Rings<W, latent, false> rings(shared);
  const int lane = threadIdx.x % 32, slices = kWideKeys / box, shift = __ffs(a.cache.block_size) - 1;
  Walk walk(a);
  Segment s;
  bool more = walk.next(s);
  if (more) prefetch_tiles<T, W, latent>(a, s);
  wait_for_previous_kernel();
  for (; more; more = walk.next(s)) {
    const int32_t* table = a.tables + s.sequence * a.table_stride;
    for (int k = s.first; k < s.last; ++k) {
      const int token = k * kWideKeys, there = max(0, min(slices, over(s.context - token, box)));
      for (int of_values = 0; of_values < (latent ? 1 : 2); ++of_values) {
        BufferRing& ring = of_values ? rings.values : rings.keys;
        ring.await_empty();
        if (lane == 0) barrier_expect(ring.full_now(), there * L::kParts * box * 128);
        __syncwarp();
        const uint32_t tile = shared + L::kTilesAt + (latent ? ring.stage : of_values) * L::kTile;
        for (int i = lane; i < there * L::kParts; i += 32) {
          const int slice = i / L::kParts, part = i % L::kParts, position = token + slice * box;
          copy_box(tile + part * kPart + slice * box * 128, of_values ? values : keys, part,
                   position & (a.cache.block_size - 1), s.head, table[position >> shift], ring.full_now());
        }
        ring.advance();
      }
    }
  }
}

// The threads from `kFirst` on bring the queries; rows of a tile lie apart in memory. Those behind the last are zeros, which the
// first tile has before the previous kernel has ended.
template <class T, int W, bool latent, bool coded>
__device__ void bring_queries(const WideArgs& a, uint32_t shared) {
  constexpr int units = W / 8, kFirst = coded ? 0 : 32, kThreadsOf = coded ? 32 : kLoaders;
  BufferRing ring = Rings<W, latent, coded>(shared).queries;
  Walk walk(a);
  Segment s;
  bool more = walk.next(s), is_first = true;
  const auto bring = [&](int first, int last, bool real) {
    for (int i = first * units + int(threadIdx.x) - kFirst; i < last * units; i += kThreadsOf) {
      const int row = i / units, unit = i % units, packed = s.first_row() + row;
      const int64_t at =
          real ? (s.query_row + packed / walk.group) * a.q_stride + (s.head * walk.group + packed % walk.group) * W : 0;
      copy16(shared + unit / 8 * kPart + row * 128 + ((unit ^ row) & 7) * 16, static_cast<const T*>(a.q) + at + unit * 8, real);
    }
  };
  for (; more; more = walk.next(s)) {
    ring.await_empty();
    const int rows = min(kWideRows, s.queries * walk.group - s.first_row());
    bring(rows, kWideRows, false);
    if (is_first) wait_for_previous_kernel();
    is_first = false;
    bring(0, rows, true);
    commit_copies();
    wait_copies<0>();
    fence_bulk();
    barrier_arrive_once(ring.full_now());
    ring.advance();
  }
}

// Three warps bring the tiles of cells in eight bits: a lane widens sixteen cells of a token at a time. Four lanes have the token,
// and the four behind them the next one, whose units lie in other banks. Loads of `kAhead` rounds are under way, also of
// the tile that comes next.
template <class T, class C, int W, bool latent>
struct CellLoader {
  using L = Layout<W, true>;
  static constexpr int kTurns = 24, kAhead = 8, kWarps = kLoaders / 32;
  static_assert(kTurns / 2 * kWarps * 2 >= kWideKeys && kTurns % kAhead == 0);

  struct Tile {
    int head, left;     // `left`: tokens from its first on
    int offset, block;  // of its first token in a block; the block of the lane's slice of sixteen tokens
  };
  const WideArgs& a;
  char* const memory;
  const int lane, warp, shift;
  Walk walk;
  Segment segment;
  int key;
  bool of_values = false, is_over;  // what comes next

  __device__ CellLoader(const WideArgs& args, char* base)
      : a(args), memory(base), lane(threadIdx.x % 32), warp(threadIdx.x / 32 - 1), shift(__ffs(args.cache.block_size) - 1),
        walk(args) {
    is_over = !walk.next(segment), key = segment.first;
  }

  // The tile that comes next; false: there is none.
  __device__ bool next(Tile& tile) {
    if (is_over) return false;
    const int token = key * kWideKeys, own = token + lane % 4 * 16;
    tile.head = segment.head, tile.left = segment.context - token, tile.offset = token & (a.cache.block_size - 1);
    tile.block = own < segment.context ? a.tables[segment.sequence * a.table_stride + (own >> shift)] : 0;
    of_values = !latent && !of_values;
    if (!of_values && ++key == segment.last) is_over = !walk.next(segment), key = segment.first;
    return true;
  }
  // Cells of the block of a token of a tile, which is the first or, of two, the second of a turn; lanes may ask for different
  // ones.
  __device__ const uint8_t* block_of(const Tile& tile, int row, bool second) const {
    return static_cast<const uint8_t*>(a.cache.data) + int64_t(__shfl_sync(~0u, tile.block, row / 16)) * a.cache.block_stride +
           tile.head * a.cache.head_stride + (!latent && second ? a.cache.kv_stride : 0);
  }
  __device__ int within(const Tile& tile, int row) const { return (tile.offset + row) & (a.cache.block_size - 1); }

  // Two tokens of a warp in each pair of turns: half of their columns, then the other half. Not held from turn to turn, for want
  // of registers.
  __device__ int row_of(int turn) const {
    uint32_t pair = turn / 2 * kWarps + warp;
    hold(pair);
    return int(pair) * 2 + lane / 4 % 2;
  }
  __device__ int unit_of(int turn) const { return turn % 2 * 16 + lane / 8 * 4 + lane % 4; }
  __device__ uint4 load(const Tile& tile, bool second, int turn) const {
    const int row = row_of(turn);
    if (row >= kWideKeys) return {};
    const uint8_t* block = block_of(tile, row, second);
    if (row >= tile.left) return make_uint4(C::kNothing, C::kNothing, C::kNothing, C::kNothing);
    const int offset = within(tile, row);
    return load16(block + offset * kWideValues + swizzle_units(kWideValues / 16, offset, unit_of(turn)) * 16);
  }
  __device__ void store(char* to, bool second, int turn, const uint4& cells) const {
    const int row = row_of(turn), unit = unit_of(turn) * 2;
    if (row >= kWideKeys) return;
    uint4 first, last;
    widen_unit<T, C>(cells, !latent && second, first, last);
    char* const place = to + unit / 8 * kPart + row * 128;
    *reinterpret_cast<uint4*>(place + ((unit ^ row) & 7) * 16) = first;
    *reinterpret_cast<uint4*>(place + ((unit + 1 ^ row) & 7) * 16) = last;
  }

  // Scales, and the rotated columns of latents, which lie behind the codes.
  __device__ void bring_rest(const Tile& tile, int at) const {
    const int thread = int(threadIdx.x) - 32, bs = a.cache.block_size;
    if (warp < kWideKeys / 32) {
      const float* scales = reinterpret_cast<const float*>(block_of(tile, thread, at) + bs * kWideValues);
      reinterpret_cast<float*>(memory + L::kScalesAt)[at * kWideKeys + thread] =
          thread < tile.left ? load_float(scales + within(tile, thread)) : 0.0f;
    }
    if constexpr (latent) {
      constexpr int units = (W - kWideValues) / 8;
      const uint32_t to = shared_address(memory + L::kTilesAt + at * L::kTile + kWideValues / 64 * kPart);
      for (int first = warp * 32; first < kWideKeys * units; first += kLoaders) {
        const int row = (first + lane) / units, unit = lane % units;
        const uint8_t* block = block_of(tile, row, at);
        const bool real = row < tile.left;
        const int at_row = bs * (kWideValues + 4) + (real ? within(tile, row) : 0) * (W - kWideValues) * 2;
        copy16(to + row * 128 + ((unit ^ row) & 7) * 16, block + at_row + unit * 16, real);
      }
    }
  }

  __device__ void run() {
    wait_for_previous_kernel();
    // Both buffers by turns, whether they are one ring or two.
    const uint32_t full = Rings<W, latent, true>(shared_address(memory)).keys.full;
    uint32_t parity = 1;
    int at = 0;
    Tile now, then;
    bool more = next(now);
    uint4 ahead[kAhead];
    if (more) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) ahead[i] = load(now, false, i);
    }
    while (more) {
      const bool follows = next(then);
      char* const to = memory + L::kTilesAt + at * L::kTile;
      barrier_wait(full + (latent ? 16 + 8 * at : 8 + 16 * at), parity);
      bring_rest(now, at);
#pragma unroll 1
      for (int first = 0; first < kTurns; first += kAhead) {
        const bool last = first + kAhead == kTurns;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          store(to, at, first + i, ahead[i]);
          if (!last) ahead[i] = load(now, at, first + kAhead + i);
          else if (follows) ahead[i] = load(then, !at, i);
        }
      }
      commit_copies();
      wait_copies<0>();
      fence_bulk();
      barrier_arrive_once(full + (latent ? 8 : 16) * at);
      parity ^= at, at ^= 1;
      now = then, more = follows;
    }
  }
};

// One consumer warpgroup.
template <class T, class C, int W, bool latent>
struct Consumer {
  static constexpr bool coded = is_coded<C>;
  using L = Layout<W, coded>;
  const WideArgs& a;
  char* const memory;
  const uint32_t shared;
  const int warpgroup, lane, row;  // the first of the thread's two
  const float unit;                // scores s stand for s * unit in the log2 domain
  Rings<W, latent, coded> rings;
  float o[kOutputs / 2];
  float top[2], sum[2];  // the score that a row's weights are relative to; sum of this thread's weights
  int last_key[2];

  __device__ Consumer(const WideArgs& args, char* base)
      : a(args), memory(base), shared(shared_address(base)), warpgroup(threadIdx.x / kWarpgroup - 1), lane(threadIdx.x % 32),
        row(threadIdx.x % kWarpgroup / 32 * 16 + lane / 4), unit(coded ? 1.0f : args.scale * kLog2e), rings(shared) {}

  __device__ void release(uint32_t barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive_once(barrier);
  }
  // Where the tile of keys at hand begins in shared memory, or that of values.
  __device__ int keys_at() const { return L::kTilesAt + (latent ? rings.keys.stage * L::kTile : 0); }
  __device__ int values_at() const { return latent ? keys_at() : L::kTilesAt + L::kTile; }
  // The scales of a thread's `n`th pair of tokens, as keys or as values.
  __device__ float2 scales(bool of_values, int n) const {
    const int tile = latent ? rings.keys.stage : of_values;
    const float* from = reinterpret_cast<const float*>(memory + L::kScalesAt) + tile * kWideKeys + warpgroup * kScores;
    return *reinterpret_cast<const float2*>(from + lane % 4 * 2 + n * 8);
  }
  static __device__ float power_of(float scale) {
    return fmaxf(kLeastPower, float(int(__float_as_uint(scale) >> 23) - 127));
  }
  __device__ float* maxima(int of) const { return reinterpret_cast<float*>(memory + L::kMaximaAt) + of * kWideRows + row; }
  __device__ float* sums(int of) const { return reinterpret_cast<float*>(memory + L::kSumsAt) + of * kWideRows + row; }

  // Rows of the tile at hand from `end` on are zeroed: their weight is zero, but 0 * NaN would be NaN.
  __device__ void clear(int end) {
    char* const tile = memory + values_at();
    for (int i = int(threadIdx.x) - kWarpgroup; i < L::kTile / 16; i += kConsumers)
      if (i / 8 % kWideKeys >= end) *reinterpret_cast<uint4*>(tile + i * 16) = make_uint4(0, 0, 0, 0);
    fence_bulk();
    barrier_sync(kCleared, kConsumers);
  }

  __device__ void score(float (&s)[kScores / 2]) {
    const uint32_t q = uniform(shared / 16);
    const uint32_t k = uniform((shared + keys_at() + warpgroup * kScores * 128) / 16);
    products_begin();
#pragma unroll
    for (int i = 0; i < (coded ? kWideValues : W) / 16; ++i) {
      const uint32_t at = i / 4 * (kPart / 16) + i % 4 * 2;
      if (i == 0) wgmma_first(T{}, s, operand<128>(q), operand<128>(k));
      else wgmma(T{}, s, operand<128>(q + at), operand<128>(k + at));
    }
    products_commit();
    products_wait<0>(s);
    if constexpr (coded) scale(s, q, k);
  }
  // Makes scores of products with codes, in the log2 domain; those with a latent's rotated columns, which are none, are added.
  __device__ void scale(float (&s)[kScores / 2], uint32_t q, uint32_t k) {
    const float by = a.scale * kLog2e;
#pragma unroll
    for (int n = 0; n < kScores / 8; ++n) {
      const float2 of_key = scales(false, n);
      const float low = latent ? of_key.x : of_key.x * by, next = latent ? of_key.y : of_key.y * by;
      s[4 * n] *= low, s[4 * n + 1] *= next, s[4 * n + 2] *= low, s[4 * n + 3] *= next;
    }
    if constexpr (latent) {
      pin(s);
      products_begin();
#pragma unroll
      for (int i = kWideValues / 16; i < W / 16; ++i) {
        const uint32_t at = i / 4 * (kPart / 16) + i % 4 * 2;
        wgmma(T{}, s, operand<128>(q + at), operand<128>(k + at));
      }
      products_commit();
      products_wait<0>(s);
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) s[i] *= by;
    }
  }
  __device__ void weigh(const float (&factor)[2]) {
    const uint32_t p = uniform((shared + L::kWeightsAt) / 16);
    const uint32_t v = uniform((shared + values_at() + warpgroup * (kOutputs / 64 * kPart)) / 16);
    if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kOutputs / 2; ++i) o[i] *= factor[i / 2 % 2];
    }
    pin(o);
    products_begin();
#pragma unroll
    for (int j = 0; j < kWideKeys / 16; ++j) wgmma_across(T{}, o, operand<128>(p + j * 2), operand<128>(v + j * 128, kPart));
    products_commit();
    products_wait<0>(o);
  }

  __device__ void mask(int token, float (&s)[kScores / 2]) const {
    const int column = token + warpgroup * kScores + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i)
      if (column + i / 4 * 8 + i % 2 > last_key[i / 2 % 2]) s[i] = -INFINITY;
  }
  // Turns scores into weights, in shared memory. `factor` makes the output relative to the score that weights now are. Weights
  // of values in eight bits take their scales along, and the highest score counts those, too, by their power of two: so a
  // weight has room in any type, whatever the scales are.
  __device__ void soften(const float (&s)[kScores / 2], float (&factor)[2]) {
    float high[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kScores / 8; ++n) {
      const float2 of_value = coded ? scales(true, n) : make_float2(0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float power = coded ? power_of(i % 2 ? of_value.y : of_value.x) : 0.0f;
        high[i / 2] = fmaxf(high[i / 2], coded ? s[4 * n + i] + power : s[4 * n + i]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      high[r] = quad_max(high[r]);
      if (lane % 4 == 0) maxima(warpgroup)[8 * r] = high[r];
    }
    barrier_sync(kMaxima, kConsumers);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float highest = fmaxf(high[r], maxima(1 - warpgroup)[8 * r]);
      const float now = (highest - top[r]) * unit > kSlack ? highest : top[r];
      factor[r] = fast_exp2((top[r] - now) * unit);
      top[r] = now, sum[r] *= factor[r];
    }
#pragma unroll
    for (int n = 0; n < kScores / 8; ++n) {
      const float2 of_value = coded ? scales(true, n) : make_float2(1.0f, 1.0f);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float shift = -top[r] * unit;
        const float low = fast_exp2(__fmaf_rn(s[n * 4 + 2 * r], unit, shift));
        const float next = fast_exp2(__fmaf_rn(s[n * 4 + 2 * r + 1], unit, shift));
        sum[r] += low + next;
        const int place = (row + 8 * r) * 128 + ((warpgroup * (kScores / 8) + n ^ row) & 7) * 16 + lane % 4 * 4;
        *reinterpret_cast<uint32_t*>(memory + L::kWeightsAt + place) =
            coded ? pack<T>(low * of_value.x, next * of_value.y) : pack<T>(low, next);
      }
    }
    fence_bulk();
    barrier_sync(kWeights, kConsumers);
  }

  __device__ void attend(const Segment& s) {
#pragma unroll
    for (int i = 0; i < kOutputs / 2; ++i) o[i] = 0.0f;
    const int group = a.heads / a.kv_heads, seen_by_all = s.last_key(0, group);
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = kNoScore, sum[r] = 0.0f, last_key[r] = s.last_key(row + 8 * r, group);
    rings.queries.await_full();
    for (int k = s.first; k < s.last; ++k) {
      const int token = k * kWideKeys, there = s.context - token;
      rings.keys.await_full();
      if (latent && !coded && there < kWideKeys) clear(there);
      float p[kScores / 2], factor[2];
      score(p);
      if (k + 1 == s.last) release(rings.queries.empty_now()), rings.queries.advance();
      if (!latent) release(rings.keys.empty_now()), rings.keys.advance();
      if (token + kWideKeys - 1 > seen_by_all) mask(token, p);
      if (coded && !latent) rings.values.await_full();  // with their scales
      soften(p, factor);
      if (!coded && !latent) {
        rings.values.await_full();
        if (there < kWideKeys) clear(there);
      }
      weigh(factor);
      BufferRing& last = latent ? rings.keys : rings.values;
      release(last.empty_now());
      last.advance();
    }
  }

  __device__ void store(const Segment& s) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      if (lane % 4 == 0) sums(warpgroup)[8 * r] = sum[r];
    }
    barrier_sync(kSums, kConsumers);
    const int group = a.heads / a.kv_heads;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int packed = s.first_row() + row + 8 * r, query = packed / group;
      const bool real = query < s.queries;
      const float all = sums(0)[8 * r] + sums(1)[8 * r];
      if (s.is_whole()) {
        const float factor = all == 0.0f ? 0.0f : 1.0f / all;
        T* out = static_cast<T*>(a.out) + (s.query_row + query) * a.out_stride +
                 (s.head * group + packed % group) * kWideValues + warpgroup * kOutputs;
#pragma unroll
        for (int n = 0; n < kOutputs / 8; n += 4) {
          uint32_t w[4];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            w[i] = pack<T>(o[(n + i) * 4 + 2 * r] * factor, o[(n + i) * 4 + 2 * r + 1] * factor);
          transpose_quad(w);
          if (real) store_words(out + (n + lane % 4) * 8, w[0], w[1], w[2], w[3]);
        }
      } else if (real) {
        const int64_t at = int64_t(s.slot()) * kWideRows + row + 8 * r;
        float* out = a.partial + at * kWideValues + warpgroup * kOutputs + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kOutputs / 8; ++n)
          *reinterpret_cast<float2*>(out + n * 8) = make_float2(o[n * 4 + 2 * r], o[n * 4 + 2 * r + 1]);
        if (warpgroup == 0 && lane % 4 == 0) *reinterpret_cast<float2*>(a.sums + at * 2) = make_float2(top[r] * unit, all);
      }
    }
  }

  // The results of padding, which no segment has: graphs have more of it than the steps that they stand for, and no stretch
  // depends on it.
  __device__ void clear_padding() const {
    for (int i = blockIdx.x; i < a.sequences; i += gridDim.x) {
      const WideSequence q(a.context_lens, a.query_start, i);
      if (q.context > 0) continue;
      const int units = a.heads * (kWideValues / 8);
      for (int j = int(threadIdx.x) - kWarpgroup; j < q.queries * units; j += kConsumers)
        store_words(static_cast<T*>(a.out) + (q.row + j / units) * a.out_stride + j % units * 8, 0, 0, 0, 0);
    }
  }

  __device__ void run() {
    Walk walk(a);
    Segment s;
    bool more = walk.next(s);
    wait_for_previous_kernel();
    launch_next_kernel();
    for (; more; more = walk.next(s)) attend(s), store(s);
    clear_padding();
  }
};

#endif

template <class T, class C, int W, bool latent>
__global__ void __launch_bounds__(kThreads, 1)
    wide_kernel(const __grid_constant__ WideArgs a, const __grid_constant__ CUtensorMap keys,
                const __grid_constant__ CUtensorMap values, int box) {
#if OCTAVO_WGMMA
  constexpr bool coded = is_coded<C>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t begins = shared_address(memory), shared = (begins + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    Rings<W, latent, coded>(shared).init();
    fence_bulk();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<coded ? 120 : 72>();
    if ((threadIdx.x < 32) == coded) bring_queries<T, W, latent, coded>(a, shared);
    else if constexpr (coded) CellLoader<T, C, W, latent>(a, memory + (shared - begins)).run();
    else bring_tiles<T, W, latent>(a, keys, values, box, shared);
  } else {
    take_registers<coded ? 192 : 216>();
    Consumer<T, C, W, latent>(a, memory + (shared - begins)).run();
  }
#endif
}

// K, or V (`offset` elements into a block), as [blocks][heads][tokens][W / 64][64], in boxes of `box` tokens by 64.
template <int W>
bool describe_cells(CUtensorMap& map, const WideArgs& a, int64_t offset, int box) {
  const cuuint64_t sizes[] = {64, W / 64, cuuint64_t(a.cache.block_size), cuuint64_t(a.kv_heads), cuuint64_t(1) << 31};
  const cuuint64_t strides[] = {128, W * 2, cuuint64_t(a.cache.head_stride) * 2, cuuint64_t(a.cache.block_stride) * 2};
  const cuuint32_t boxes[] = {64, 1, cuuint32_t(box), 1, 1};
  return describe_tensor(map, static_cast<char*>(a.cache.data) + offset * 2, sizes, strides, boxes,
                         CU_TENSOR_MAP_DATA_TYPE_UINT16, BoxRows::dense);
}

template <class T, class C, int W, bool latent>
cudaError_t launch(const WideArgs& a, cudaStream_t stream) {
  const int box = a.cache.block_size < kWideKeys ? a.cache.block_size : kWideKeys;
  CUtensorMap keys{}, values{};
  if (!is_coded<C> &&
      (!describe_cells<W>(keys, a, 0, box) || !describe_cells<W>(values, a, latent ? 0 : a.cache.kv_stride, box)))
    return cudaErrorInvalidConfiguration;
  const Launch how{dim3(a.blocks), kThreads, Layout<W, is_coded<C>>::kBytes};
  return launch_after(wide_kernel<T, C, W, latent>, how, stream, a, keys, values, box);
}

// For a cache of such cells.
template <class C>
cudaError_t launch_cells(const WideArgs& a, cudaStream_t stream) {
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    return a.latent ? launch<T, C, kWideLatent, true>(a, stream) : launch<T, C, kWideValues, false>(a, stream);
  });
}

}  // namespace
}  // namespace octavo
