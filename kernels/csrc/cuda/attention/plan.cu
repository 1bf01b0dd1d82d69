// Turns context and query lengths into flat work lists, once a step; every layer reuses them.
#include "attention/plan.h"
#include "attention/prefix.cuh"

namespace octavo {
namespace {

constexpr int kThreads = 512;

// Chunks of a run go to one block, so each block, of two on a multiprocessor, has as many runs as the others, and as many as
// this or more stay single: the blocks end together. Runs are for sequences of so many query rows, whose partial results are
// large.
constexpr int kTailChunks = 3, kRunRows = 4;

// Long items stay with blocks: one that a warp begins last would keep all others waiting.
constexpr int kAloneTokens = 320, kAloneTokensBesideTiles = 256, kAloneItems = 1;  // on average; for each block

struct Counts {
  int full, rest, tiles, slots;  // whole chunks and partial last ones of its own, extend tiles, chunks in all
  int prefix;                    // items of the prefix kernel
  int runs;                      // that there could be
};

__device__ Counts operator+(const Counts& a, const Counts& b) {
  return {a.full + b.full, a.rest + b.rest, a.tiles + b.tiles, a.slots + b.slots, a.prefix + b.prefix,
          a.runs + b.runs};
}
__device__ Counts shuffle_up(const Counts& x, int step) {
  return {__shfl_up_sync(~0u, x.full, step), __shfl_up_sync(~0u, x.rest, step), __shfl_up_sync(~0u, x.tiles, step),
          __shfl_up_sync(~0u, x.slots, step), __shfl_up_sync(~0u, x.prefix, step),
          __shfl_up_sync(~0u, x.runs, step)};
}

// Exclusive prefix sum over the threads; `total` gets the sum.
__device__ Counts scan(Counts x, Counts& total) {
  __shared__ Counts sums[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Counts inclusive = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    Counts below = shuffle_up(inclusive, step);
    if (lane >= step) inclusive = inclusive + below;
  }
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  Counts before = {};
  total = {};
#if !OCTAVO_BULK_COPY
#pragma unroll 4  // older chips' code would spill registers
#endif
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) before = before + sums[i];
    total = total + sums[i];
  }
  __syncthreads();
  Counts below = shuffle_up(inclusive, 1);
  return lane > 0 ? before + below : before;
}

// The items of `row_tiles` tiles of rows, for each of `parts` parts of the keys they see: part by part, so that memory is
// read once.
struct Tiles {
  int row_tiles, parts;

  __device__ int count() const { return row_tiles * parts; }
  // The n-th, whose first of the parts' chunks is `first_chunk` and whose parts have `chunks`, of rows from `first_row` on.
  __device__ PrefixItem item(const PlanArgs& a, int n, int sequence, int first_chunk, int chunks, int first_row,
                             int rows) const {
    const int size = prefix_rows(a.head_dim), row = n % row_tiles * size;
    return {sequence, first_chunk + n / row_tiles * chunks, first_row + row, min(size, rows - row)};
  }
};

struct Sequence {
  int context, row, queries, first, chunks, tiles;
  int parts, part_queries;  // of the decode kernel
  bool rest;
  int group, joint, shared;  // leading chunks that are read for its group, and those read by the prefix kernel in all
  int own;                   // tiles of that kernel for its own rows alone, for the chunks between
  bool may_run;              // the decode kernel may merge chunks

  __device__ Counts counts() const {
    return {(chunks - rest - shared) * parts, rest * parts, tiles, chunks * parts, own_tiles().count(), possible_runs()};
  }
  __device__ Tiles own_tiles() const { return {own, shared - joint}; }
  __device__ int possible_runs() const { return may_run && shared == 0 ? (chunks - rest) / kRun : 0; }
  // A part as the decode kernel sees it.
  __device__ DecodeItem part(int sequence, int slot, int chunk, int index) const {
    const int begin = index * part_queries, end = min(begin + part_queries, queries);
    return {sequence, first + chunk, slot + index * chunks + chunk, 0, context - queries + end, row + begin, end - begin,
            chunks};
  }
};

