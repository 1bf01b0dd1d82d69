// Attention over the whole chunks that many sequences share, on Hopper (sm_90a).
//
// Made as extend_wgmma.cu is: a producer warpgroup brings queries, keys and values, two consumer warpgroups of 64 rows each
// multiply, and one's softmax runs under the other's products: turns at the tensor cores gain nothing. The steps are those of
// chunk.cuh, with products of a warpgroup instead of a warp's: both add the products of 16 keys (or 16 columns) at once, so
// results keep their bits. A block takes a whole multiprocessor, but only so many of them work as tensor cores are needed
// (`prefix_blocks`): on the others the decode kernel streams what the sequences do not share.
//
// All that comes out of the L2 counts, as that stream does, too. So where there are enough, items are runs of chunks, merged
// as the fold would: queries are read once for them, and one result is written and folded instead of each chunk's.
#include "attention/cache_map.cuh"
#include "attention/chunk.cuh"
#include "attention/prefix.cuh"
#include "device/buffer_ring.cuh"
#include "device/wgmma.cuh"

namespace octavo {
namespace {

constexpr int kConsumers = 2;                        // warpgroups
constexpr int kThreads = (kConsumers + 1) * kWarpgroup, kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr int kRows = 64;                            // of one consumer
constexpr int kTileRows = kConsumers * kRows;
constexpr int kSlices = 4, kKeys = kSlices * kSlice;  // of one tile
constexpr int kPerLane = kChunk / kLanes / kKeys;     // tiles
constexpr int kTiles = kLanes * kPerLane;
constexpr int kStages = 4, kQueryStages = 2;
constexpr int kColumns = map_columns(64);  // as for 128
static_assert(kPerLane == 2 && kTiles % (2 * kStages) == 0 && prefix_rows(64) == kTileRows && prefix_rows(128) == kTileRows);

// Shared memory: every tile is [D / 64][rows][64]. The results of a run until now lie where there is a second stage of
// queries if no item is a run.
template <int D>
struct Layout {
  static constexpr int kParts = D / kColumns;
  static constexpr int kQueryBytes = kTileRows * D * 2, kTileBytes = kKeys * D * 2;
  static constexpr int kRunAt = kQueryBytes;
  static constexpr int kKeysAt = kRunAt + kTileRows * D * 4, kValuesAt = kKeysAt + kStages * kTileBytes;
  static constexpr int kSumsAt = kValuesAt + kStages * kTileBytes;
  static constexpr int kPlacesAt = kSumsAt + kTileRows * 8;  // where the results of a tile's rows go
  static constexpr int kBarriersAt = kPlacesAt + kQueryStages * kTileRows * 4;
  static constexpr int kBytes = kBarriersAt + 8 * (2 * kQueryStages * kConsumers + 2 * kStages);
};

__device__ inline char* block_memory() {
  extern __shared__ __align__(1024) char memory[];
  return memory;
}

template <int D>
struct Rings {
  BufferRing queries, tiles;  // queries of one consumer
  __device__ Rings(uint32_t shared, int consumer = 0)
      : queries(shared + Layout<D>::kBarriersAt + 8 * 2 * kQueryStages * consumer, kQueryStages),
        tiles(shared + Layout<D>::kBarriersAt + 8 * 2 * kQueryStages * kConsumers, kStages) {}
};

// The items of a block: every so many'th of the list, for one KV head each.
struct Work {
  const AttentionArgs& a;
  const int step, runs;
  const int rounds;

  __device__ Work(const AttentionArgs& args)
      : a(args), step(prefix_blocks(a, gridDim.x)), runs(a.header->prefix_runs * a.kv_heads),
        rounds(int(blockIdx.x) < step ? (a.header->prefix_items * a.kv_heads - int(blockIdx.x) + step - 1) / step : 0) {}
  __device__ int index(int round) const { return int(blockIdx.x) + round * step; }
  __device__ int head(int round) const { return index(round) % a.kv_heads; }
  __device__ int chunks(int round) const { return index(round) < runs ? kRun : 1; }
  __device__ const PrefixItem& item(int round) const { return a.prefix[index(round) / a.kv_heads]; }
  // With runs there is one stage of queries.
  __device__ int query_stage(int round) const { return runs > 0 ? 0 : round % kQueryStages; }
  __device__ uint32_t query_phase(int round) const { return (runs > 0 ? round : round / kQueryStages) & 1; }
};

#if OCTAVO_WGMMA

// One warp brings keys, another values, in the order in which the lanes of a chunk take them. A stage holds the keys of a
// tile and the values of the one before, which are needed together: the block's first stage has no values, its last no keys.
template <int D>
struct TileLoader {
  using L = Layout<D>;
  const AttentionArgs& a;
  const Work work;
  const int lane;
  int sequence, first_chunk, head;
  int block;  // lane i: the block of slice i of the chunk

