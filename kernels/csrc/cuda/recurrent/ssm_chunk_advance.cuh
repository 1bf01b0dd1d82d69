// States of Mamba2 from one chunk to the next, and the outputs of each (arXiv 2405.21060, section 6). With G_t the running sum of a
// head's decays' logarithms and S its state before the chunk,
//   y_t = exp(G_t) S^T C_t + sum over i <= t of M_ti x_i,   M_ti = exp(G_t - G_i) dt_i (C_t . B_i) + (i = t) skip,
//   S' = exp(G_end) S + sum of B_i (exp(G_end - G_i) dt_i x_i)^T.
// A block has two units of a group, 64 columns of a head each, and a warpgroup for each of these, which has the unit's columns of the
// matrix, transposed, in registers: results of a product are the left operand of the next one as they are. Other warps make x and M.
#pragma once

#include "recurrent/ssm_chunk_shared.cuh"
#include "recurrent/ssm_chunk_make.cuh"

namespace octavo {
namespace {

#if OCTAVO_WGMMA

// The warpgroup of a unit.
template <int rows>
struct SsmAdvancer {
  static constexpr int kTiles = rows / kWide, kSteps = kWide / 16;  // of the state's rows; of 16 rows, or tokens, in a tile
  static constexpr int kHeld = rows == 128 ? 2 : 1;  // whose parts are in registers at a time: with twice as many products do not overlap
  using Shared = SsmShared<rows>;

  const SsmChunkArgs& c;
  Shared& shared;
  const int unit, warp, row, pair;  // of a result: the first of its two rows, which are columns of the matrix, and of its columns
  uint32_t chunks = 0, made = 0;    // so far: those of the block, those of this unit
  float state[kTiles][32];

  __device__ SsmAdvancer(const SsmChunkArgs& args, Shared& memory)
      : c(args), shared(memory), unit(int(uniform(threadIdx.x / 128))), warp(threadIdx.x % 128 / 32),
        row(warp * 16 + threadIdx.x % 32 / 4), pair(threadIdx.x % 4 * 2) {}

  __device__ static uint32_t units_of(const void* tile) { return uniform(shared_address(tile) / 16); }
  __device__ static void tell(uint64_t& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive_once(shared_address(&barrier));
  }
  // This lane's elements of the unit's columns, and where they lie from their first on.
  template <class F>
  __device__ void for_elements(F&& f) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 32; ++i)
        f(state[tile][i], (tile * kWide + i / 4 * 8 + pair + i % 2) * c.ssm.head_dim + row + i % 4 / 2 * 8);
  }
  __device__ void load(const float* from) {
    for_elements([&](float& x, int at) { x = from ? __ldcg(from + at) : 0.0f; });
  }
  __device__ void store(float* to) {
    for_elements([&](float& x, int at) { to[at] = x; });
  }
  __device__ int64_t place(const SsmUnit& own) const { return (int64_t(own.head) * rows * c.ssm.head_dim) + own.column; }
  __device__ float* slot(const SsmUnit& own, int id) const {
    return static_cast<float*>(c.ssm.matrices.data) + id * c.ssm.matrices.stride + place(own);
  }
  __device__ float* carried(const SsmUnit& own, int part) const {
    return c.carry + int64_t(part % 2) * c.ssm.heads * rows * c.ssm.head_dim + place(own);
  }

