// Products of 2 to 32 rows, x in registers: with the largest weights of a decoder, and with small ones.
//
// Speed depends on the bytes of weights on their way and on how long neighbours in memory are read together. So all
// shared memory is a ring of weights, eight rows a stage, each row's part of the depth one long copy; and a warp always
// meets the same columns of x, as the left operand of a tensor core instruction whose eight columns are the weights'
// rows. A lane's 16 bytes of a row of x or of the weights are one operand's elements of two instructions: which of the
// depth's elements meet in which instruction does not matter, if both sides agree.
//
// The weights' rows are dealt out in groups of eight to clusters of one or two blocks, which share the depth. Of many
// groups a cluster of two is dealt three quarters of its share and draws for the rest: multiprocessors read at speeds
// that differ by a quarter. One warp more keeps the ring going (from before the previous kernel has ended: weights are
// never written); another adds the warps' sums, exchanges them with the cluster's other block, and stores. All sums
// are in an order that depends on N and K alone: a row's result feels neither the other rows nor their number, nor
// which block drew what.
//
// x is loaded behind all the weights that are on their way; more of them come as far as the L2 meanwhile. That is why
// matrices between small and large, and those of several such loads, are left to linear_ring.cu, whose x comes with the
// weights.
#include <algorithm>

#include "linear/linear.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 10;  // that multiply; one more feeds
constexpr int kStepBytes = kStep * 2;
constexpr int kMostSteps = 64;  // of the depth, for one block; two share more
constexpr int kMostRows = 32, kMostDepth = 5120;
constexpr int kMostStages = 14;  // each with a named barrier, of which two of sixteen go elsewhere
constexpr int kInboxes = 4;  // a group is stored when the next one has been sent, so no block is further ahead
constexpr int kDraws = 32;   // more than a block's copies are ahead of its stores, or of the cluster's other block's
constexpr int kManyGroups = 24;  // of a cluster: with fewer, nothing is gained by drawing (measured on an H200)
static_assert(kManyGroups * 3 / 4 > kMostStages);  // the first to draw fills the ring, then waits

// Warps that collect: two where one would take longer over the sums of 32 rows than a narrow stage takes to come.
template <int kTokens, int kSteps, int kCluster>
constexpr int kCollectors = kCluster == 1 && kTokens == 32 && kSteps <= 4 ? 2 : 1;
template <int kTokens, int kSteps, int kCluster>
constexpr int kThreads = (kWarps + 1 + kCollectors<kTokens, kSteps, kCluster>) * 32;

// Registers of a thread. Of small matrices, blocks of two products that follow each other fit on a multiprocessor
// together, so that the next one's weights are on their way while this one adds up: with 8 rows of x two of any kind,
// with 16 one of few steps beside one of more.
template <int kTokens, int kSteps, int kCluster>
constexpr int kRegisters = kTokens == 32 || kSteps == 8 ? 65536 / kThreads<kTokens, kSteps, kCluster> / 8 * 8
                           : kSteps == 4                ? 64
                           : kTokens == 8               ? 80
                                                        : 104;

// Percent of a multiprocessor's memory that products of up to 16 rows want to be shared memory. A multiprocessor divides it
// anew only when it is empty, so blocks of two products meet there if both want the same; the rest is L1, which x passes on
// its way into registers.
constexpr int kShare = 64;

// How a launch goes about it.
struct Cut {
  int cluster, clusters;
  int groups;         // of the whole matrix
  int steps;          // of the whole depth
  int stages, pitch;  // of the ring; bytes between rows of a stage, whose copies are fastest to multiples of 128
  int dealt;          // groups that each cluster has before it draws; 0: all of them are dealt out
};