  __device__ TileLoader(const AttentionArgs& args)
      : a(args), work(args), lane(threadIdx.x % 32), sequence(0), first_chunk(0), head(0), block(0) {
    look_up(0, 0);
  }
  __device__ void look_up(int round, int chunk) {
    if (round >= work.rounds) return;
    if (chunk == 0) {
      const PrefixItem& item = work.item(round);
      sequence = item.sequence, first_chunk = item.chunk, head = work.head(round);
    }
    const int token = (first_chunk + chunk) * kChunk + lane * kSlice;
    block = a.tables[sequence * a.table_stride + token / a.cache.block_size];
  }
  // Into the ring whose tiles begin at `tiles`.
  __device__ void run(const CUtensorMap& map, uint32_t tiles, BufferRing ring, bool values) {
    if (work.rounds == 0) return;
    constexpr int boxes = kSlices * L::kParts;
    static_assert(boxes <= 32);
    const int slice = lane % kSlices, part = lane / kSlices % L::kParts;
    const uint32_t mine = tiles + (part * kKeys + slice * kSlice) * kColumns * 2;
    auto bring_none = [&] {
      ring.await_empty();
      if (lane == 0) barrier_arrive_once(ring.full_now());
      ring.advance();
    };
    if (values) bring_none();
    for (int round = 0; round < work.rounds; ++round) {
      const int chunks = work.chunks(round);
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const int of_head = head, of_block = block;
        if (chunk + 1 < chunks) look_up(round, chunk + 1);
        else look_up(round + 1, 0);
#pragma unroll 1
        for (int i = 0; i < kTiles; ++i) {
          const int place = (i % kPerLane * kSlices + slice) * kLanes + i / kPerLane;  // of the slice in the chunk
          const int from = __shfl_sync(~0u, of_block, place), token = place * kSlice & (a.cache.block_size - 1);
          ring.await_empty();
          if (lane == 0) barrier_expect(ring.full_now(), L::kTileBytes);
          __syncwarp();
          if (lane < boxes)
            copy_box(mine + ring.stage * L::kTileBytes, map, part, token, of_head, from, ring.full_now());
          ring.advance();
        }
      }
    }
    if (!values) bring_none();
  }
};

// Two others bring queries, whose rows lie apart in memory, each those of one consumer, and tell where the results of each
// row go: -1 for none.
template <class T, int D>
struct QueryLoader {
  using L = Layout<D>;
  static_assert(kRows == 2 * 32);  // two of each lane
  const AttentionArgs& a;
  const Work work;
  const int lane, consumer;
  int from[2], to[2];  // in units of 16 bytes, in rows

  __device__ QueryLoader(const AttentionArgs& args)
      : a(args), work(args), lane(threadIdx.x % 32), consumer(threadIdx.x / 32 % kConsumers) {
    look_up(0);
  }
  __device__ void look_up(int round) {
    if (round >= work.rounds) return;
    const int head = work.head(round), group = a.heads / a.kv_heads;
    const PrefixItem item = work.item(round);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = consumer * kRows + half * 32 + lane;
      from[half] = to[half] = -1;
      if (row >= item.rows) continue;
      const QueryRow at = prefix_row(a, item.sequence, item.first_row + row, item.chunk, group);
      from[half] = int((int64_t(at.token) * a.q_stride + (head * group + at.row % group) * D) / 8);
      to[half] = int(partial_row(a, at.slot, head)) + at.row;
    }
  }
  __device__ void run(uint32_t shared, int* places, const BufferRing& ring) {
    constexpr int units = D / 8, at_once = 32 / units;  // rows
    const int unit = lane % units;
    for (int round = 0; round < work.rounds; ++round) {
      const int stage = work.query_stage(round);
      barrier_wait(ring.empty + 8 * stage, work.query_phase(round) ^ 1);
      const uint32_t target = shared + stage * L::kQueryBytes + unit / 8 * (kTileRows * kColumns * 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = consumer * kRows + half * 32;
        places[stage * kTileRows + first + lane] = to[half];
#pragma unroll 4
        for (int i = 0; i < 32; i += at_once) {
          const int near = i + lane / units, row = first + near;
          const int offset = __shfl_sync(~0u, from[half], near);
          const T* source = static_cast<const T*>(a.q) + int64_t(max(offset, 0) + unit) * 8;
          copy16(target + row * (kColumns * 2) + ((unit ^ row) & 7) * 16, source, offset >= 0);
        }
      }
      commit_copies();
      wait_copies<0>();
      fence_bulk();
      barrier_arrive_once(ring.full + 8 * stage);
      look_up(round + 1);
    }
  }
};

