// What a block makes of the chunks of its units of Mamba2 ahead of their products: x, gates and M; and the copies of what a group has.
#pragma once

#include "recurrent/ssm_chunk_shared.cuh"

namespace octavo {
namespace {

#if OCTAVO_WGMMA

template <class T, int rows>
struct SsmMaker {
  using Shared = SsmShared<rows>;
  static constexpr int kMakers = Shared::kMakers, kStages = Shared::kStages;
  static constexpr int kTogether = rows == 128 ? 8 : 4, kLines = kTaps + kTogether - 1;  // tokens of a warp at a time, their inputs
  static constexpr int kEach = kChunk / kTogether / kMakers;           // times a unit
  static constexpr int kOwn = kWide / 32;                              // columns of a lane
  static constexpr int kMade = 1;                                      // barrier of these warps
  static constexpr double kLog2 = 1.4426950408889634;
  static constexpr double kLeast = -1000.0;  // no float is more than its logarithm to base 2

  const SsmChunkArgs& c;
  const SsmArgs& a;
  Shared& shared;
  const int lane, warp;
  uint32_t chunks = 0, pairs = 0;  // so far: those of the block, those of two units
  Words<T, kOwn> in[kLines];  // of what is made next
  Words<T, 1> steps[2];

  __device__ SsmMaker(const SsmChunkArgs& args, Shared& memory)
      : c(args), a(args.ssm), shared(memory), lane(threadIdx.x % 32), warp(int(uniform(threadIdx.x / 32)) - 4 * kUnits) {
    clear_masked();
  }

  __device__ static void meet() { barrier_sync(kMade, 32 * kMakers); }
  __device__ bool copies() const { return threadIdx.x == 128 * kUnits; }
  // Copies C, or B, for the block's `count`th chunk from now on, once that `kStages` before it has been used.
  __device__ void copy(const Tile* from, Tile (&to)[kStages][rows / kWide], uint64_t (&full)[kStages], uint64_t (&empty)[kStages],
                       uint32_t count) {
    const uint32_t stage = count % kStages, done = shared_address(&full[stage]);
    barrier_wait(shared_address(&empty[stage]), (count / kStages & 1) ^ 1);
    barrier_expect(done, sizeof(to[0]));
    copy_bulk(shared_address(to[stage]), from, sizeof(to[0]), done);
  }
  // Copies for a piece's chunk that is so many behind the one that is made now, if there is one.
  __device__ void copy_c(const SsmPiece& piece, int at, int ahead) {
    if (copies() && at + ahead < piece.stretch.end)
      copy(tile_of<rows>(c, at + ahead, piece.group).c, shared.c, shared.c_full, shared.c_empty, chunks + ahead);
  }
  __device__ void copy_b(const SsmPiece& piece, int at, int ahead) {
    if (copies() && at + ahead < piece.stretch.end)
      copy(tile_of<rows>(c, at + ahead, piece.group).b, shared.b, shared.b_full, shared.b_empty, chunks + ahead);
  }
  // The other of the two that there is room for has been used by all of these warps.
  __device__ void copy_products(const SsmPiece& piece, int at, int ahead) {
    if (!copies() || at + ahead >= piece.stretch.end) return;
    float(&to)[kTriangle] = shared.products[(chunks + ahead) % 2];
    const uint32_t done = shared_address(&shared.products_full[(chunks + ahead) % 2]);
    barrier_expect(done, sizeof(to));
    copy_bulk(shared_address(to), tile_of<rows>(c, at + ahead, piece.group).products, sizeof(to), done);
  }