// Shared memory: barriers, what is drawn, the warps' sums, inboxes for the other block's, the ring. A quad is the sums
// of four of the weights' rows with one of x.
template <int kTokens, int kCluster>
struct Layout {
  static constexpr int kQuads = kTokens * 2, kOwn = kQuads / kCluster, kSumBytes = kQuads * 16;
  static constexpr int kDrawn = 256, kTold = kDrawn + kDraws * 4, kTelling = kTold + kDraws * 4;
  static constexpr int kSums = kTelling + kDraws * 8, kInbox = kSums + kWarps * kSumBytes;
  static constexpr int kRing = kInbox + (kCluster == 1 ? 0 : kInboxes * kOwn * 16);
  __host__ __device__ static int bytes(const Cut& p) { return kRing + p.stages * kGroup * p.pitch; }
};

#if OCTAVO_BULK_COPY

__device__ __noinline__ float activated_otherwise(Activation kind, float x) { return activated(kind, x); }

template <class T>
__device__ inline float2 load2(const T* from) {
  const auto v = *reinterpret_cast<const Elements<T, 2>*>(from);
  return {to_float(v.at[0]), to_float(v.at[1])};
}

// One block's part. kTokens: rows of x, rounded up. kSteps: of the depth, that a warp holds at most. kPaired: whether the
// results of two groups that lie side by side are stored together.
template <class T, int kTokens, int kSteps, int kCluster, bool kPaired>
struct Block : Thread<Cut> {
  using L = Layout<kTokens, kCluster>;
  static constexpr int kTiles = (kTokens + 15) / 16;
  static constexpr int kTeam = kCollectors<kTokens, kSteps, kCluster>;
  static constexpr int kMine = (L::kOwn + 31) / 32 / kTeam;  // quads that a lane stores

  // Named barriers, at which those that multiply only arrive: a group's sums are there, for those that collect; a stage
  // has been read, for the one that feeds. What goes the other way goes by memory barriers, since racecheck does not
  // follow two that both only arrive.
  static constexpr int kSummed = 1, kSharing = (kWarps + kTeam) * 32;
  static constexpr int kLeft = 2, kLending = (kWarps + 1) * 32;

  int rank;
  int first, groups;  // of the matrix's, dealt to this cluster
  int begin, steps;   // of the depth's

  __device__ Block(const LinearArgs& args, const Cut& how, char* memory)
      : Thread(args, how, memory), rank(blockIdx.x % kCluster) {
    const int cluster = blockIdx.x / kCluster;
    first = dealt() ? dealt() * cluster : cut.groups * cluster / cut.clusters;
    groups = dealt() ? dealt() : cut.groups * (cluster + 1) / cut.clusters - first;
    begin = cut.steps * rank / kCluster, steps = cut.steps * (rank + 1) / kCluster - begin;
  }

  __device__ uint32_t full(int stage) const { return base + 8 * stage; }
  __device__ uint32_t received(int inbox) const { return base + 8 * (kMostStages + inbox); }
  __device__ uint32_t drained() const { return base + 8 * (kMostStages + kInboxes); }  // of sums, by every lane that collects
  // The drawn unit, or -1 for none: for this block's warps, and for the cluster's other block.
  __device__ int* drawn(int g) const { return reinterpret_cast<int*>(shared + L::kDrawn) + g % kDraws; }
  __device__ int* told(int g) const { return reinterpret_cast<int*>(shared + L::kTold) + g % kDraws; }
  __device__ uint32_t telling(int g) const { return base + L::kTelling + g % kDraws * 8; }
  __device__ int stage_at(int stage) const { return L::kRing + stage * kGroup * cut.pitch; }