// One consumer warpgroup. Tiles follow each other across items without a pause: a step turns scores that are at hand into
// weights, starts the next tile's scores, and then adds the weighted values.
template <class T, int D>
struct Consumer {
  using L = Layout<D>;
  const AttentionArgs& a;
  const uint32_t shared;
  const int warpgroup, lane;
  const float unit;
  const Rings<D> rings;
  const uint32_t my_queries;         // of this warpgroup in the first stage, over 16
  int to[2];                         // where the results of the thread's rows go
  float s[kSlices][2][4];            // scores
  uint32_t weights[2][kSlices * 4];  // of a lane's two tiles
  State<D, 2> st, sum;               // of the lane at hand, and of those before it

  __device__ Consumer(const AttentionArgs& args, uint32_t base)
      : a(args), shared(base), warpgroup(threadIdx.x / kWarpgroup - 1), lane(threadIdx.x % 32), unit(score_unit(args)),
        rings(base, warpgroup), my_queries(uniform((base + warpgroup * kRows * kColumns * 2) / 16)) {}

  __device__ void release(uint32_t barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive_once(barrier);
  }
  __device__ float (&scores())[kSlices * 8] { return reinterpret_cast<float(&)[kSlices * 8]>(s); }
  __device__ float (&outputs())[D / 2] { return reinterpret_cast<float(&)[D / 2]>(st.o); }
  // Tile n of an item has its keys in stage n % kStages, its values in the next; as an item passes through every stage an
  // even number of times, n tells the phase, too.
  __device__ static uint32_t phase(int n) { return n / kStages & 1; }
  __device__ uint32_t keys(int n) const { return shared + L::kKeysAt + n % kStages * L::kTileBytes; }
  __device__ uint32_t values(int n) const { return shared + L::kValuesAt + (n + 1) % kStages * L::kTileBytes; }
  __device__ int first_row() const { return threadIdx.x / 32 * 16 - kWarpgroup / 2; }  // of the tile, of this warp's

