// Weights of codes as numbers in the type of x whose scales are numbers of that type, too: with the bits of rounded.cuh, in a
// third of its instructions.
#pragma once

#include "coded/rounded.cuh"

namespace octavo {

// `split`: a lane's low row is one of a first strip, its high row one of a second strip, both the lower ones or, `upper`, those
// behind. Else they are rows of one.
//
// The value of a code is exact in T, and so its product with a scale of T is rounded once. Floats become subnormal numbers of T,
// and the power of two that these lack is put into their scale, once a group. A scale has no room for all of it: weights come out
// as 1 / kLift of what they are, exactly as long as no scale is 2^32 or more (`pack_experts` sees to that).
template <class T, Codes kind, bool split>
struct Paired {
  static_assert(kind != Codes::int8 && (!is_float(kind) || std::is_same_v<T, bf16>));
  static constexpr bool kFp4 = kind == Codes::fp4;
  static constexpr float kLift = is_float(kind) ? 4294967296.0f : 1.0f;
  static constexpr uint32_t kRaise = kFp4 ? 0x6e806e80 : 0x6b806b80;  // 2^94, 2^88: the exponents' biases less that
  // A code at the place of its exponent and mantissa; what carries its sign from above those to the top; bits to keep.
  static constexpr int kShift = kFp4 ? Pair<bf16>::kFp4Shift : Pair<bf16>::kFp8Shift;
  static constexpr uint32_t kCarry = kFp4 ? 0x7e007e00 : 0x78007800;
  static constexpr uint32_t kKept = 0x80008000 | (kFp4 ? Pair<bf16>::kFp4Mask : Pair<bf16>::kFp8Mask);

  struct Row {
    uint32_t scale, middle;  // twice in a word; prepared for Unpack

    __host__ __device__ static uint32_t zero() { return kind == Codes::int4 ? 8 : 128; }
    __device__ Row(T own_scale, uint32_t zero_point) : middle(Unpack<T, kind>::zero(zero_point)) {
      scale = bits_of_pair(typename Pair<T>::type(own_scale, own_scale));
      if constexpr (is_float(kind)) scale = bits_of_pair(__hmul2(pair_of<T>(scale), pair_of<T>(kRaise)));
    }
  };

  // Where the codes of a lane's registers are in its words.
  struct View {
    int shift = 0;                                     // to the place of the lower row's nibbles
    uint32_t low_bytes = 0x4140, high_bytes = 0x4342;  // for `pick`: a byte in each half
    uint32_t factors[2], carry;                        // of nibbles 0 and 1 or, the first, of bytes

    // `one`: as the compiler does not know that, it multiplies, in a pipe that has less to do than that of shifts and masks.
    __device__ View(bool upper, uint32_t one) : factors{one << kShift, one << kShift >> 4}, carry(one * kCarry) {
      if (split) shift = upper ? 4 : 0, (upper ? low_bytes : high_bytes) = upper ? 0x4342 : 0x4140;
    }
  };

  // Words of a lane's low and high row, as they lie in the strip or strips.
  __device__ static void align(const View& view, uint32_t& low, uint32_t& high) {
    if constexpr (split && is_nibble(kind)) low >>= view.shift, high >>= view.shift;
  }
  // As Rounded::step; registers 0 and 2 from the words of `lows`, 1 and 3 from those of `highs`.
  __device__ static void step(const View& view, const uint32_t* lows, const uint32_t* highs, const Row& low, const Row& high,
                              uint32_t* registers) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t* words = i % 2 ? highs : lows;
      const Row& row = i % 2 ? high : low;
      const int nibble = split ? i / 2 * 2 : i;
      uint32_t value;
      if constexpr (kind == Codes::int4) value = Unpack<T, kind>::nibbles(words[0], nibble, row.middle);
      else if constexpr (kind == Codes::fp4) value = unscaled(view, words[0], nibble);
      else value = (pick(words[i / 2], 0, i % 2 ? view.high_bytes : view.low_bytes) * view.factors[0] + view.carry) & kKept;
      registers[i] = bits_of_pair(__hmul2(pair_of<T>(value), pair_of<T>(row.scale)));
    }
  }

  // A word's nibble of this number in each half. What is added carries a sign to the top.
  __device__ static uint32_t unscaled(const View& view, uint32_t word, int nibble) {
    const uint32_t codes = word & 0x000f000fu << 4 * nibble;
    return ((nibble < 2 ? codes * view.factors[nibble] : codes >> (4 * nibble - kShift)) + view.carry) & kKept;
  }
};

// The same with scales in float32.
template <class T, Codes kind, bool split>
struct Merged {
  using Row = RoundedRow<T, kind>;
  static constexpr float kLift = 1.0f;

  struct View {
    bool upper;
    __device__ View(bool upper_rows, uint32_t) : upper(upper_rows) {}
  };
  __device__ static void align(const View& view, uint32_t& low, uint32_t& high) {
    if constexpr (split) low = Rounded<T, kind>::merge(low, high, view.upper);
  }
  __device__ static void step(const View&, const uint32_t* words, const uint32_t*, const Row& low, const Row& high,
                              uint32_t* registers) {
    Rounded<T, kind>::step(words, low, high, registers);
  }
};

}  // namespace octavo