  __device__ void take_weights(const SsmUnit& own, int unit) {
    const Convolution& w = a.step.convolution;
    for (int tap = warp; tap <= kTaps; tap += kMakers) {
      float* to = shared.weights[tap] + unit * kWide + lane * kOwn;
      if (tap < kTaps) widen_weights<T, kOwn>(static_cast<const T*>(w.weight) + tap * w.channels, own.x + lane * kOwn, to);
      else if (w.bias) widen_weights<T, kOwn>(w.bias, own.x + lane * kOwn, to);
    }
  }
  __device__ uint32_t count(int unit) const { return unit ? pairs : chunks; }
  __device__ SsmGates& gates_of(int unit) const { return shared.gates[count(unit) % 2][unit]; }
  __device__ int token(int time) const { return (time * kMakers + warp) * kTogether; }
  // Loads what this warp makes of a chunk's unit at one of kEach times.
  __device__ void fetch(const Line<T>& line, const Sequence& s, int first, int x, int time) {
    line.run(first + token(time) - kTaps + 1, s.tokens - 1, x + lane * kOwn, in);
  }
  // Loads the steps of a chunk's gates, which lie behind what is convolved.
  __device__ void fetch_steps(const Line<T>& line, const Chunk& chunk, int head) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = chunk.first + min(2 * lane + i, chunk.count - 1);
      steps[i] = load_words<T, 1>(line.rows + int64_t(t) * line.stride + line.channels + head);
    }
  }
  // SiLU of the convolutions of this warp's tokens: zeros behind the chunk's end.
  __device__ void make_x(const Line<T>& line, const Chunk& chunk, int unit, int time) {
    Tile& tile = shared.x[unit];
    line.clear(chunk.first + token(time) - kTaps + 1, in);
    float x[kTogether][kOwn];
    convolve<kTaps, kTogether>(in, shared.weights[0] + unit * kWide + lane * kOwn, kUnits * kWide, a.step.convolution.bias, x);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int t = token(time) + i;
      const bool there = t < chunk.count;
      const Split split(there ? x[i][0] : 0.0f, there ? x[i][1] : 0.0f);
      const int place = Tile::place(t, lane * kOwn);
      *reinterpret_cast<uint32_t*>(tile.part[0] + place) = split.high;
      *reinterpret_cast<uint32_t*>(tile.part[1] + place) = split.low;
    }
  }
  // A warp's, of which a lane has two tokens: sums are of doubles, so that tokens behind a large decay lose nothing.
  __device__ void make_gates(const Chunk& chunk, const SsmHead& head, SsmGates& to) {
    float dt[2];
    double sums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float raw[1];
      widen(steps[i], raw);
      dt[i] = fminf(fmaxf(softplus(__fadd_rn(raw[0], head.dt_bias)), a.least), a.most);
      if (2 * lane + i >= chunk.count) dt[i] = 0.0f;
      sums[i] = max(kLog2 * head.rate * dt[i], kLeast);
    }
    const double both = sums[0] + sums[1];
    double sum = both;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const double from = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += from;
    }
    const double end = __shfl_sync(~0u, sum, 31);
    sums[0] += sum - both, sums[1] = sum;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane + i;
      to.sums[t] = make_float2(float(sums[i]), float(sums[i] - double(float(sums[i]))));
      to.dt[t] = dt[i], to.into[t] = fast_exp2(float(sums[i])), to.left[t] = dt[i] * fast_exp2(float(end - sums[i]));
    }
  }
  // M's upper right quarter, which nothing is made for: zeros.
  __device__ void clear_masked() {
    constexpr int kSixteens = int(sizeof(shared.masked) / sizeof(uint4));
    for (int i = warp * 32 + lane; i < kSixteens; i += 32 * kMakers) reinterpret_cast<uint4*>(shared.masked)[i] = {};
  }
  // Of two columns of M the rows of some blocks that are this warp's.
  template <int kBlocks>
  __device__ void mask_blocks(const float (&products)[kTriangle], float skip, int unit, int first, int i) {
    const SsmGates& gates = gates_of(unit);
    const float4 own = *reinterpret_cast<const float4*>(gates.sums + i);
    const float2 dt = *reinterpret_cast<const float2*>(gates.dt + i);
#pragma unroll 4
    for (int at = 0; at < kBlocks * kSide; at += kMakers) {
      const int block = first + at / kSide, row = at % kSide + warp, t = block * kSide + row;
      const float2 sum = gates.sums[t], of = *reinterpret_cast<const float2*>(products + triangle_row(block, row) + i);
      float one = i <= t ? fast_exp2(sum.x - own.x + (sum.y - own.y)) * dt.x * of.x : 0.0f;
      float two = i < t ? fast_exp2(sum.x - own.z + (sum.y - own.w)) * dt.y * of.y : 0.0f;
      if (i == t) one += skip;
      if (i + 1 == t) two += skip;
      const Split split(one, two);
      const int place = Tile::place(t, i);
      *reinterpret_cast<uint32_t*>(shared.masked[unit].part[0] + place) = split.high;
      *reinterpret_cast<uint32_t*>(shared.masked[unit].part[1] + place) = split.low;
    }
  }
  // M: a warp makes a row at a time, or two of the upper half, which are half as long.
  __device__ void make_masked(const float (&products)[kTriangle], float skip, int unit) {
    mask_blocks<1>(products, skip, unit, lane / 16, lane % 16 * 2);
    mask_blocks<2>(products, skip, unit, 2, lane * 2);
  }
  __device__ void make(const SsmPiece& piece) {
    const Stretch& stretch = piece.stretch;
    const Sequence& s = stretch.sequence;
    const Line<T> line(a.step, s, a.heads * a.head_dim);
    copy_products(piece, stretch.begin, 0);
    for (int i = 0; i < kStages; ++i) copy_c(piece, stretch.begin, i), copy_b(piece, stretch.begin, i);
    meet();  // no warp needs the last units' weights
    Chunk chunk = chunk_at(c.plan, stretch.begin);
    for (int unit = 0; unit < piece.units; ++unit) take_weights(SsmUnit(a, piece, unit), unit);
    const int head = SsmUnit(a, piece, min(warp, 1)).head;  // whose gates the first warps make
    if (warp < piece.units) {
      if (lane == 0) shared.heads[warp] = {a.skip[head], a.dt_bias[head], a.rates[head]};
      fetch_steps(line, chunk, head);
    }
    fetch(line, s, chunk.first, piece.x, 0);
    meet();
    for (int at = stretch.begin; at < stretch.end; ++at, ++chunks) {
      const Chunk next = chunk_at(c.plan, min(at + 1, stretch.end - 1));
      if (at > stretch.begin) copy_c(piece, at, kStages - 1);
      if (warp < piece.units) make_gates(chunk, shared.heads[warp], gates_of(warp));  // those of two chunks before are no longer in use
#pragma unroll 1
      for (int unit = 0; unit < piece.units; ++unit) {
        barrier_wait(shared_address(&shared.used[unit]), (count(unit) & 1) ^ 1);
#pragma unroll 1
        for (int time = 0; time < kEach; ++time) {
          make_x(line, chunk, unit, time);
          const bool another = time + 1 < kEach, last = !another && unit + 1 == piece.units;
          const int then = another ? unit : last ? 0 : unit + 1;
          fetch(line, s, last ? next.first : chunk.first, piece.x + then * kWide, another ? time + 1 : 0);
        }
        if (unit == 0) {
          meet();  // gates of both units are there
          if (warp < piece.units) fetch_steps(line, next, head);
          copy_products(piece, at, 1);
          barrier_wait(shared_address(&shared.products_full[chunks % 2]), chunks / 2 & 1);
        }
        make_masked(shared.products[chunks % 2], shared.heads[unit].skip, unit);
        fence_bulk();
        __syncwarp();
        if (lane == 0) barrier_arrive_once(shared_address(&shared.made[unit]));
      }
      if (piece.units == kUnits) ++pairs;
      if (at > stretch.begin) copy_b(piece, at, kStages - 1);
      chunk = next;
    }
  }
};

#endif

}  // namespace
}  // namespace octavo