  // Products of the state with C, token by token.
  __device__ void ask(const Tile* tiles, float (&y)[32]) {
    uint32_t high[kHeld][4], low[kHeld][4];
#pragma unroll
    for (int step = 0; step < kTiles * kSteps; step += kHeld) {
      const int tile = step / kSteps, first_step = step % kSteps;
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const auto& s = reinterpret_cast<const float(&)[8][4]>(state[tile]);
        const Left left(s[2 * (first_step + k)], s[2 * (first_step + k) + 1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) high[k][i] = left.high[i], low[k][i] = left.low[i], hold(high[k][i]), hold(low[k][i]);
      }
      const uint32_t first = units_of(tiles[tile].part[0]) + 2 * first_step, second = units_of(tiles[tile].part[1]) + 2 * first_step;
      products_begin();
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        wgmma_held(bf16{}, y, high[k], operand<128>(first + 2 * k), step + k > 0);
        wgmma_held(bf16{}, y, low[k], operand<128>(first + 2 * k), true);
        wgmma_held(bf16{}, y, high[k], operand<128>(second + 2 * k), true);
      }
      products_commit();
      products_wait<0>(y);
    }
  }
  // Both parts of x, transposed, of kHeld sixteens of tokens from `step` on.
  using Words = uint32_t[2][kHeld][4];
  __device__ void take_x(int step, Words& x) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int at = Tile::place((step + k) * 16 + lane / 16 * 8 + lane % 8, warp * 16 + lane / 8 % 2 * 8);
        ldmatrix_transposed(x[part][k], shared_address(shared.x[unit].part[part] + at));
      }
  }
  // Adds the products of M with x. All rows of M take part: a product with some of y's registers, as for the zeros above the diagonal,
  // makes ptxas wait behind every product of the kernel.
  __device__ void mix(float (&y)[32]) const {
    const Tile& tile = shared.masked[unit];
    Words x;
#pragma unroll
    for (int step = 0; step < kSteps; step += kHeld) {
      take_x(step, x);
      const uint32_t first = units_of(tile.part[0]) + 2 * step, second = units_of(tile.part[1]) + 2 * step;
      products_begin();
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        wgmma_held(bf16{}, y, x[0][k], operand<128>(first + 2 * k), true);
        wgmma_held(bf16{}, y, x[1][k], operand<128>(first + 2 * k), true);
        wgmma_held(bf16{}, y, x[0][k], operand<128>(second + 2 * k), true);
      }
      products_commit();
      products_wait<0>(y);
    }
  }
  // Adds products of B with x, which decays to the chunk's end, to the state. While the last of them are under way, `meanwhile`.
  template <class F>
  __device__ void add(const Tile* tiles, const SsmGates& gates, uint64_t& full, uint32_t parity, F&& meanwhile) {
    Words x;
#pragma unroll
    for (int step = 0; step < kSteps; step += kHeld) {
      take_x(step, x);
      scale(gates.left + 16 * step, x);
      if (step + kHeld == kSteps) tell(shared.used[unit]);
      if (step == 0) barrier_wait(shared_address(&full), parity);
      products_begin();
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint32_t first = units_of(tiles[tile].part[0]) + 128 * step, second = units_of(tiles[tile].part[1]) + 128 * step;
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
          wgmma_transposed(bf16{}, state[tile], x[0][k], operand<128>(first + 128 * k));
          wgmma_transposed(bf16{}, state[tile], x[1][k], operand<128>(first + 128 * k));
          wgmma_transposed(bf16{}, state[tile], x[0][k], operand<128>(second + 128 * k));
        }
      }
      products_commit();
      if (step + kHeld == kSteps) meanwhile();
      products_wait<0>(state[0]);