__device__ Sequence describe(const PlanArgs& a, int s) {
  Sequence q{};
  if (s >= a.sequences) return q;
  q.row = a.query_start[s];
  q.queries = a.query_start[s + 1] - q.row;
  q.context = max(a.context_lens[s], 0);
  q.group = -1;
  const int rows = q.queries * a.group;
  if (q.queries <= 0) return q;
  const bool split = is_split(q.context, q.queries, a.group) && a.window == 0 && a.group <= a.decode_rows;
  if (rows > a.decode_rows && !split) {
    q.tiles = (rows + extend_rows(a.head_dim) - 1) / extend_rows(a.head_dim);
    return q;
  }
  q.part_queries = a.decode_rows / a.group, q.parts = (q.queries + q.part_queries - 1) / q.part_queries;
  const int lowest = a.window > 0 ? max(0, q.context - q.queries + 1 - a.window) : 0;
  q.first = lowest / kChunk;
  q.chunks = max(1, (q.context + kChunk - 1) / kChunk - q.first);  // an empty context still writes its zeros
  q.rest = q.context % kChunk != 0 || q.context == 0;
  if (q.parts > 1 && a.prefix) {
    q.own = (rows + prefix_rows(a.head_dim) - 1) / prefix_rows(a.head_dim);
    q.shared = (q.context - q.queries) / kChunk;
  }
  q.may_run = q.parts == 1 && a.window == 0 && a.head_dim <= kRunDim && a.decode_rows >= kRunRows;
  q.group = a.groups ? a.groups[s] : -1;
  if (q.group < 0 || q.group >= a.sequences || a.window > 0) return q;
  // A prefix kernel's keys are older than the queries, and a sequence of one chunk, which needs no fold, has nothing to
  // share.
  const int chunks = max(a.prefix_lens[q.group], 0) / kChunk;
  if (q.chunks > 1 && chunks * kChunk <= q.context - q.queries) q.joint = chunks;
  q.shared = max(q.shared, q.joint);
  return q;
}

// Keys that a tile of query rows sees, in steps of the extend kernel.
__device__ int cost(const PlanArgs& a, const Sequence& q, int tile) {
  const int rows = extend_rows(a.head_dim), last = min(q.queries - 1, (tile * rows + rows - 1) / a.group);
  const int keys = max(q.context - q.queries + last + 1, 0);
  return (a.window > 0 ? min(keys, a.window + rows) : keys) / 64;
}

constexpr int kBuckets = 256;
__device__ int bucket(int cost, int highest) {
  return kBuckets - 1 - int(int64_t(cost) * (kBuckets - 1) / max(highest, 1));
}

// Work of one group: rows to the list of rows, items of a few rows, no more than `few_rows`, to the decode kernel or tiles
// to the prefix kernel. Members whose prefix is shorter than a chunk have no rows here.
struct Group {
  int leader, rows, chunks, row_tiles;
  bool few;

  __device__ Group(const PlanArgs& a, int g, int few_rows) : leader(0), rows(0), chunks(0), row_tiles(0), few(false) {
    if (g >= a.sequences || a.group_states[g].rows == 0) return;
    leader = a.group_states[g].leader, rows = a.group_states[g].rows, chunks = a.prefix_lens[g] / kChunk;
    few = rows <= few_rows;
    if (!few) row_tiles = (rows + prefix_rows(a.head_dim) - 1) / prefix_rows(a.head_dim);
  }
  // Items of the decode kernel, with so many rows each.
  __device__ int parts(int item_rows) const { return (rows + item_rows - 1) / item_rows; }
  __device__ int items(int item_rows) const { return few ? parts(item_rows) * chunks : 0; }
  __device__ int runs(bool in_runs) const { return in_runs ? chunks / kRun : 0; }
  __device__ Tiles run_tiles(bool in_runs) const { return {row_tiles, runs(in_runs)}; }
  __device__ Tiles chunk_tiles(bool in_runs) const { return {row_tiles, chunks - kRun * runs(in_runs)}; }
};

