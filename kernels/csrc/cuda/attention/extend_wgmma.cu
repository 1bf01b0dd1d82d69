// Paged attention for many query rows on Hopper (sm_90a).
//
// FlashAttention-3 (Shah et al. 2024, sections 3.1 and 3.2): one producer warpgroup brings queries, keys and values,
// two consumer warpgroups of 64 rows each multiply, or three for heads of 64. While the tensor cores run one tile's
// weights times values, a consumer already has the next tile's scores under way, and the consumers take turns at the
// tensor cores, so that one's softmax runs under the others' products. Tiles of keys lie on absolute positions and are
// walked from the last to the first: a row's result depends neither on how its prompt was cut into chunks nor on its
// neighbours.
//
// Nothing looks for the highest score of a tile: a row's weights are relative to the highest score of the first tile
// that it sees keys of, and stay so until some of them grow beyond what float has room for. Only the sum of its weights
// matters.
//
// The cache stores rows of 16-byte units permuted as the tensor cores' 128-byte swizzle wants them (`swizzle`), or, for
// heads of 96, their 64-byte swizzle, so that a box of 64 or 32 columns lands in shared memory ready for them.
#include <type_traits>

#include "attention/cache_map.cuh"
#include "attention/extend.cuh"
#include "device/buffer_ring.cuh"
#include "device/wgmma.cuh"

namespace octavo {
namespace {

constexpr int kRows = 64;         // of one consumer
constexpr int kLoaders = 2 * 32;  // threads that bring queries
template <int D>
constexpr int consumers = extend_rows(D) / kRows;  // warpgroups
template <int D>
constexpr int threads = (consumers<D> + 1) * kWarpgroup;

// Keys of one tile: the scores of wider heads leave fewer registers.
template <int D>
constexpr int tile_keys = D <= 128 ? 128 : 64;
template <int D>
using Tile = ExtendTile<tile_keys<D>, extend_rows(D)>;

// Named barriers; 0 is __syncthreads.
enum Named { kCleared = 1, kTurn = 2 };

// The items of a block in their order. Many keys take a few heads at a time, so many that what all prompts have of them
// lies in the half of the L2 cache that is near, but at least enough for some rounds of items. Tiles come longest first
// for the last of these sets of heads and by turns before it, so that neighbouring sets meet with tiles of one length
// and the blocks' shares stay equal. (Not for heads of 64: what the compiler then makes of their softmax is slower.)
template <int D>
class Work {
 public:
  __device__ Work(const AttentionArgs& args) : a(args), items(a.header->extend_items), heads(a.kv_heads), last_set(0) {
    if (items == 0) return;
    const int tokens = max(a.extend[0].context, items * extend_rows(D) / (a.heads / a.kv_heads));  // of whole prompts
    const int cached = max(1, kCachedBytes / max(1, tokens) / (4 * a.head_dim));
    const int least = (int(kLeastRounds * gridDim.x) + items - 1) / items;
    if (!kTurns) {
      if (cached >= least) heads = min(heads, cached);
    } else {
      const int sets = max(1, min((a.kv_heads + cached - 1) / cached, a.kv_heads / least));
      heads = (a.kv_heads + sets - 1) / sets;
      last_set = (a.kv_heads - 1) / heads;
    }
  }
  __device__ bool has(int round) const { return extend_place(round) < items * a.kv_heads; }
  __device__ Tile<D> at(int round) const {
    const int place = extend_place(round), set = place / (items * heads), first = set * heads;
    const int rest = place - items * first, width = min(heads, a.kv_heads - first), index = rest / width;
    return Tile<D>(a, kTurns && (last_set - set) % 2 ? items - 1 - index : index, first + rest % width);
  }