  __device__ void init_barriers() const {
#pragma unroll  // all of them: all warps wait for this, and a loop would take longer
    for (int i = 0; i < kMostStages; ++i) barrier_init(full(i), 1);
    barrier_init(drained(), kTeam * 32);
    for (int i = 0; i < kInboxes && kCluster > 1; ++i) barrier_init(received(i), 1);
    for (int i = 0; i < kDraws && dealt() > 0; ++i) barrier_init(telling(i), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_bulk();
  }

  // A warp's part of x: [step][operand]. An operand is sixteen rows in one of a step's two instructions; or, of
  // eight rows, those of both: each instruction multiplies the other one's elements, too, for sums of no use.
  // The two have sums of their own, so that they do not wait for each other, where there are registers for them; how
  // many rows there are does not matter, as no bit may feel it.
  static constexpr bool kApart = kSteps < 8, kBoth = kApart && kTokens == 8;
  static constexpr int kOperands = kBoth ? 1 : 2 * kTiles;
  using Held = uint32_t[kSteps][kOperands][4];
  using Sums = float[kTiles][4];

  // This warp's part of the block's depth: so many steps.
  struct Part {
    int begin, count;
  };
  __device__ Part part() const {
    const int first = steps * warp / kWarps;
    return {first, steps * (warp + 1) / kWarps - first};
  }

  // Where this lane's part of x begins in every eighth row. Padding rows hold the last row's
  // values: rows' sums are independent.
  struct Rows {
    const T* at[kTokens / 8];
  };
  __device__ Rows rows(const Part& mine) const {
    Rows from;
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i)
      from.at[i] = static_cast<const T*>(a.x) + min(lane / 4 + i * 8, a.rows - 1) * a.x_stride +
                   (begin + mine.begin) * kStep + lane % 4 * 8;
    return from;
  }

  // Zero, which the assembler does not know.
  __device__ uint32_t nothing() const { return gridDim.y - 1; }

  // An operand's registers come from two loads, or in another order. The assembler would leave them where they were
  // loaded and move them for every product, if they were not computed.
  __device__ void hold(Held& x, const Rows& from, const Part& mine) const {
    auto load = [&](int s, int i) {
      if (i >= kTokens / 8 || s >= mine.count) return make_uint4(0, 0, 0, 0);
      return __ldcg(reinterpret_cast<const uint4*>(from.at[i] + s * kStep));
    };
    auto take = [&](uint32_t (&operand)[4], uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
      operand[0] = a ^ nothing(), operand[1] = b ^ nothing(), operand[2] = c ^ nothing(), operand[3] = d ^ nothing();
    };
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if constexpr (kBoth) {
        const uint4 v = load(s, 0);
        take(x[s][0], v.x, v.z, v.y, v.w);
      } else {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const uint4 low = load(s, 2 * m), high = load(s, 2 * m + 1);
          take(x[s][2 * m], low.x, high.x, low.y, high.y);
          take(x[s][2 * m + 1], low.z, high.z, low.w, high.w);
        }
      }
    }
  }

  // Most warps' part.
  __device__ void multiply() const {
    const Part mine = part();
    const Rows from = rows(mine);
    const int weights = lane / 4 * cut.pitch + mine.begin * kStepBytes + lane % 4 * 16;
    if constexpr (kCluster > 1) cluster_wait();
    wait_for_previous_kernel();
    Held x;
    hold(x, from, mine);
    int stage = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int g = 0; g < groups || dealt(); ++g) {
      barrier_wait(full(stage), phase);
      if (g >= groups && *drawn(g) < 0) {
        leave(stage, 0);
        barrier_wait(drained(), (g - 1) & 1);
        tell();
        break;
      }
      const char* at = shared + stage_at(stage) + weights;
      uint4 w[kSteps];
      uint32_t loaded = 0;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        w[s] = make_uint4(0, 0, 0, 0);
        if (s < mine.count) w[s] = *reinterpret_cast<const uint4*>(at + s * kStepBytes);
        loaded |= w[s].x;
      }
      // A slot that is not filled again need not be given back. Two blocks do so all the same: they lack the registers to ask.
      if (kCluster > 1 || g + cut.stages < groups) leave(stage, loaded);
      Sums sums = {}, others = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma<T>(sums[m], x[s][kBoth ? 0 : 2 * m], w[s].x, w[s].y);
          mma<T>(kApart ? others[m] : sums[m], x[s][kBoth ? 0 : 2 * m + 1], w[s].z, w[s].w);
        }