// Work of all groups: items of the decode kernel with eight rows each and with kDecodeRows, tiles of the prefix kernel by the chunk,
// and items that are runs if there are, with the rows of all runs.
struct GroupTotals {
  int narrow, wide, tiles, runs, run_rows;
  int nearly_few, few_rows;  // items of groups with kFewTimes the few rows at most, and what is few here
};

// Finds each group's rows and its first sequence.
__device__ void gather_groups(const PlanArgs& a, GroupTotals& totals) {
  for (int g = threadIdx.x; g < a.sequences; g += kThreads) a.group_states[g] = {0, a.sequences, 0, 0};
  __syncthreads();
  for (int s = threadIdx.x; s < a.sequences; s += kThreads) {
    const Sequence q = describe(a, s);
    if (q.joint == 0) continue;
    atomicAdd(&a.group_states[q.group].rows, q.queries * a.group);
    atomicMin(&a.group_states[q.group].leader, s);
  }
  __syncthreads();
  for (int g = threadIdx.x; g < a.sequences; g += kThreads) {
    const Group mine(a, g, kFewTimes * a.few_rows);
    if (mine.rows > a.few_rows) atomicAdd(&totals.nearly_few, mine.items(kDecodeRows));
  }
  __syncthreads();
  if (threadIdx.x == 0) totals.few_rows = (totals.nearly_few <= kFewItems ? kFewTimes : 1) * a.few_rows;
  __syncthreads();
  for (int g = threadIdx.x; g < a.sequences; g += kThreads) {
    const Group mine(a, g, totals.few_rows);
    if (mine.rows == 0) continue;
    atomicAdd(&totals.narrow, mine.items(8)), atomicAdd(&totals.wide, mine.items(kDecodeRows));
    atomicAdd(&totals.tiles, mine.row_tiles * mine.chunks);
    atomicAdd(&totals.runs, mine.run_tiles(true).count());
    if (mine.row_tiles > 0) atomicAdd(&totals.run_rows, mine.rows * mine.runs(true));
  }
  __syncthreads();
}

// A run reads its queries once and writes one result for all its chunks, but few runs may keep a multiprocessor busy for
// longer than single chunks would. So many runs of full tiles save the time of one chunk's tile.
constexpr int kRunsPerTile = 48;
__device__ bool tiles_run(const PlanArgs& a, const GroupTotals& totals, int own_tiles, int tokens, bool alone) {
  const int tiles = totals.tiles + own_tiles, runs = totals.runs * a.kv_heads;
  if (a.run_multiprocessors == 0 || runs == 0) return false;
  const int blocks = prefix_share(tiles, tokens, alone, a.run_multiprocessors);
  const int of_runs = max(blocks, least_for_runs(runs, a.run_multiprocessors));
  const int longer = (runs + of_runs - 1) / of_runs * kRun - (tiles * a.kv_heads + blocks - 1) / blocks;  // in tiles
  return longer * kRunsPerTile * prefix_rows(a.head_dim) <= totals.run_rows * a.kv_heads;
}

