// Weights of codes: where a code lies, and what it stands for.
//
// A strip is sixteen rows of a weight. It is cut along the depth into bricks of 1 KB: 128 codes of four bits a row, or 64 of
// eight. A brick lies in the order in which the lanes of a warp hold the left operand of m16n8k16 (PTX ISA, "Matrix Fragments
// for mma.m16n8k16"), which is also that of a warp of wgmma: [2][lane][16 bytes], so that a warp reads it in two loads of
// 512 bytes. A step is sixteen codes of the depth; of each, a lane has four pairs, one a register: rows lane / 4 and lane / 4
// + 8 with the depths lane % 4 * 2 + {0, 1}, then both rows with eight more. Four bits: a step is one word, register i has
// the nibbles i and i + 4. Eight bits: two words, register i has the bytes 2 i and 2 i + 1.
//
// tests/kernels/test_codes.py runs these functions on the host, with every code.
#pragma once

#include "coded/args.h"
#include "device/common.cuh"

namespace octavo {

constexpr int kStripRows = 16, kBrickBytes = 1024, kStepDepth = 16;
constexpr int kBrickWords = kBrickBytes / 4 / 32;  // of a lane
constexpr int kMostCluster = 8;  // blocks that share the depth of a product, on Hopper

constexpr bool is_nibble(Codes kind) { return kind == Codes::int4 || kind == Codes::fp4; }
constexpr bool is_float(Codes kind) { return kind == Codes::fp4 || kind == Codes::fp8; }
constexpr int brick_depth(Codes kind) { return is_nibble(kind) ? 128 : 64; }
constexpr int step_words(Codes kind) { return is_nibble(kind) ? 1 : 2; }
constexpr int brick_steps(Codes kind) { return brick_depth(kind) / kStepDepth; }

// How scales go with bricks: so many of each row for a brick or, if `shift` is not 0, one for 1 << shift bricks.
struct Grouping {
  int of_brick, shift;  // of_brick 0: no kernel for such groups
};
constexpr Grouping grouping_of(Codes kind, int group, int depth) {
  const int brick = brick_depth(kind);
  if (group >= depth) return {1, 30};
  if (group >= brick) {
    for (int shift = 0; shift < 12; ++shift)
      if (group == brick << shift) return {1, shift};
    return {0, 0};
  }
  return group == brick / 2 || group == brick / 4 || group == brick / 8 ? Grouping{brick / group, 0} : Grouping{0, 0};
}

// Sizes of a matrix in these units.
struct CodedSizes {
  int strips, bricks;
  Grouping grouping;
  int groups;  // of a row; the last brick has all of its
};
__host__ __device__ inline constexpr int units(int n, int by) { return (n + by - 1) / by; }
inline CodedSizes sizes_of(const CodedMatrix& m) {
  const int bricks = units(m.depth, brick_depth(m.kind));
  const Grouping g = grouping_of(m.kind, m.group, m.depth);
  return {units(m.columns, kStripRows), bricks, g, g.of_brick > 1 ? bricks * g.of_brick : units(m.depth, m.group)};
}

// Calls f with the kind of codes and the groups of a brick as types, where there are kernels for both.
template <class F>
inline cudaError_t with_codes(Codes kind, int groups, F&& f) {
  const auto call = [&](auto k, auto g) { return f(k, g); };
#define OCTAVO_CODES(KIND, GROUPS)         \
  if (kind == Codes::KIND && groups == GROUPS) \
    return call(std::integral_constant<Codes, Codes::KIND>{}, std::integral_constant<int, GROUPS>{});
  OCTAVO_CODES(int4, 1)
  OCTAVO_CODES(int4, 2)
  OCTAVO_CODES(int4, 4)
  OCTAVO_CODES(int8, 1)
  OCTAVO_CODES(int8, 2)
  OCTAVO_CODES(fp4, 4)
  OCTAVO_CODES(fp4, 8)
  OCTAVO_CODES(fp8, 1)
#undef OCTAVO_CODES
  return cudaErrorInvalidValue;
}

// The bytes of two words that a selector's four digits name, the lowest first.
__host__ __device__ inline uint32_t pick(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selector);
#else
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = selector >> 4 * i & 7;
    out |= ((from < 4 ? a >> 8 * from : b >> 8 * (from - 4)) & 255) << 8 * i;
  }
  return out;
#endif
}

// (x & mask) | bits, in one instruction, which the compiler does not make of two constants.
__host__ __device__ inline uint32_t masked_or(uint32_t x, uint32_t mask, uint32_t bits) {
#if defined(__CUDA_ARCH__)
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(x), "r"(mask), "r"(bits));
  return out;
#else
  return (x & mask) | bits;
#endif
}

