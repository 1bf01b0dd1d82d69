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
// Both bytes of the bf16 that a code of 8 bits is, by its magnitude, which is below 128.
struct ByteTables {
  uint8_t low[128], high[128];
};
template <class F>
constexpr ByteTables byte_tables(F bits) {
  ByteTables tables = {};
  for (int i = 0; i < 128; ++i) tables.low[i] = uint8_t(bits(i)), tables.high[i] = uint8_t(bits(i) >> 8);
  return tables;
}
alignas(64) constexpr ByteTables kInt8Bytes = byte_tables([](int i) { return int(whole_bf16(i)); });
// Numbers over `code_unit`, 2^8. Without an exponent a code is so many times 2^-9.
alignas(64) constexpr ByteTables kE4m3Bytes = byte_tables([](int i) {
  if (i < 8) return i ? whole_bf16(i) - (17 << 7) : 0;
  return ((i >> 3) + 120 - 8) << 7 | (i & 7) << 4;
});

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

inline UVec look_up_bytes(UVec codes, const uint8_t (&table)[128]) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
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
      constexpr bool whole = kCodes == WeightCodes::int8;
      const ByteTables& tables = whole ? kInt8Bytes : kE4m3Bytes;
      const UVec codes = _mm512_permutexvar_epi8(_mm512_load_si512(kPieceOrder.from), load_words(piece));
      const UVec size = whole ? _mm512_abs_epi8(codes) : codes;
      const UVec low = look_up_bytes(size, tables.low);
      UVec high = look_up_bytes(size, tables.high);
      if (whole) high = _mm512_mask_mov_epi8(high, _mm512_movepi8_mask(size), uset((whole_bf16(128) >> 8) * 0x01010101u));
      high = uor(high, uand(codes, uset(0x80808080u)));
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
