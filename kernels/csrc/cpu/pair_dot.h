// Codes as pairs of bf16, in which their bare numbers are exact, against x in bf16.
#pragma once

#include "quantised_kernel.h"

namespace octavo {
namespace {

struct HalfTable {
  uint16_t bits[32];
};
// The bits of a whole number below 256.
constexpr uint16_t whole_bf16(int number) {
  const int size = number < 0 ? -number : number;
  int exponent = 0;
  while (size >> (exponent + 1)) ++exponent;
  const int magnitude = size == 0 ? 0 : (127 + exponent) << 7 | ((size << 7 >> exponent) & 0x7f);
  return uint16_t((number < 0 ? 0x8000 : 0) | magnitude);
}
// The numbers `of(0)` to `of(31)`.
template <class F>
constexpr HalfTable half_table(F of) {
  HalfTable table = {};
  for (int i = 0; i < 32; ++i) table.bits[i] = whole_bf16(of(i));
  return table;
}
alignas(64) constexpr HalfTable kInt4 = half_table([](int i) { return i % 16 - 8; });
alignas(64) constexpr HalfTable kInt4WithZero = half_table([](int i) { return i - 16; });
alignas(64) constexpr HalfTable kE2m1 = half_table([](int i) { return int(kTwiceE2m1[i % 16]); });

// Rows of bf16 in the order of the codes; `at(k)` is where `step` values from k on go.
template <class F>
inline void place_ordered(const QuantisedArgs& a, int64_t t, int64_t step, F at) {
  const bf16* x = static_cast<const bf16*>(a.x) + t * a.x_stride;
  for (int64_t k = 0; k < a.depth; k += step) {
    bf16* out = at(k);
    if (a.order) {
      for (int64_t i = 0; i < step; ++i) out[i] = a.order[k + i] < 0 ? bf16{0} : x[a.order[k + i]];
    } else {
      const int64_t kept = a.x_depth - k < 0 ? 0 : a.x_depth - k < step ? a.x_depth - k : step;
      __builtin_memcpy(out, x + k, size_t(kept) * sizeof *out);
      for (int64_t i = kept; i < step; ++i) out[i] = bf16{0};
    }
  }
}

#if __AVX512VBMI__
// Both bytes of the bf16 that a code of 8 bits is, by its lower seven bits: as they are, and with the eighth.
struct ByteTables {
  uint8_t low[2][128], high[2][128];
};
constexpr ByteTables int8_bytes() {
  ByteTables tables = {};
  for (int i = 0; i < 256; ++i) {
    const uint16_t bits = whole_bf16(i < 128 ? i : i - 256);
    tables.low[i / 128][i % 128] = uint8_t(bits), tables.high[i / 128][i % 128] = uint8_t(bits >> 8);
  }
  return tables;
}
// Numbers over `code_unit`, 2^8. Without an exponent a code is so many times 2^-9.
constexpr ByteTables e4m3_bytes() {
  ByteTables tables = {};
  for (int i = 0; i < 256; ++i) {
    const int exponent = i >> 3 & 15, fraction = i & 7;
    const int normal = (exponent + 120 - 8) << 7 | fraction << 4;
    const int small = fraction ? whole_bf16(fraction) - (17 << 7) : 0;
    const int bits = (exponent ? normal : small) | (i & 128) << 8;
    tables.low[i / 128][i % 128] = uint8_t(bits), tables.high[i / 128][i % 128] = uint8_t(bits >> 8);
  }
  return tables;
}
alignas(64) constexpr ByteTables kInt8Bytes = int8_bytes(), kE4m3Bytes = e4m3_bytes();

// A piece [4 depths][16 columns] as [4][2 pairs of depths][4 columns][2], whose halves of lanes become operands.
struct PieceOrder {
  uint8_t from[64];
};
constexpr PieceOrder piece_order() {
  PieceOrder order = {};
  for (int i = 0; i < 64; ++i) {
    const int column = i / 16 * 4 + i % 8 / 2, at = i / 8 % 2 * 2 + i % 2;
    order.from[i] = uint8_t(at * kPanel + column);
  }
  return order;
}
alignas(64) constexpr PieceOrder kPieceOrder = piece_order();

inline UVec look_up_bytes(UVec codes, const uint8_t (&table)[2][128]) {
  auto half = [&](int i) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table[i]), codes, _mm512_load_si512(table[i] + 64));
  };
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), half(0), half(1));
}
#endif