// Lists what is computed for the rows of each group, runs before single chunks and all before what is listed otherwise, and
// makes room for those rows; gives the number of single chunks' items.
__device__ int list_groups(const PlanArgs& a, Counts* starts, int few_rows, int item_rows, bool in_runs, int runs) {
  __shared__ int listed[kThreads], count;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Counts done = {};  // items, -, -, rows, tiles of single chunks, runs
  for (int base = 0; base < a.sequences; base += kThreads) {
    const Group mine(a, base + threadIdx.x, few_rows);
    if (threadIdx.x == 0) count = 0;
    Counts total;
    const Counts start = done + scan({mine.items(item_rows), 0, 0, mine.rows, mine.chunk_tiles(in_runs).count(),
                                      mine.run_tiles(in_runs).count()}, total);
    starts[threadIdx.x] = start;
    if (mine.rows > 0) {
      a.group_states[base + threadIdx.x].next_row = start.slots;
      listed[atomicAdd(&count, 1)] = threadIdx.x;
    }
    done = done + total;
    __syncthreads();
    for (int next = warp; next < count; next += kThreads / 32) {
      const int i = listed[next];
      const Group g(a, base + i, few_rows);
      const Counts at = starts[i];
      const int parts = g.parts(item_rows);
      for (int n = lane; n < g.items(item_rows); n += 32) {  // those of one chunk side by side, so that memory is read once
        const int row = n % parts * item_rows;
        a.decode[at.full + n] = {g.leader, n / parts, at.slots + row, min(item_rows, g.rows - row), g.chunks * kChunk, 0, 1, 0};
      }
      const Tiles in_run = g.run_tiles(in_runs), single = g.chunk_tiles(in_runs);
      for (int n = lane; n < in_run.count(); n += 32)
        a.prefix[at.runs + n] = in_run.item(a, n, g.leader, 0, kRun, at.slots, g.rows);
      for (int n = lane; n < single.count(); n += 32)
        a.prefix[runs + at.prefix + n] = single.item(a, n, g.leader, kRun * in_run.parts, 1, at.slots, g.rows);
    }
    __syncthreads();
  }
  return done.prefix;
}

// The order of a group's rows varies, and no row's result depends on it.
__device__ void list_rows(const PlanArgs& a, const Sequence& q, int first_partial) {
  int at = atomicAdd(&a.group_states[q.group].next_row, q.queries * a.group);
  for (int part = 0, query = 0; part < q.parts; ++part, query += q.part_queries)
    for (int r = 0; r < min(q.part_queries, q.queries - query) * a.group; ++r)
      a.rows[at++] = {q.row + query + r / a.group, r, first_partial + part * q.chunks, 0};
}