#pragma unroll
      for (int m = 0; m < kTiles && kApart; ++m)
#pragma unroll
        for (int i = 0; i < (kBoth ? 2 : 4); ++i) sums[m][i] += others[m][kBoth ? i + 2 : i];
      if (g > 0) barrier_wait(drained(), (g - 1) & 1);
      share(sums);
      tell();
      if (++stage == cut.stages) stage = 0, phase ^= 1;
    }
  }

  // The stage may be filled again. An arrival may overtake loads that are under way, and what a bulk copy then brings
  // is not ordered behind them: they must have ended, as they have when something of each is known.
  __device__ void leave(int stage, uint32_t loaded) const {
    barrier_arrive(kLeft + stage + __any_sync(~0u, (loaded & nothing()) != 0), kLending);
  }

  // Puts this warp's sums where another one adds them: [row of x][row of the weights].
  __device__ void share(const Sums& sums) const {
    float2* to = reinterpret_cast<float2*>(shared + L::kSums + warp * L::kSumBytes) + lane;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < (kTokens > 8 ? 2 : 1); ++half)
        to[(2 * m + half) * 32] = make_float2(sums[m][2 * half], sums[m][2 * half + 1]);
  }

  __device__ void tell() const {
    __syncwarp();
    barrier_arrive(kSummed, kSharing);
  }

  // 0 where nothing is drawn.
  __device__ int dealt() const { return kCluster > 1 ? cut.dealt : 0; }
  // One lane's: the next group that no cluster has, or -1. Each cluster draws until nothing is left: the last one to find
  // out turns the counter back to 0.
  __device__ int draw(int g) const {
    const int pool = cut.groups - dealt() * cut.clusters;
    const int next = atomicInc(a.counter, pool + cut.clusters - 1);
    const int group = next < pool ? dealt() * cut.clusters + next : -1;
    send(shared_address(told(g)), telling(g), 1, group);
    return group;
  }
  // The unit that the cluster's first block drew.
  __device__ int hear(int g) const {
    if (lane == 0) barrier_expect(telling(g), sizeof(int));
    barrier_wait(telling(g), (g - groups) / kDraws & 1);
    return *told(g);
  }

  // One warp's part: weights into the ring, from before the previous kernel has ended. Gated, a group is two rows of
  // the gate, two of what they multiply, and again two of each.
  __device__ void feed() const {
    const uint64_t policy = read_once_policy();
    const int row = a.gated ? lane / 4 * 2 + lane % 2 + lane % 4 / 2 * (a.columns / 2) : lane;
    const int64_t step = a.weight_stride * (a.gated ? kGroup / 2 : kGroup);
    const T* from = static_cast<const T*>(a.weight) + row * a.weight_stride + begin * kStep;
    const int bytes = steps * kStepBytes;
    // Stages that are filled before the previous kernel has ended. Of small matrices many rows of x take longer than the
    // weights: they must not queue behind a whole ring.
    const int early = kCluster == 1 && kTokens >= 16 ? (cut.stages + 2) / 3 : cut.stages;
    auto begin_launch = [&] {
      __syncwarp();
      if constexpr (kCluster > 1) cluster_wait();
      wait_for_previous_kernel();
      launch_next_kernel();
    };
    int stage = 0, next = 0;
#pragma unroll 1
    for (int g = 0; g < groups || dealt(); ++g) {
      // The ring is full until x has come from the L2, and memory would rest: as many rows of weights come that far. What
      // clusters of one block take mostly fits into the ring.
      if (kCluster > 1 && g == cut.stages && lane < min(kTokens, (groups - g) * kGroup))
        prefetch_bulk(from + (first + g) * step, bytes);
      if (g == early) begin_launch();
      int group = first + g;
      if (g >= groups) group = rank == 0 ? __shfl_sync(~0u, next, 0) : hear(g);
      if (dealt() && g + 1 >= groups && group >= 0 && rank == 0 && lane == 0) next = draw(g + 1);
      if (g >= cut.stages) barrier_sync(kLeft + stage, kLending);
      if (lane == 0) {
        if (g >= groups) *drawn(g) = group;
        if (group < 0) barrier_arrive_once(full(stage));
        else barrier_expect(full(stage), kGroup * bytes);
      }
      if (group < 0) break;
      __syncwarp();
      if (lane < kGroup)
        copy_bulk(base + stage_at(stage) + lane * cut.pitch, from + group * step, bytes, full(stage), policy);
      if (++stage == cut.stages) stage = 0;
    }
    if (!dealt() && groups <= early) begin_launch();
    for (int s = 0; s < min(cut.stages, groups) && kCluster > 1; ++s) barrier_sync(kLeft + s, kLending);
  }

  // The others': the sums of those warps, then of the cluster's blocks, and what is stored. Blocks of a cluster store
  // an equal share of x's rows each. A lane's quads are the same ones of every group; gated, a quad is two columns.
  struct Sink {
    bool real;
    T* out;
    const T *residual, *bias;
  };
  __device__ int collector() const { return kTeam == 1 ? 0 : warp - kWarps - 1; }
  __device__ Sink sink(int i) const {
    const int own = (i + collector()) * 32 + lane, quad = rank * L::kOwn + own, token = quad / 2;
    const int column = a.gated ? first * 4 + quad % 2 * 2 : first * 8 + quad % 2 * 4;
    const bool real = own < L::kOwn && token < a.rows;
    return {real, static_cast<T*>(a.out) + token * a.out_stride + column,
            real && a.residual ? static_cast<const T*>(a.residual) + token * a.residual_stride + column : nullptr,
            static_cast<const T*>(a.bias) + column};
  }
  __device__ void advance(Sink& s, int groups) const {
    const int columns = groups * (a.gated ? kGroup / 2 : kGroup);
    s.out += columns, s.bias += columns;
    if (s.residual) s.residual += columns;
  }
  __device__ uint2 addend(const Sink& s) const {
    return s.residual ? __ldcg(reinterpret_cast<const uint2*>(s.residual)) : make_uint2(0, 0);
  }
  __device__ float gated(float gate, float up) const {  // rounded as if they had been stored
    const float x = to_float(from_float<T>(gate));
    const bool is_silu = a.activation == Activation::silu;
    const float y = is_silu ? activate<Activation::silu>(x) : activated_otherwise(a.activation, x);
    return y * to_float(from_float<T>(up));
  }
  __device__ uint2 result(const Sink& to, float4 sum, uint2 addend) const {
    if (a.bias) sum = sum + load4<T>(to.bias, 0);
    if (a.residual) sum = multiply_add(a.factor, sum, load4<T>(&addend, 0));
    return make_uint2(pack<T>(sum.x, sum.y), pack<T>(sum.z, sum.w));
  }
  __device__ void store(const Sink& to, float4 sum, uint2 addend) const {
    if (!to.real) return;
    if (a.gated) {
      float2 gate{sum.x, sum.y}, up{sum.z, sum.w};
      if (a.bias) {
        const float2 b = load2(to.bias), c = load2(to.bias + a.columns / 2);
        gate.x += b.x, gate.y += b.y, up.x += c.x, up.y += c.y;
      }
      *reinterpret_cast<uint32_t*>(to.out) = pack<T>(gated(gate.x, up.x), gated(gate.y, up.y));
    } else {
      *reinterpret_cast<uint2*>(to.out) = result(to, sum, addend);
    }
  }
  // Results of an even group wait for those of its neighbour: a lane stores all of one of the two groups' columns.
  __device__ void store_paired(const Sink& to, uint2 before, uint2 now) const {
    const bool second = lane % 2;
    const uint2 sent = second ? before : now;
    const uint2 got = make_uint2(__shfl_xor_sync(~0u, sent.x, 1), __shfl_xor_sync(~0u, sent.y, 1));
    const uint4 whole = second ? make_uint4(got.x, got.y, now.x, now.y) : make_uint4(before.x, before.y, got.x, got.y);
    if (to.real) *reinterpret_cast<uint4*>(to.out - (second ? 4 : kGroup)) = whole;
  }

  // The warps' sums of a quad, and those together.
  struct Quads {
    float4 of[kWarps];
  };
  __device__ Quads load(const float4* quad) const {
    Quads quads;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) quads.of[w] = quad[w * L::kQuads];
    return quads;
  }
  __device__ float4 total(const Quads& quads) const {
    float4 sum = quads.of[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum = sum + quads.of[w];
    return sum;
  }

  __device__ void collect() const {
    const int here = rank * L::kOwn + collector() * 32 + lane % L::kOwn;
    const int there = (1 - rank) * L::kOwn + lane % L::kOwn;
    const float4* sums = reinterpret_cast<const float4*>(shared + L::kSums);
    const float4* inbox = reinterpret_cast<const float4*>(shared + L::kInbox) + lane % L::kOwn;
    Sink sinks[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) sinks[i] = sink(i);
    if constexpr (kCluster > 1) cluster_wait();
    wait_for_previous_kernel();
    float4 kept{};
    uint2 addends[kMine]{};
    [[maybe_unused]] uint2 waiting[kMine];
    auto finish = [&](int g) {
      barrier_wait(received(g % kInboxes), g / kInboxes & 1);
      store(sinks[0], kept + inbox[g % kInboxes * L::kOwn], addends[0]);
    };
    auto go_to = [&](int groups) {
#pragma unroll
      for (int i = 0; i < kMine; ++i) advance(sinks[i], groups), addends[i] = addend(sinks[i]);
    };
    int g = 0, group = first;
#pragma unroll 1
    for (; g < groups || dealt(); ++g) {
      if constexpr (kCluster == 1) go_to(g > 0);
      barrier_sync(kSummed, kSharing);
      const int next = g < groups ? first + g : *drawn(g);
      if (next < 0) break;
      float4 mine[kMine], theirs{};
#pragma unroll
      for (int i = 0; i < kMine - 1; ++i) mine[i] = total(load(sums + here + i * 32));
      if constexpr (kCluster > 1) theirs = total(load(sums + there));
      Quads last = load(sums + here + (kMine - 1) * 32);
      barrier_arrive_once(drained());
      mine[kMine - 1] = total(last);
      if constexpr (kCluster == 1) {
        const bool even = (first + g) % 2 == 0;
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
          if (kPaired && even && g + 1 < groups) waiting[i] = result(sinks[i], mine[i], addends[i]);
          else if (kPaired && !even && g > 0) store_paired(sinks[i], waiting[i], result(sinks[i], mine[i], addends[i]));
          else store(sinks[i], mine[i], addends[i]);
        }
      } else {
        const int slot = g % kInboxes;
        if (lane == 0) barrier_expect(received(slot), L::kOwn * 16);
        if (lane < L::kOwn) send(shared_address(inbox + slot * L::kOwn), received(slot), 1 - rank, theirs);
        if (g > 0) finish(g - 1);
        go_to(next - group);
        kept = mine[0];
      }
      group = next;
    }
    if constexpr (kCluster > 1) finish(g - 1);
  }
};

