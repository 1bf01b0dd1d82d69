// What a chunk of Mamba2 needs that no head is in: B and C of a group, and the products of these.
#pragma once

#include "recurrent/ssm_chunk.cuh"

namespace octavo {
namespace {

constexpr int kPreparers = 8;                              // warps of a block
constexpr int kSpan = 128, kLane = kSpan / 32;             // values of B or C that a warp makes at once, and a lane of it
constexpr int kTogether = 4, kLines = kTaps + kTogether - 1;  // tokens that a warp makes at a time, inputs that these take

template <int rows>
struct PrepareShared {
  Tile c[rows / kWide], b[rows / kWide];
  float weights[kTaps + 1][2 * rows];  // B, C
};

#if OCTAVO_WGMMA

template <class T, int rows>
struct Preparer {
  const SsmChunkArgs& c;
  const SsmArgs& a;
  PrepareShared<rows>& shared;
  const Chunk chunk;
  const Sequence sequence;
  const Line<T> line;
  GroupTile<rows>& to;
  const int first, lane, warp;  // B's first channel of the group

  __device__ Preparer(const SsmChunkArgs& args, PrepareShared<rows>& memory, int at, int group)
      : c(args), a(args.ssm), shared(memory), chunk(chunk_at(args.plan, at)), sequence(sequence_at(args.plan, chunk.order)),
        line(a.step, sequence, a.heads * a.head_dim), to(tile_of<rows>(args, at, group)),
        first(a.heads * a.head_dim + group * rows), lane(threadIdx.x % 32), warp(threadIdx.x / 32) {}

  // The channel of this lane's first value of a span: those of B come first.
  __device__ int channel(int span) const {
    const int at = span * kSpan + lane * kLane;
    return at < rows ? first + at : first + a.groups * rows + at - rows;
  }
  __device__ void take_weights() {
    const Convolution& w = a.step.convolution;
    for (int at = warp; at < (kTaps + 1) * 2 * rows / kSpan; at += kPreparers) {
      const int tap = at / (2 * rows / kSpan), span = at % (2 * rows / kSpan);
      float* own = shared.weights[tap] + span * kSpan + lane * kLane;
      if (tap < kTaps) widen_weights<T, kLane>(static_cast<const T*>(w.weight) + tap * w.channels, channel(span), own);
      else if (w.bias) widen_weights<T, kLane>(w.bias, channel(span), own);
    }
  }
  // SiLU of the convolutions of kTogether tokens, from `t` of the chunk on: zeros behind its end.
  __device__ void make(int span, int t) {
    Words<T, kLane> in[kLines];
    const int begin = chunk.first + t - kTaps + 1, row = span * kSpan + lane * kLane;
    line.run(begin, sequence.tokens - 1, channel(span), in);
    line.clear(begin, in);
    float made[kTogether][kLane];
    convolve<kTaps, kTogether>(in, shared.weights[0] + row, 2 * rows, a.step.convolution.bias, made);
    Tile& tile = row < rows ? shared.b[row / kWide] : shared.c[(row - rows) / kWide];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const bool there = t + i < chunk.count;
      const Split one(there ? made[i][0] : 0.0f, there ? made[i][1] : 0.0f);
      const Split two(there ? made[i][2] : 0.0f, there ? made[i][3] : 0.0f);
      const int place = Tile::place(t + i, row % kWide);
      *reinterpret_cast<uint2*>(tile.part[0] + place) = make_uint2(one.high, two.high);
      *reinterpret_cast<uint2*>(tile.part[1] + place) = make_uint2(one.low, two.low);
    }
  }
  // A part of 16 x 16 numbers as four matrices, which lie side by side in pairs, one pair below the other.
  __device__ void load(const Tile* tiles, int part, int token, int row, uint32_t (&to)[4]) const {
    const int place = Tile::place(token + lane % 8 + lane / 16 * 8, row % kWide + lane / 8 % 2 * 8);
    ldmatrix(to, shared_address(tiles[row / kWide].part[part] + place));
  }
  // Products of 16 tokens of each of four warps with those up to these.
  __device__ void multiply() {
    float sums[kChunk / 8][4] = {};
#pragma unroll 1
    for (int row = 0; row < rows; row += 16) {
      uint32_t of_c[2][4];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t got[4];
        load(shared.c, part, warp * kSide, row, got);
        of_c[part][0] = got[0], of_c[part][1] = got[2], of_c[part][2] = got[1], of_c[part][3] = got[3];
      }
#pragma unroll
      for (int pair = 0; pair < kChunk / kSide; ++pair) {
        if (pair > warp) break;
        uint32_t of_b[2][4];
        load(shared.b, 0, pair * kSide, row, of_b[0]), load(shared.b, 1, pair * kSide, row, of_b[1]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float(&sum)[4] = sums[2 * pair + half];
          mma<bf16>(sum, of_c[0], of_b[0][2 * half], of_b[0][2 * half + 1]);
          mma<bf16>(sum, of_c[1], of_b[0][2 * half], of_b[0][2 * half + 1]);
          mma<bf16>(sum, of_c[0], of_b[1][2 * half], of_b[1][2 * half + 1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      if (n / 2 > warp) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float2*>(to.products + triangle_row(warp, half * 8 + lane / 4) + n * 8 + lane % 4 * 2) =
            make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
      }
    }
  }
  __device__ void store(int thread, int threads) const {
    constexpr int kWords = int(sizeof(to.c) + sizeof(to.b)) / int(sizeof(uint4));
    for (int i = thread; i < kWords; i += threads) reinterpret_cast<uint4*>(&to.c)[i] = reinterpret_cast<const uint4*>(&shared.c)[i];
  }
  __device__ void run() {
    take_weights();
    __syncthreads();
    constexpr int kSpans = 2 * rows / kSpan;
    for (int at = warp; at < kSpans * kChunk / kTogether; at += kPreparers) make(at % kSpans, at / kSpans * kTogether);
    __syncthreads();
    if (warp < kChunk / kSide) multiply();
    else store(int(threadIdx.x) - 32 * (kChunk / kSide), 32 * (kPreparers - kChunk / kSide));
    __syncthreads();
  }
};

#endif

template <class T, int rows>
__global__ void __launch_bounds__(32 * kPreparers, 256 / rows) prepare_ssm_chunks(const __grid_constant__ SsmChunkArgs c) {
#if OCTAVO_WGMMA
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<PrepareShared<rows>*>(memory);
  wait_for_previous_kernel();
  launch_next_kernel();
  const Part part(c.plan);
  const int groups = c.ssm.groups;
  for (int at = blockIdx.x; at < (part.end - part.begin) * groups; at += gridDim.x)
    Preparer<T, rows>(c, shared, part.begin + at / groups, at % groups).run();
#endif
}

}  // namespace
}  // namespace octavo