 private:
  static constexpr bool kTurns = D > 64;
  static constexpr int kCachedBytes = (kTurns ? 16 : 40) << 20;
  static constexpr float kLeastRounds = kTurns ? 3.5f : 8.0f;
  const AttentionArgs& a;
  int items, heads, last_set;
};

// The consumers' facts about an item, left in shared memory by the loader of its queries.
struct alignas(16) Record {
  int first, offset, queries, head;  // first packed row; first query head of the KV head
  int begin, last, context, lowest;  // first and last tile of keys; the first key that some row sees
  int query_row, group;
  uint32_t inverse;  // of the group, see query_of
  int more;          // whether the block has another item
  // Bounds of each consumer: from there on some row sees its first keys, or not all; below that some row's window begins.
  struct {
    int from, below;
  } masked[4];
};
enum Place { kRowsOf = 0, kKeysOf = 16, kQueryOf = 32, kMoreOf = 44, kMaskedOf = 48 };  // bytes
constexpr int kRecords = 4;  // an item is stored while the queries of the next but one come
__device__ inline int4 record_words(uint32_t address) {
  int4 w;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "r"(address)
               : "memory");
  return w;
}
__device__ inline int2 record_pair(uint32_t address) {
  int2 w;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w.x), "=r"(w.y) : "r"(address) : "memory");
  return w;
}
__device__ inline int record_word(uint32_t address) {
  int w;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w) : "r"(address) : "memory");
  return w;
}
__device__ inline void set_record_pair(uint32_t address, int x, int y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}
__device__ inline void set_record_words(uint32_t address, int x, int y, int z, int w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
// The query of a packed row: a quotient without a division, exact for rows below 2^32 / group.
__device__ inline int query_of(int row, uint32_t inverse) {
  return inverse ? int(__umulhi(uint32_t(row), inverse)) : row;
}

// Shared memory: every tile is [D / kColumns][rows][kColumns].
template <int D>
struct Layout {
  static constexpr int kKeys = tile_keys<D>;
  static constexpr int kStages = D == 64 ? 4 : D == 96 ? 3 : 2, kQueryStages = D <= 128 ? 2 : 1;
  static constexpr int kColumns = map_columns(D), kRowBytes = kColumns * 2, kUnits = kColumns / 8;  // of a part
  static constexpr int kParts = D / kColumns;
  static constexpr int kTileRows = extend_rows(D), kQueryBytes = kTileRows * D * 2, kTileBytes = kKeys * D * 2;
  static constexpr int kKeysAt = kQueryStages * kQueryBytes, kValuesAt = kKeysAt + kStages * kTileBytes;
  static constexpr int kRecordsAt = kValuesAt + kStages * kTileBytes;
  static constexpr int kBarriersAt = kRecordsAt + kRecords * int(sizeof(Record));
  static constexpr int kBytes = kBarriersAt + 8 * (2 * kQueryStages + 4 * kStages);
};

template <int D>
struct Rings {
  BufferRing queries, keys, values;
  __device__ Rings(uint32_t shared)
      : queries(shared + Layout<D>::kBarriersAt, Layout<D>::kQueryStages),
        keys(queries.full + 8 * 2 * Layout<D>::kQueryStages, Layout<D>::kStages),
        values(keys.full + 8 * 2 * Layout<D>::kStages, Layout<D>::kStages) {}
};

#if OCTAVO_WGMMA

// One warp brings the tiles of keys, or of values, of all items of its block.
template <int D>
__device__ void bring_tiles(const AttentionArgs& a, const CUtensorMap& map, int box, uint32_t tiles, BufferRing ring) {
  using L = Layout<D>;
  const int lane = threadIdx.x % 32, slices = L::kKeys / box, shift = __ffs(a.cache.block_size) - 1;
  const int part = lane / slices, ahead = lane % slices * box;  // a lane brings `box` tokens from there on
  const Work<D> work(a);
  for (int round = 0; work.has(round); ++round) {
    const auto t = work.at(round);
    const int lowest = max(0, t.lowest(a, t.item.tile * L::kTileRows / t.group));
#pragma unroll 1  // registers are short
    for (int token = t.last(); token >= t.begin; token -= L::kKeys) {
      const int position = token + ahead;
      const bool wanted = part < L::kParts && position < t.item.context && position > lowest - box;
      const int block = wanted ? a.tables[t.item.sequence * a.table_stride + (position >> shift)] : 0;
      const int boxes = __popc(__ballot_sync(~0u, wanted));
      ring.await_empty();
      if (lane == 0) barrier_expect(ring.full_now(), boxes * box * L::kRowBytes);
      __syncwarp();
      if (wanted)
        copy_box(tiles + ring.stage * L::kTileBytes + (part * L::kKeys + ahead) * L::kRowBytes, map, part,
                 position & (a.cache.block_size - 1), t.head, block, ring.full_now());
      ring.advance();
    }
  }
}

// Two warps bring the queries: rows of a tile lie apart in memory. Rows beyond the last query stay what they
// were: their results are not read.
template <class T, int D>
__device__ void bring_queries(const AttentionArgs& a, uint32_t queries, const BufferRing& ring) {
  using L = Layout<D>;
  constexpr int units = D / 8, step = kLoaders / units;
  const int thread = threadIdx.x % kLoaders, unit = thread % units, group = a.heads / a.kv_heads;
  const uint32_t inverse = 0xffffffffu / group + 1;
  // Bytes to a thread's next row, and where that is of another query by one more than usually.
  const int heads = step % group;
  const uint32_t along = uint32_t(step / group * a.q_stride + heads * D) * 2;
  const uint32_t across = along + uint32_t(a.q_stride - group * D) * 2;
  const Work<D> work(a);
  for (int round = 0; work.has(round); ++round) {
    const auto t = work.at(round);
    const int first = t.item.tile * L::kTileRows;
    const int stage = round % L::kQueryStages;
    barrier_wait(ring.empty + 8 * stage, round / L::kQueryStages % 2 ^ 1);
    const uint32_t record = queries + L::kRecordsAt + round % kRecords * int(sizeof(Record));
    if (thread == 0) {
      set_record_words(record + kRowsOf, first, t.offset, t.item.queries, t.head * group);
      set_record_words(record + kKeysOf, t.begin, t.last(), t.item.context, t.lowest(a, query_of(first, inverse)));
      set_record_words(record + kQueryOf, t.item.query_row, group, int(inverse), work.has(round + 1));
    }
    if (thread < consumers<D>) {
      const int begin = first + thread * kRows;
      set_record_pair(record + kMaskedOf + 8 * thread, t.offset + query_of(begin, inverse) - L::kKeys + 1,
                      t.lowest(a, query_of(begin + kRows - 1, inverse)));
    }
    const int rows = thread < step * units ? min(L::kTileRows, t.item.queries * group - first) : 0;
    const int query = query_of(first + thread / units, inverse);
    int head = first + thread / units - query * group;
    const char* source = static_cast<const char*>(a.q) +
                         ((t.item.query_row + query) * a.q_stride + (t.head * group + head) * D + unit * 8) * 2;
    const uint32_t target = queries + stage * L::kQueryBytes + unit / L::kUnits * (L::kTileRows * L::kRowBytes);
#pragma unroll D >= 128 ? 2 : 1  // registers are short
    for (int i = thread / units; i < rows; i += step) {
      copy16(target + i * L::kRowBytes + swizzle_units(L::kUnits, i, unit % L::kUnits) * 16, source);
      head += heads;
      source += head < group ? along : across;
      if (head >= group) head -= group;
    }
    commit_copies();
    wait_copies<0>();
    fence_bulk();
    barrier_arrive_once(ring.full + 8 * stage);
  }
}

// One consumer warpgroup's rows of one tile.
template <class T, int D>
struct Consumer {
  using L = Layout<D>;
  static constexpr int kKeys = L::kKeys, kWide = D <= 128 ? D / 2 : 64;  // outputs of one product
  // Groups of eight keys after which weights are looked at: their scores are kept until then.
  static constexpr int kPart = kKeys / 8 / (D == 64 ? 4 : 2);
  // A thread's weights of a part and a row; float16 has little room.
  static constexpr float kLargest = std::is_same_v<T, f16> ? 16384.0f : 1.8446744e19f;
  const AttentionArgs& a;
  const uint32_t shared;
  const float unit;   // scores s stand for s * unit in the log2 domain
  uint32_t item = 0;  // of the block's
  Rings<D> rings;
  float o[D / 2 / kWide][kWide];
  float top[2], sum[2];  // the score that weights are relative to; sums of this thread's weights
  uint32_t weights[kKeys / 4];
  bool keys_there = false;  // the next tile's, when it was asked

  __device__ Consumer(const AttentionArgs& args, uint32_t base)
      : a(args), shared(base), unit(args.scale * kLog2e), rings(base) {}

  // Thread among the consumers. It is read wherever it is needed: what follows from it would take registers, and none are left.
  __device__ static int thread() {
    int thread;
    asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
    return thread - kWarpgroup;
  }
  __device__ static int warpgroup() { return thread() / kWarpgroup; }
  __device__ static int lane() { return thread() % 32; }
  // Row of the tile, the first of this thread's two.
  __device__ static int row() { return thread() / 32 * 16 + lane() / 4; }
  __device__ uint32_t record() const { return shared + L::kRecordsAt + item % kRecords * uint32_t(sizeof(Record)); }
  __device__ uint32_t queries_stage() const { return item % L::kQueryStages; }
  __device__ uint32_t queries_parity() const { return item / L::kQueryStages % 2; }
  __device__ float& out(int i) { return o[i / kWide][i % kWide]; }
  __device__ void release(uint32_t barrier) {
    if (lane() == 0) barrier_arrive_once(barrier);
  }

  // The tensor cores are one consumer's at a time.
  __device__ void take_turn() { barrier_sync(kTurn + warpgroup(), 2 * kWarpgroup); }
  __device__ void pass_turn() {
    const int next = warpgroup() + 1;
    barrier_arrive(kTurn + (next == consumers<D> ? 0 : next), 2 * kWarpgroup);
  }

  // Starts the scores of the next tile of keys.
  __device__ void score(float (&s)[kKeys / 2]) {
    constexpr int steps = L::kColumns / 16;  // of a part
    const int mine = warpgroup() * kRows * L::kRowBytes;
    const uint32_t q = uniform((shared + queries_stage() * L::kQueryBytes + mine) / 16);
    const uint32_t k = uniform((shared + L::kKeysAt + rings.keys.stage * L::kTileBytes) / 16);
    products_begin();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const int part = i / steps, step = i % steps * 2;
      const uint64_t rows = operand<L::kRowBytes>(q + part * (L::kTileRows * L::kRowBytes / 16) + step);
      const uint64_t columns = operand<L::kRowBytes>(k + part * (kKeys * L::kRowBytes / 16) + step);
      if (i == 0)
        wgmma_first(T{}, s, rows, columns);
      else
        wgmma(T{}, s, rows, columns);
    }
    products_commit();
  }
  // Starts adding the weighted values of the tile whose weights are at hand.
  __device__ void weigh() {
    const uint32_t v = uniform((shared + L::kValuesAt + rings.values.stage * L::kTileBytes) / 16);
    products_begin();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
      for (int i = 0; i < D / 2 / kWide; ++i)
        wgmma_transposed(T{}, o[i], weights + 4 * k,
                         operand<L::kRowBytes>(v + i * (2 * kKeys * L::kRowBytes / 16) + k * L::kRowBytes,
                                               kKeys * L::kRowBytes));
    products_commit();
  }
  __device__ void weighed() {
    products_wait<0>();
#pragma unroll
    for (int i = 0; i < D / 2 / kWide; ++i) pin(o[i]);
  }

  __device__ int lowest(int query, int offset) const { return a.window > 0 ? offset + query - a.window + 1 : 0; }
  __device__ void mask(int token, float (&s)[kKeys / 2]) {
    const int first_row = row();
    const int4 item = record_words(record() + kRowsOf), more = record_words(record() + kQueryOf);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = query_of(item.x + first_row + 8 * r, more.z), before = token + lane() % 4 * 2;
      const uint32_t seen = columns_to(item.y + query - before) & ~columns_to(lowest(query, item.y) - 1 - before);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (!(seen & 1u << (2 * n + i))) s[n * 4 + 2 * r + i] = -INFINITY;
    }
  }
  // Which of the columns that a thread has of a row, 8 n and 8 n + 1 for bits 2 n and 2 n + 1, are not beyond `last`.
  __device__ static uint32_t columns_to(int last) {
    const int column = max(-1, min(last, kKeys - 1));
    return __funnelshift_lc(~0u, 0u, (column >> 3) * 2 + min(column & 7, 1) + 1);
  }

  // For rows that see their first keys in this tile.
  __device__ void begin_rows(const float (&s)[kKeys / 2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float high = highest<0, kKeys / 8>(s, r);
      if (top[r] == kNoScore) top[r] = fmaxf(high, kNoScore);
    }
  }
  // Turns scores into weights and adds up those, from group n of eight keys on. Where weights have grown too large,
  // what is there is made relative to a higher score.
  template <int n = 0>
  __device__ void soften(const float (&s)[kKeys / 2], float (&p)[kKeys / 2]) {
    float part[2] = {0.0f, 0.0f};
    weights_of<n>(s, p, part);
    if (__any_sync(~0u, part[0] > kLargest || part[1] > kLargest)) {
      weighed();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float found = highest<n, n + kPart>(s, r);
        const float high = quad_max(part[r]) > kLargest ? fmaxf(top[r], found) : top[r];
        const float factor = fast_exp2((top[r] - high) * unit);
        top[r] = high, sum[r] *= factor, part[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < n; ++i) p[i * 4 + 2 * r] *= factor, p[i * 4 + 2 * r + 1] *= factor;
#pragma unroll
        for (int i = 0; i < D / 8; ++i) out(i * 4 + 2 * r) *= factor, out(i * 4 + 2 * r + 1) *= factor;
      }
      weights_of<n>(s, p, part);
    }
    sum[0] += part[0], sum[1] += part[1];
    if constexpr (n + kPart < kKeys / 8) soften<n + kPart>(s, p);
  }
  template <int begin, int end>
  __device__ float highest(const float (&s)[kKeys / 2], int r) {
    float high = fmaxf(s[begin * 4 + 2 * r], s[begin * 4 + 2 * r + 1]);
#pragma unroll
    for (int n = begin + 1; n < end; ++n) high = fmaxf(high, fmaxf(s[n * 4 + 2 * r], s[n * 4 + 2 * r + 1]));
    return quad_max(high);
  }
  template <int begin>
  __device__ void weights_of(const float (&s)[kKeys / 2], float (&p)[kKeys / 2], float (&part)[2]) {
    const float shift[2] = {top[0] * unit, top[1] * unit};
#pragma unroll
    for (int n = begin; n < begin + kPart; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[n * 4 + i] = fast_exp2(__fmaf_rn(s[n * 4 + i], unit, -shift[i / 2]));
        part[i / 2] += p[n * 4 + i];
      }
  }
  __device__ void pack_weights(const float (&p)[kKeys / 2]) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) weights[i] = pack<T>(p[2 * i], p[2 * i + 1]);
  }

  // Rows of values outside [low, high) of the tile at hand are zeroed: their weight is zero, but 0 * NaN would be NaN.
  __device__ void clear(int low, int high) {
    const uint32_t v = shared + L::kValuesAt + rings.values.stage * L::kTileBytes;
#pragma unroll 1  // registers are short
    for (int i = threadIdx.x - kWarpgroup; i < kKeys * D / 8; i += consumers<D> * kWarpgroup) {
      const int token = i / L::kUnits % kKeys;
      if (token < low || token >= high)
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + i * 16), "r"(0) : "memory");
    }
    fence_bulk();
    barrier_sync(kCleared, consumers<D> * kWarpgroup);
  }

  // Asks for the next tiles of keys and, to return it, of values, before a softmax in which the answers come. Heads of
  // 64 leave no register for the latter.
  __device__ bool look_ahead() {
    const bool values_there = D > 64 && barrier_is_over(rings.values.full_now(), rings.values.parity);
    keys_there = barrier_is_over(rings.keys.full_now(), rings.keys.parity);
    return values_there;
  }
  // A further tile: its scores, and under them the previous tile's values.
  __device__ void step(int token) {
    const int2 range = record_pair(record() + kMaskedOf + 8 * warpgroup());
    const bool masked = token >= range.x || token < range.y;
    if (!keys_there) rings.keys.await_full();
    take_turn();
    float s[kKeys / 2], p[kKeys / 2];
    score(s);
    weigh();
    pass_turn();
    products_wait<1>(s);
    release(rings.keys.empty_now());
    rings.keys.advance();
    const uint32_t done = rings.values.empty_now();
    rings.values.advance();
    const bool values_there = look_ahead();
    if (masked) mask(token, s), begin_rows(s);
    soften(s, p);
    // Weights are never negative, so this waits for what is not there. ptxas, which cannot know, keeps the softmax
    // before the end of the products instead of after it; where there is little to multiply that costs more.
    if (D < 128 ? !values_there : !(values_there && sum[0] + sum[1] >= 0.0f))
      rings.values.await_full();
    weighed();
    release(done);
    pack_weights(p);
  }

  // Everything of an item but its first tile's scores, which are at hand, and its last tile's values.
  __device__ void attend(float (&s)[kKeys / 2]) {
    const int4 keys = record_words(record() + kKeysOf);
    int token = keys.y;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) out(i) = 0.0f;
    top[0] = top[1] = kNoScore, sum[0] = sum[1] = 0.0f;
    float p[kKeys / 2];
    const bool values_there = look_ahead();
    mask(token, s);
    begin_rows(s);
    soften(s, p);
    pack_weights(p);
    if (!values_there) rings.values.await_full();
    if (token + kKeys > keys.z) clear(keys.w - token, keys.z - token);
    for (token -= kKeys; token >= record_word(record() + kKeysOf); token -= kKeys) step(token);
    const int4 again = record_words(record() + kKeysOf);
    if (again.w > again.x) clear(again.w - again.x, again.z - again.x);
  }

  // All items of the block. An item's last values are multiplied under the next one's first scores.
  __device__ void run() {
    if (!Work<D>(a).has(0)) return;
    float s[kKeys / 2];
    barrier_wait(rings.queries.full, 0);
    rings.keys.await_full();
    score(s);
    products_wait<0>(s);
    for (bool more = true; more; ++item) {
      release(rings.keys.empty_now());
      rings.keys.advance();
      attend(s);
      release(rings.queries.empty + 8 * queries_stage());
      more = record_word(record() + kMoreOf);
      ++item;
      if (more) {
        barrier_wait(rings.queries.full + 8 * queries_stage(), queries_parity());
        if (!keys_there) rings.keys.await_full();
      }
      take_turn();
      score(s);  // after the last item: of stale data, and unused
      weigh();
      pass_turn();
      products_wait<1>(s);
      weighed();
      release(rings.values.empty_now());
      rings.values.advance();
      --item;
      store();
    }
  }

  __device__ void store() {
    const int4 item = record_words(record() + kRowsOf), more = record_words(record() + kQueryOf);
    const int quad = lane() % 4, first_row = row();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int packed = item.x + first_row + 8 * r;
      const int query = query_of(packed, more.z), head = item.w + packed - query * more.y;
      const float l = warp_sum<4>(sum[r]);
      const bool real = query < item.z;
      const float factor = real ? normaliser(a, head, top[r] * unit, l) : 0.0f;
      T* to = static_cast<T*>(a.out) + int64_t(more.x + query) * a.out_stride + head * D;
#pragma unroll
      for (int n = 0; n < D / 8; n += 4) {
        // The four lanes that share a row hold two columns each of four groups of eight: turned to one group each.
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          w[i] = pack<T>(out((n + i) * 4 + 2 * r) * factor, out((n + i) * 4 + 2 * r + 1) * factor);
        exchange(w[0], w[1], 1), exchange(w[2], w[3], 1);
        exchange(w[0], w[2], 2), exchange(w[1], w[3], 2);
        if (real) *reinterpret_cast<uint4*>(to + (n + quad) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
  // The lane with `bit` clear gives its second word for the other's first.
  __device__ void exchange(uint32_t& first, uint32_t& second, int bit) {
    const bool upper = lane() & bit;
    const uint32_t received = __shfl_xor_sync(~0u, upper ? first : second, bit);
    (upper ? first : second) = received;
  }
};

#endif

template <class T, int D>
__global__ void __launch_bounds__(threads<D>, 1)
    extend_wgmma_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ CUtensorMap keys,
                        const __grid_constant__ CUtensorMap values, int box) {
#if OCTAVO_WGMMA
  using L = Layout<D>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const Rings<D> rings(shared);
  if (threadIdx.x == 0) {
    rings.queries.init(kLoaders, 4 * consumers<D>);
    rings.keys.init(1, 4 * consumers<D>), rings.values.init(1, 4 * consumers<D>);
    fence_bulk();
  }
  __syncthreads();
  wait_for_previous_kernel();
  launch_next_kernel();
  const int warp = threadIdx.x / 32;
  if (warp < 4) {
    give_registers<consumers<D> == 3 ? 32 : 40>();
    if (warp == 0)
      bring_tiles<D>(a, keys, box, shared + L::kKeysAt, rings.keys);
    else if (warp == 1)
      bring_tiles<D>(a, values, box, shared + L::kValuesAt, rings.values);
    else
      bring_queries<T, D>(a, shared, rings.queries);
  } else {
    take_registers<consumers<D> == 3 ? 160 : 232>();
    Consumer<T, D> consumer(a, shared);
    if (consumer.warpgroup() == consumers<D> - 1) barrier_arrive(kTurn, 2 * kWarpgroup);
    consumer.run();
  }
#endif
}

template <class T, int D>
cudaError_t launch(const AttentionArgs& a, const Device& device, cudaStream_t stream) {
  const int box = a.cache.block_size < tile_keys<D> ? a.cache.block_size : tile_keys<D>;
  CUtensorMap keys, values;
  cudaError_t error = describe_cache(keys, a, 0, box);
  if (error == cudaSuccess) error = describe_cache(values, a, a.cache.kv_stride, box);
  if (error != cudaSuccess) return error;
  const Launch how{dim3(device.multiprocessors), threads<D>, Layout<D>::kBytes};
  return launch_after(extend_wgmma_kernel<T, D>, how, stream, a, keys, values, box);
}

}  // namespace

cudaError_t extend_attention_wgmma(const AttentionArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major != 9 || a.softcap > 0.0f || a.cache.cells != Cells::plain) return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.head_dim) {
      case 64: return launch<T, 64>(a, device, stream);
      case 96: return launch<T, 96>(a, device, stream);
      case 128: return launch<T, 128>(a, device, stream);
      case 256: return launch<T, 256>(a, device, stream);
      default: return cudaErrorInvalidValue;
    }
  });
}

}  // namespace octavo