template <WeightCodes kCodes, bool kZeros>
struct PairDot {
  using X = bf16;
  using Operand = __m512bh;
  using Input = __m512bh;
  using Sum = Vec;
  static constexpr bool integers = false, unpacks = true, streams = true;
  static constexpr WeightCodes codes = kCodes;
  static constexpr int vectors = 1, depth = 2, steps = piece_depth(kCodes) / 2;
  static constexpr int64_t segment = 256;

  struct Zero {
    UVec nibbles;  // 16 less the zero point, for both of a pair
    Vec value;
  };
  static Zero zero(const uint8_t* zeros, int) {
    if constexpr (!kZeros) return {uset(0), vset(0.0f)};
    const UVec rest = _mm512_sub_epi32(uset(16), _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros))));
    return {uor(rest, ushl<16>(rest)), zero_value(kCodes, zeros)};
  }
  template <int step>
  static Operand operand(const uint8_t* piece, int, const Zero& zero) {
    if constexpr (nibbles(kCodes)) {
      const UVec some = _mm512_srli_epi16(load_words(piece), 4 * step);
      if constexpr (kCodes == WeightCodes::fp4) return look_up(some, kE2m1);
      if constexpr (!kZeros) return look_up(some, kInt4);
      return look_up(_mm512_add_epi16(uand(some, uset(0x000f000fu)), zero.nibbles), kInt4WithZero);
#if __AVX512VBMI__
    } else if constexpr (!kZeros) {
      const ByteTables& tables = kCodes == WeightCodes::int8 ? kInt8Bytes : kE4m3Bytes;
      const UVec codes = _mm512_permutexvar_epi8(_mm512_load_si512(kPieceOrder.from), load_words(piece));
      const UVec low = look_up_bytes(codes, tables.low), high = look_up_bytes(codes, tables.high);
      return reinterpret_cast<Operand>(step == 0 ? _mm512_unpacklo_epi8(low, high) : _mm512_unpackhi_epi8(low, high));
#endif
    } else {
      using Single = FloatDot<kCodes, kZeros>;
      const typename Single::Zero value = {zero.value};
      const UVec even = to_bits(Single::template operand<2 * step>(piece, 0, value));
      const UVec odd = to_bits(Single::template operand<2 * step + 1>(piece, 0, value));
      return reinterpret_cast<Operand>(_mm512_mask_blend_epi16(0xaaaaaaaau, ushr<16>(even), odd));
    }
  }
  static Sum none() { return vset(0.0f); }
  static Input input(const X* x) {
    uint32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    return reinterpret_cast<Input>(uset(pair));
  }
  static Sum mac(Operand w, Input x, Sum sum) { return _mm512_dpbf16_ps(sum, w, x); }
  static Operand load(const void* p) { return reinterpret_cast<Operand>(_mm512_loadu_si512(p)); }
  static void store(void* p, Operand w) { _mm512_storeu_si512(p, reinterpret_cast<__m512i>(w)); }
  template <class T>
  static void pack(const QuantisedArgs& a, int64_t t, X* out, float*) {
    place_ordered(a, t, kPanel, [&](int64_t k) { return out + k; });
  }

 private:
  // Tables go by the lowest five bits of each half.
  static Operand look_up(UVec halves, const HalfTable& table) {
    return reinterpret_cast<Operand>(_mm512_permutexvar_epi16(halves, _mm512_load_si512(table.bits)));
  }
};

}  // namespace
}  // namespace octavo