#endif

template <class T, int kTokens, int kSteps, int kCluster, bool kPaired>
__global__ void __maxnreg__((kRegisters<kTokens, kSteps, kCluster>))
    linear_held_kernel(const __grid_constant__ LinearArgs a, const __grid_constant__ Cut cut) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(256) char shared[];
  const Block<T, kTokens, kSteps, kCluster, kPaired> block(a, cut, shared);
  if (threadIdx.x == 0) block.init_barriers();
  __syncthreads();
  if constexpr (kCluster > 1) cluster_arrive();
  if (block.warp < kWarps) block.multiply();
  else if (block.warp == kWarps) block.feed();
  else block.collect();
#endif
}

// Two blocks share a depth of more than one can hold.
Cut cut_for(const LinearArgs& a, const Device& device) {
  Cut p{};
  p.groups = a.columns / kGroup, p.steps = a.depth / kStep, p.cluster = p.steps > kMostSteps ? 2 : 1;
  p.clusters = std::min(p.groups, device.multiprocessors / p.cluster);
  p.pitch = ((p.steps + p.cluster - 1) / p.cluster * kStepBytes + 127) / 128 * 128;
  return p;
}

template <class T, int kTokens, int kSteps, int kCluster>
cudaError_t launch(const LinearArgs& a, Cut p, const Device& device, cudaStream_t stream) {
  const int fixed = Layout<kTokens, kCluster>::bytes(p), own = (p.groups + p.clusters - 1) / p.clusters;
  const int room = (device.shared_per_block - fixed) / (kGroup * p.pitch);
  p.stages = std::min({room, own, kMostStages});
  if (p.stages < std::min(own, 2)) return cudaErrorNotSupported;
  // A block alone has so little depth that groups come faster than they are drawn.
  if (kCluster > 1 && a.counter && p.groups / p.clusters >= kManyGroups) p.dealt = p.groups / p.clusters * 3 / 4;
  auto kernel = linear_held_kernel<T, kTokens, kSteps, kCluster, false>;
  // Of many rows what is stored is no little, and half a sector of memory takes as long as a whole one; small products are
  // slower in pairs.
  if constexpr (kTokens > 8 && kCluster == 1)
    if (!a.gated && own >= kManyGroups) kernel = linear_held_kernel<T, kTokens, kSteps, kCluster, true>;
  const int threads = kThreads<kTokens, kSteps, kCluster>, bytes = Layout<kTokens, kCluster>::bytes(p);
  const Launch how{dim3(p.clusters * kCluster), threads, bytes, kCluster, kTokens <= 16 ? kShare : 0};
  return launch_after(kernel, how, stream, a, p);
}