  __device__ void score(int query_stage, int n) {
    const uint32_t k = uniform(keys(n) / 16);
    const uint32_t q = my_queries + query_stage * (L::kQueryBytes / 16);
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const uint64_t rows = operand<128>(q + i / 4 * (kTileRows * kColumns * 2 / 16) + i % 4 * 2);
      const uint64_t columns = operand<128>(k + i / 4 * (kKeys * kColumns * 2 / 16) + i % 4 * 2);
      if (i == 0) wgmma_first(T{}, scores(), rows, columns);
      else wgmma(T{}, scores(), rows, columns);
    }
    products_commit();
  }
  __device__ void add_values(const uint32_t (&weights)[kSlices * 4], int n) {
    const uint32_t v = uniform(values(n) / 16);
#pragma unroll
    for (int j = 0; j < kSlices; ++j)
      wgmma_transposed(T{}, outputs(), weights + 4 * j, operand<128>(v + j * 128, kKeys * kColumns * 2));
    products_commit();
  }

  // The first slice of a lane sets the maxima that its sums refer to, if a score is a number at all.
  __device__ void begin_maxima(float (&m)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float high = fmaxf(fmaxf(s[0][0][2 * r], s[0][0][2 * r + 1]), fmaxf(s[0][1][2 * r], s[0][1][2 * r + 1]));
      const float top = __fmul_rn(quad_max(high), unit);
      m[r] = top > kNoScore ? top : kNoScore;
    }
  }
  // `soften` of chunk.cuh as if no maximum rose; `l` begins as the state's sums. False: one might have risen, as weights are
  // large. That takes a score more than kSlack above all of the lane's first slice, in which the first keys of a sequence,
  // often the strongest, are: rare.
  __device__ bool soften_level(const float (&m)[2], float (&l)[2], uint32_t (&weights)[kSlices * 4]) const {
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      float p[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          p[i / 2][2 * r + i % 2] = fast_exp2(__fmaf_rn(s[j][i / 2][2 * r + i % 2], unit, -m[r]));
        l[r] = __fadd_rn(l[r], __fadd_rn(__fadd_rn(p[0][2 * r], p[0][2 * r + 1]), __fadd_rn(p[1][2 * r], p[1][2 * r + 1])));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[j * 4 + i] = pack<T>(p[i / 2][i % 2 * 2], p[i / 2][i % 2 * 2 + 1]);
    }
    constexpr float most = 255.0f;  // a score that lies kSlack above has a weight of 256, less what is rounded
    static_assert(kSlack == 8.0f);
    return l[0] - st.l[0] <= most && l[1] - st.l[1] <= most;
  }
  // The values of tile n for the rows of this warp, slice by slice with products of its own, where a maximum may have
  // risen: what those of the warpgroup then add is nothing.
  __device__ void catch_up(uint32_t (&weights)[kSlices * 4], int n) {
    const int row = lane & 15;
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      Weights<1> w;
      soften<T>(reinterpret_cast<const float(&)[1][2][4]>(s[j]), unit, st.m, st.l, w);
      if (w.rescaled[0]) st.scale(0, w.factor[0][0]), st.scale(1, w.factor[0][1]);
      const uint32_t slice = values(n) + (j * kSlice + row) * (kColumns * 2);
#pragma unroll
      for (int c = 0; c < D / 16; ++c) {
        uint32_t b[4];
        ldmatrix_transposed(b, slice + c / 4 * (kKeys * kColumns * 2) + ((2 * c + (lane >> 4) ^ row) & 7) * 16);
        mma<T>(st.o[2 * c], w.at[0], b[0], b[1]);
        mma<T>(st.o[2 * c + 1], w.at[0], b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kSlices * 4; ++i) weights[i] = 0;
  }

  // The last scores of an item are there: its queries are not needed any more.
  __device__ void leave_queries(int stage) {
    const auto places = reinterpret_cast<const int*>(block_memory() + L::kPlacesAt) + stage * kTileRows;
    to[0] = places[first_row() + lane / 4], to[1] = places[first_row() + lane / 4 + 8];
    release(rings.queries.empty + 8 * stage);
  }
  // Writes the results of an item.
  __device__ void write() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (to[r] < 0) continue;
      float* out = a.partial + int64_t(to[r]) * D + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<float2*>(out + n * 8) = make_float2(sum.o[n][2 * r], sum.o[n][2 * r + 1]);
      if (lane % 4 == 0)
        *reinterpret_cast<float2*>(a.partial_sums + int64_t(to[r]) * 2) = make_float2(sum.m[r], sum.l[r]);
    }
  }
  // The state of a run of chunks; threads of a row keep its sums together.
  __device__ float4& run_outputs(int n) const {
    return reinterpret_cast<float4*>(block_memory() + L::kRunAt)[n * kConsumers * kWarpgroup + threadIdx.x - kWarpgroup];
  }
  __device__ float2& run_sums(int r) const {
    return reinterpret_cast<float2*>(block_memory() + L::kSumsAt)[first_row() + lane / 4 + 8 * r];
  }
  __device__ void keep_run() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) run_sums(r) = make_float2(sum.m[r], sum.l[r]);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) run_outputs(n) = make_float4(sum.o[n][0], sum.o[n][1], sum.o[n][2], sum.o[n][3]);
  }
  // As State::follow.
  __device__ void join_run() {
    float old_weight[2], weight[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 before = run_sums(r);
      const float top = fmaxf(before.x, sum.m[r]);
      old_weight[r] = fast_exp2(__fsub_rn(before.x, top)), weight[r] = fast_exp2(__fsub_rn(sum.m[r], top));
      sum.m[r] = top, sum.l[r] = __fmaf_rn(sum.l[r], weight[r], __fmul_rn(before.y, old_weight[r]));
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float4 x = run_outputs(n);
      sum.o[n][0] = __fmaf_rn(sum.o[n][0], weight[0], __fmul_rn(x.x, old_weight[0]));
      sum.o[n][1] = __fmaf_rn(sum.o[n][1], weight[0], __fmul_rn(x.y, old_weight[0]));
      sum.o[n][2] = __fmaf_rn(sum.o[n][2], weight[1], __fmul_rn(x.z, old_weight[1]));
      sum.o[n][3] = __fmaf_rn(sum.o[n][3], weight[1], __fmul_rn(x.w, old_weight[1]));
    }
  }
  // The results of a chunk of an item are complete.
  __device__ void finish(int chunk, int chunks) {
    if (chunk > 0) join_run();
    if (chunk + 1 < chunks) keep_run();
    else write();
  }

  // Joins a lane with those before: first what is little but takes long, then the outputs. Before the first lane there is
  // a state without keys, which leaves it as it is: a branch would cost more than it spares.
  __device__ void join_sums(float (&old_weight)[2], float (&weight)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float l = warp_sum<4>(st.l[r]), top = fmaxf(sum.m[r], st.m[r]);
      old_weight[r] = fast_exp2(__fsub_rn(sum.m[r], top)), weight[r] = fast_exp2(__fsub_rn(st.m[r], top));
      sum.m[r] = top, sum.l[r] = __fmaf_rn(l, weight[r], __fmul_rn(sum.l[r], old_weight[r]));
    }
  }
  __device__ void join_outputs(const float (&old_weight)[2], const float (&weight)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum.o[n][i] = __fmaf_rn(st.o[n][i], weight[i / 2], __fmul_rn(sum.o[n][i], old_weight[i / 2]));
  }
  // The products of the tile before have ended.
  __device__ void added(uint32_t (&weights)[kSlices * 4]) {
    pin(outputs());
#pragma unroll
    for (int i = 0; i < kSlices * 4; ++i) asm volatile("" : "+r"(weights[i]));
  }

  // A chunk of the item of a round, and the one before of the same block: of how many of its item, 0: there is none.
  struct Turn {
    int chunk, chunks, before, of_before;
    int query_stage, next_stage;  // of the item, and of the chunk that follows, if another item's
    uint32_t next_phase;
    bool waits;  // for the next item's queries
  };

  // Tile i of lane `of` of a chunk.
  template <int i>
  __device__ void step(const Turn& turn, int of) {
    const int n = of * kPerLane + i;
    const int stage = (n + 1) % kStages;
    const bool there = barrier_is_over(rings.tiles.full + 8 * stage, phase(n + 1));  // known when it is needed
    float old_weight[2], weight[2];
    if (i == 0) {
      join_sums(old_weight, weight);
      begin_maxima(st.m), st.l[0] = st.l[1] = 0.0f;
    }
    float l[2] = {st.l[0], st.l[1]};
    const bool rise = __any_sync(~0u, !soften_level(st.m, l, weights[i]));
    // Depends on the weights, too, which keeps them before the end of the products.
    if (!there || rise) barrier_wait(rings.tiles.full + 8 * stage, phase(n + 1));
    products_wait<0>();
    added(weights[1 - i]);
    if (i == 0) {
      join_outputs(old_weight, weight);
      if (of == 0 && turn.of_before > 0) finish(turn.before, turn.of_before), sum.clear();
#pragma unroll
      for (int o = 0; o < D / 2; ++o) outputs()[o] = 0.0f;
    }
    if (rise) {
      if (i == 0) st.m[0] = st.m[1] = kNoScore;
      catch_up(weights[i], n);
    } else {
      st.l[0] = l[0], st.l[1] = l[1];
    }
    release(rings.tiles.empty + 8 * (n % kStages));
    const bool ends = i + 1 == kPerLane && n + 1 == kTiles;  // the next tile is of another chunk
    if (ends && turn.waits) barrier_wait(rings.queries.full + 8 * turn.next_stage, turn.next_phase);
    products_begin();
    score(ends ? turn.next_stage : turn.query_stage, n + 1);  // after the last one: of stale data, and unused
    add_values(weights[i], n);
    products_wait<1>(scores());
    if (i + 2 == kPerLane && n + 2 == kTiles && turn.chunk + 1 == turn.chunks) leave_queries(turn.query_stage);
  }

  __device__ void run(const Work& work) {
    if (work.rounds == 0) return;
    barrier_wait(rings.queries.full, 0), barrier_wait(rings.tiles.full, 0);
    st.clear(), sum.clear();
    products_begin();
    score(0, 0);
    products_wait<0>(scores());
    Turn turn{};
    for (int round = 0; round < work.rounds; ++round) {
      turn.chunks = work.chunks(round), turn.query_stage = work.query_stage(round);
      for (turn.chunk = 0; turn.chunk < turn.chunks; ++turn.chunk) {
        const int next = round + (turn.chunk + 1 == turn.chunks);
        turn.next_stage = work.query_stage(next), turn.next_phase = work.query_phase(next);
        turn.waits = next > round && next < work.rounds;
#pragma unroll 1
        for (int of = 0; of < kLanes; ++of) step<0>(turn, of), step<1>(turn, of);
        turn.before = turn.chunk, turn.of_before = turn.chunks;
      }
    }
    products_wait<0>();
    added(weights[1]);
    float old_weight[2], weight[2];
    join_sums(old_weight, weight), join_outputs(old_weight, weight);
    finish(turn.before, turn.of_before);
    __syncwarp();
    if (lane == 0) end_tiles(a, work.rounds);  // this warp's part
  }
};