// Whole chunks come first in the list of decode items, of them those of runs, and partial ones last, so that the short ones
// fill the end of the launch. Extend tiles are sorted by the keys they see, most first.
__global__ void __launch_bounds__(kThreads, 1) plan_kernel(const PlanArgs a) {
  __shared__ Counts starts[kThreads];
  __shared__ Sequence sequences[kThreads];
  __shared__ int buckets[kBuckets], highest, decode_tokens;
  __shared__ GroupTotals groups;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  wait_for_previous_kernel();  // and no early launch of the next: attention reads the lists before it waits
  if (threadIdx.x < kBuckets) buckets[threadIdx.x] = 0;
  if (threadIdx.x == 0) highest = decode_tokens = 0, groups = {};
  Counts all = {};
  for (int base = 0; base < a.sequences; base += kThreads) {
    const Sequence q = describe(a, base + threadIdx.x);
    Counts total;
    scan(q.counts(), total);
    if (q.tiles > 0) atomicMax(&highest, cost(a, q, q.tiles - 1));
    if (q.parts > 0) atomicAdd(&decode_tokens, (q.context - (q.first + q.shared) * kChunk) * q.parts);
    all = all + total;
  }
  const bool fits = all.slots <= a.decode_capacity && all.tiles <= a.extend_capacity;
  if (!fits) __trap();  // the caller sized the lists: never answer with part of the keys
  const int rounds = max(0, all.full * a.kv_heads / a.run_blocks - kTailChunks) / kRun;
  const int runs = min(all.runs, rounds * a.run_blocks / a.kv_heads);
  // Every sequence has its share of them: one of many single chunks would keep the fold waiting.
  auto runs_of_first = [&](int possible) { return all.runs == 0 ? 0 : int(int64_t(possible) * runs / all.runs); };
  if (a.groups) gather_groups(a, groups);
  __syncthreads();
  // Items of groups have eight rows where warps take them alone, or where all run side by side and are sooner done so.
  const int own = all.full + all.rest, most = groups.narrow + own;
  const bool alone = runs == 0 && a.decode_rows <= 8 && a.head_dim <= kRunDim && most >= a.alone_items &&
                     decode_tokens + groups.narrow * kChunk <=
                         (groups.tiles > 0 ? kAloneTokensBesideTiles : kAloneTokens) * most;
  const bool narrow = a.decode_rows <= 8 && (alone || most * a.kv_heads <= a.run_blocks);
  const int item_rows = narrow ? 8 : kDecodeRows, few = narrow ? groups.narrow : groups.wide;
  const int items = few + own, tokens = decode_tokens + few * kChunk;
  const bool in_runs = tiles_run(a, groups, all.prefix, tokens, alone);
  const int prefix_runs = in_runs ? groups.runs : 0;
  const int prefix_items =
      prefix_runs + (a.groups ? list_groups(a, starts, groups.few_rows, item_rows, in_runs, prefix_runs) : 0);
  if (threadIdx.x == 0)
    *a.header = {0, items, all.tiles, prefix_items + all.prefix, 0, tokens, runs, few, alone, prefix_runs};
  for (int s = a.sequences + threadIdx.x; s < a.sequence_capacity; s += kThreads) a.folds[s] = {};

  if (all.tiles > 0) {
    for (int s = warp; s < a.sequences; s += kThreads / 32) {
      const Sequence q = describe(a, s);
      for (int t = lane; t < q.tiles; t += 32) atomicAdd(&buckets[bucket(cost(a, q, t), highest)], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int i = 0, sum = 0; i < kBuckets; ++i) {
        const int count = buckets[i];
        buckets[i] = sum;
        sum += count;
      }
  }

  Counts done = {};
  for (int base = 0; base < a.sequences; base += kThreads) {
    const Sequence mine = describe(a, base + threadIdx.x);
    Counts total;
    const Counts start = done + scan(mine.counts(), total);
    starts[threadIdx.x] = start, sequences[threadIdx.x] = mine;
    if (base + int(threadIdx.x) < a.sequences) {
      const int runs_of_mine = runs_of_first(start.runs + mine.possible_runs()) - runs_of_first(start.runs);
      const bool in_tiles = mine.joint > 0 && Group(a, mine.group, groups.few_rows).row_tiles > 0;
      const int shared_runs = in_tiles && in_runs ? mine.joint / kRun : 0;
      a.folds[base + threadIdx.x] = {start.slots, mine.chunks, mine.row, mine.queries, runs_of_mine, shared_runs, {}};
      if (mine.joint > 0) list_rows(a, mine, start.slots);
    }
    done = done + total;
    __syncthreads();
    for (int i = warp; i < min(kThreads, a.sequences - base); i += kThreads / 32) {
      const Sequence& q = sequences[i];
      const Counts at = starts[i];
      const int runs_before = runs_of_first(at.runs);
      const int merged = (runs_of_first(at.runs + q.possible_runs()) - runs_before) * kRun;
      for (int n = lane; n < (q.chunks - q.shared) * q.parts; n += 32) {  // parts of one chunk run side by side
        const int c = q.shared + n / q.parts, p = n % q.parts;
        const bool last = q.rest && c == q.chunks - 1;
        const int place = last ? all.full + at.rest + p
                          : n < merged ? runs_before * kRun + n
                                        : at.full + n + (runs - runs_before) * kRun - merged;
        a.decode[few + place] = q.part(base + i, at.slots, c, p);
      }
      const Tiles own = q.own_tiles();
      for (int n = lane; n < own.count(); n += 32)
        a.prefix[prefix_items + at.prefix + n] = own.item(a, n, base + i, q.joint, 1, kOwnRows, q.queries * a.group);
      for (int t = lane; t < q.tiles; t += 32)
        a.extend[atomicAdd(&buckets[bucket(cost(a, q, t), highest)], 1)] = {base + i, t, q.context, q.row, q.queries,
                                                                            {0, 0, 0}};
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t plan_attention(const PlanArgs& args, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  PlanArgs a = args;
  const int blocks = 2 * device.multiprocessors;
  a.run_blocks = blocks, a.alone_items = kAloneItems * blocks / a.kv_heads;
  a.run_multiprocessors = prefix_merges_runs(device, a.head_dim) ? device.multiprocessors : 0;
  return launch_after(plan_kernel, {dim3(1), kThreads}, stream, a);
}

}  // namespace octavo