template <class T, int kTokens>
cudaError_t launch_steps(const LinearArgs& a, const Cut& p, const Device& device, cudaStream_t stream) {
  const int width = (p.steps + p.cluster - 1) / p.cluster;
  if (p.cluster == 1 && width <= 4 * kWarps) return launch<T, kTokens, 4, 1>(a, p, device, stream);
  if (p.cluster == 1) return launch<T, kTokens, 7, 1>(a, p, device, stream);
  if (width <= 7 * kWarps) return launch<T, kTokens, 7, 2>(a, p, device, stream);
  return launch<T, kTokens, 8, 2>(a, p, device, stream);
}

template <class T>
cudaError_t launch_tokens(const LinearArgs& a, const Cut& p, const Device& device, cudaStream_t stream) {
  if (a.rows <= 8) return launch_steps<T, 8>(a, p, device, stream);
  if (a.rows <= 16) return launch_steps<T, 16>(a, p, device, stream);
  return launch_steps<T, 32>(a, p, device, stream);
}

}  // namespace

cudaError_t linear_held(const LinearArgs& a, const Device& device, cudaStream_t stream) {
  if (a.norm || a.rows > kMostRows || a.depth % kStep != 0 || a.depth > kMostDepth || !in_groups(a))
    return cudaErrorInvalidValue;
  const Cut cut = cut_for(a, device);
  return with_half(a.dtype, [&](auto tag) { return launch_tokens<decltype(tag)>(a, cut, device, stream); });
}

}  // namespace octavo