#endif

template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1)
    prefix_wgmma_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ CUtensorMap keys,
                        const __grid_constant__ CUtensorMap values) {
#if OCTAVO_WGMMA
  using L = Layout<D>;
  if (leaves_without_tiles(a)) return;
  const uint32_t shared = shared_address(block_memory());
  const Rings<D> rings(shared);
  if (threadIdx.x == 0) {
    for (int consumer = 0; consumer < kConsumers; ++consumer) Rings<D>(shared, consumer).queries.init(32, 4);
    rings.tiles.init(2, 4 * kConsumers);
    fence_bulk();
  }
  // The fold waits for every warp of every tile. Not the thread above, which has enough to do.
  if (blockIdx.x == 0 && threadIdx.x == 32) begin_tiles(a, a.header->prefix_items * a.kv_heads * kConsumerWarps);
  __syncthreads();
  const int warp = threadIdx.x / 32;
  auto go_on = [&] {
    wait_for_previous_kernel();
    launch_next_kernel();
  };
  if (warp < 4) {
    give_registers<40>();
    if (warp < 2) {
      TileLoader<D> loader(a);  // the lists and tables were there before the previous kernel began, and so may be the keys
      if (!a.history_ready) go_on();
      if (warp == 0) loader.run(keys, shared + L::kKeysAt, rings.tiles, false);
      else loader.run(values, shared + L::kValuesAt, rings.tiles, true);
    } else {
      QueryLoader<T, D> loader(a);
      go_on();
      loader.run(shared, reinterpret_cast<int*>(block_memory() + L::kPlacesAt), Rings<D>(shared, warp - 2).queries);
    }
  } else {
    take_registers<232>();
    go_on();
    Consumer<T, D>(a, shared).run(Work(a));
  }
#endif
}

template <class T, int D>
cudaError_t launch(const AttentionArgs& a, const Device& device, cudaStream_t stream) {
  CUtensorMap keys, values;
  cudaError_t error = describe_cache(keys, a, 0, kSlice);
  if (error == cudaSuccess) error = describe_cache(values, a, a.cache.kv_stride, kSlice);
  if (error != cudaSuccess) return error;
  const Launch how{dim3(device.multiprocessors), kThreads, Layout<D>::kBytes};
  return launch_after(prefix_wgmma_kernel<T, D>, how, stream, a, keys, values);
}

}  // namespace

cudaError_t prefix_attention_wgmma(const AttentionArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major != 9 || a.softcap > 0.0f) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.head_dim) {
      case 64: return launch<T, 64>(a, device, stream);
      case 128: return launch<T, 128>(a, device, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

}  // namespace octavo