#pragma unroll
      for (int tile = 1; tile < kTiles; ++tile) pin(state[tile]);
    }
  }
  __device__ void scale(const float (&by)[kChunk], float (&y)[32]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 factors = *reinterpret_cast<const float2*>(by + n * 8 + pair);
      y[4 * n] *= factors.x, y[4 * n + 1] *= factors.y, y[4 * n + 2] *= factors.x, y[4 * n + 3] *= factors.y;
    }
  }
  __device__ void scale(const float* by, Words& x) const {
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 high = unpack<bf16>(x[0][k][i]), low = unpack<bf16>(x[1][k][i]);
        const float2 factors = *reinterpret_cast<const float2*>(by + k * 16 + i / 2 * 8 + pair);
        const Split split((high.x + low.x) * factors.x, (high.y + low.y) * factors.y);
        x[0][k][i] = split.high, x[1][k][i] = split.low;
        hold(x[0][k][i]), hold(x[1][k][i]);
      }
  }
  __device__ void write(const Sequence& s, const Chunk& chunk, const SsmUnit& own, const float (&y)[32]) const {
    const int width = c.ssm.heads * c.ssm.head_dim;
    float* to = c.ssm.y + int64_t(s.begin + chunk.first + pair) * width + own.x + row;
#pragma unroll
    for (int n = 0; n < 8; ++n, to += 8 * width)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = n * 8 + i % 2;
        if (t + pair < chunk.count) to[i % 2 * width + i / 2 * 8] = y[4 * n + i];
      }
  }
  __device__ void advance(const Sequence& s, const Chunk& chunk, const SsmUnit& own) {
    const int stage = chunks % Shared::kStages;
    const uint32_t parity = chunks / Shared::kStages & 1;
    float y[32];
    barrier_wait(shared_address(&shared.c_full[stage]), parity);
    ask(shared.c[stage], y);
    tell(shared.c_empty[stage]);
    barrier_wait(shared_address(&shared.made[unit]), made & 1);
    const SsmGates& gates = shared.gates[made++ % 2][unit];
    scale(gates.into, y);
    mix(y);
    const float decay = gates.into[kChunk - 1];
#pragma unroll
    for (int i = 0; i < kTiles * 32; ++i) state[i / 32][i % 32] *= decay;
    add(shared.b[stage], gates, shared.b_full[stage], parity, [&] { write(s, chunk, own, y); });
    tell(shared.b_empty[stage]);
    ++chunks;
  }
  __device__ void advance(const SsmPiece& piece) {
    const Stretch& stretch = piece.stretch;
    const Sequence& s = stretch.sequence;
    if (unit >= piece.units) return pass(stretch.end - stretch.begin);
    const SsmUnit own(c.ssm, piece, unit);
    load(!stretch.first ? carried(own, c.plan.part) : s.read ? slot(own, s.read) : nullptr);
    Keeps keeps(c.plan.moves, s);
    for (int at = stretch.begin; at < stretch.end; ++at) {
      const Chunk chunk = chunk_at(c.plan, at);
      advance(s, chunk, own);
      const int tokens = chunk.first + chunk.count;
      keeps.pass(tokens);
      keeps.at(tokens, [&](int kept) { store(slot(own, kept)); });
    }
    if (!stretch.last) store(carried(own, c.plan.part + 1));
    else if (s.write) store(slot(own, s.write));
  }
  // Chunks in which there is no such unit.
  __device__ void pass(int count) {
    for (; count > 0; --count, ++chunks) {
      const int stage = chunks % Shared::kStages;
      const uint32_t parity = chunks / Shared::kStages & 1;
      barrier_wait(shared_address(&shared.c_full[stage]), parity), tell(shared.c_empty[stage]);
      barrier_wait(shared_address(&shared.b_full[stage]), parity), tell(shared.b_empty[stage]);
    }
  }
};

#endif

template <class T, int rows>
__global__ void __launch_bounds__(SsmShared<rows>::kThreads, 1) advance_ssm_chunks(const __grid_constant__ SsmChunkArgs c) {
#if OCTAVO_WGMMA
  using Shared = SsmShared<rows>;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & 1023));
  if (threadIdx.x == 0) shared.set_up();
  __syncthreads();
  wait_for_previous_kernel();
  launch_next_kernel();
  if (threadIdx.x < kUnits * 128) {
    take_registers<Shared::kTaken>();
    SsmAdvancer<rows> advancer(c, shared);
    for_ssm_pieces(c, [&](const SsmPiece& piece) { advancer.advance(piece); });
  } else {
    give_registers<Shared::kKept>();
    SsmMaker<T, rows> maker(c, shared);
    for_ssm_pieces(c, [&](const SsmPiece& piece) { maker.make(piece); });
  }
#endif
}

}  // namespace
}  // namespace octavo