__host__ __device__ inline uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
#endif
}
__host__ __device__ inline float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
#endif
}

// Two products or differences of 16-bit floats, all of which are exact here.
template <class T>
struct Pair;
template <>
struct Pair<bf16> {
  using type = __nv_bfloat162;
  static constexpr uint32_t kInteger = 0x43004300;  // | n: 128 + n, for n below 128
  static constexpr int kFp8Shift = 4, kFp4Shift = 6;  // from where a code's exponent and mantissa are to a bf16's
  static constexpr uint32_t kFp8Mask = 0x07f007f0, kFp4Mask = 0x01c001c0;
  static constexpr uint32_t kFp8Scale = 0x7b807b80, kFp4Scale = 0x7e807e80;  // 2^120, 2^126: the exponents' biases
};
template <>
struct Pair<f16> {
  using type = __half2;
  static constexpr uint32_t kInteger = 0x64006400;  // | n: 1024 + n, for n below 1024
  static constexpr int kFp8Shift = 1, kFp4Shift = 3;
  static constexpr uint32_t kFp8Mask = 0x3f803f80, kFp4Mask = 0x0e000e00;
  static constexpr uint32_t kFp8Scale = 0x5c005c00, kFp4Scale = 0x74007400;  // 2^8, 2^14
};
template <class T>
__host__ __device__ inline typename Pair<T>::type pair_of(uint32_t bits) {
  typename Pair<T>::type pair;
  __builtin_memcpy(&pair, &bits, 4);
  return pair;
}
template <class P>
__host__ __device__ inline uint32_t bits_of_pair(const P& pair) {
  uint32_t bits;
  __builtin_memcpy(&bits, &pair, 4);
  return bits;
}

// Values of codes, as pairs of T. Integers are less their zero point, which `zero` prepares; nothing is rounded.
template <class T, Codes kind>
struct Unpack {
  static constexpr bool kByFloats = kind == Codes::int8 && std::is_same_v<T, bf16>;  // bf16 has seven bits to put a code into
  static constexpr uint32_t kFloatInteger = 0x4b000000;  // | n: 2^23 + n

  __host__ __device__ static uint32_t zero(uint32_t point) {
    if constexpr (is_float(kind)) return 0;
    else if constexpr (kByFloats) return kFloatInteger | point;
    else return Pair<T>::kInteger | point * 0x00010001;
  }
  // Zero point of a symmetric weight.
  __host__ __device__ static uint32_t zero() { return zero(kind == Codes::int4 ? 8 : 128); }

  // The four registers of a step; zeros of the rows lane / 4 and lane / 4 + 8.
  __host__ __device__ static void step(const uint32_t* words, uint32_t low, uint32_t high, uint32_t* registers) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int i = 0; i < 4; ++i) {
      const uint32_t middle = i % 2 ? high : low;
      if constexpr (is_nibble(kind)) registers[i] = nibbles(words[0], i, middle);
      else registers[i] = bytes(words[i / 2], i % 2, middle);
    }
  }

  __host__ __device__ static uint32_t nibbles(uint32_t word, int i, uint32_t middle) {
    using P = Pair<T>;
    if constexpr (kind == Codes::int4) {
      return bits_of_pair(__hsub2(pair_of<T>(masked_or(word >> 4 * i, 0x000f000f, P::kInteger)), pair_of<T>(middle)));
    } else {
      const uint32_t at_top = word << 4 * (3 - i);
      const uint32_t unscaled = (at_top & 0x80008000) | (at_top >> P::kFp4Shift & P::kFp4Mask);
      return bits_of_pair(__hmul2(pair_of<T>(unscaled), pair_of<T>(P::kFp4Scale)));
    }
  }
  __host__ __device__ static uint32_t bytes(uint32_t word, int half, uint32_t middle) {
    using P = Pair<T>;
    if constexpr (kind == Codes::fp8) {
      const uint32_t at_top = pick(word, 0, half ? 0x3424 : 0x1404);
      const uint32_t unscaled = (at_top & 0x80008000) | (at_top >> P::kFp8Shift & P::kFp8Mask);
      return bits_of_pair(__hmul2(pair_of<T>(unscaled), pair_of<T>(P::kFp8Scale)));
    } else if constexpr (kByFloats) {
      const float a = float_of(pick(word, kFloatInteger, half ? 0x7442 : 0x7440)) - float_of(middle);
      const float b = float_of(pick(word, kFloatInteger, half ? 0x7443 : 0x7441)) - float_of(middle);
      return pick(bits_of(a), bits_of(b), 0x7632);
    } else {
      return bits_of_pair(__hsub2(pair_of<T>(pick(word, P::kInteger, half ? 0x5352 : 0x5150)), pair_of<T>(middle)));
    }
  }
};

}  // namespace octavo
