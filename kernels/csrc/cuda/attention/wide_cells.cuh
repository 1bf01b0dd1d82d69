// Cells in eight bits as elements of the data's type, which holds every code exactly.
#pragma once

#include "attention/wide.cuh"

namespace octavo {
namespace {

// Kinds of cells. `kNothing`: four codes of zero.
struct PlainCells {};
struct IntegerCells {
  static constexpr uint32_t kNothing = 0x80808080u;
};
struct FloatCells {
  static constexpr uint32_t kNothing = 0;
};
template <class C>
inline constexpr bool is_coded = !std::is_same_v<C, PlainCells>;

template <class Pair>
__device__ inline Pair pair_of(uint32_t bits) {
  return *reinterpret_cast<const Pair*>(&bits);
}
template <class Pair>
__device__ inline uint32_t bits_of(Pair pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Two codes, in the low bytes of the halves of a word.
__device__ inline uint32_t widen_pair(f16, IntegerCells, uint32_t codes) {  // 0x64vv is 1024 + vv, and codes are raised by 128
  return bits_of(__hsub2(pair_of<__half2>(codes | 0x64006400u), pair_of<__half2>(0x64806480u)));
}
__device__ inline uint32_t widen_pair(bf16, IntegerCells, uint32_t codes) {
  // Seven bits of fraction: 0x4300 and the code's low seven bits are 128 + those, of which 128 or, below it, 256 are taken.
  const uint32_t raised = codes & 0x007f007fu | 0x43004300u, taken = codes & 0x00800080u ^ 0x43804380u;
  return bits_of(__hsub2(pair_of<__nv_bfloat162>(raised), pair_of<__nv_bfloat162>(taken)));
}
// Four bits of exponent and three of fraction at the place of the lowest of a wider exponent, times the power of two between
// the two: codes below 2^-6 are subnormal there, too.
__device__ inline uint32_t widen_pair(f16, FloatCells, uint32_t codes) {
  const uint32_t low = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 7;
  return bits_of(__hmul2(pair_of<__half2>(low), pair_of<__half2>(0x5c005c00u)));
}
__device__ inline uint32_t widen_pair(bf16, FloatCells, uint32_t codes) {
  const uint32_t low = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 4;
  return bits_of(__hmul2(pair_of<__nv_bfloat162>(low), pair_of<__nv_bfloat162>(0x7b807b80u)));
}

// Sixteen columns of a token, as `cell_place` has them in K, or in V: the first eight and the last eight.
template <class T, class C>
__device__ inline void widen_unit(const uint4& cells, bool of_values, uint4& first, uint4& last) {
  const uint32_t words[4] = {cells.x, cells.y, cells.z, cells.w}, low = of_values ? 0x4240 : 0x4140,
                 high = of_values ? 0x4341 : 0x4342;
  uint32_t out[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[0][i] = widen_pair(T{}, C{}, __byte_perm(words[i], 0, low));
    out[1][i] = widen_pair(T{}, C{}, __byte_perm(words[i], 0, high));
  }
  first = make_uint4(out[0][0], out[0][1], out[0][2], out[0][3]);
  last = make_uint4(out[1][0], out[1][1], out[1][2], out[1][3]);
}

}  // namespace
}  // namespace octavo
