// Weights of codes as numbers in the type of x whose scales are numbers of that type, too: with the bits of rounded.cuh, in a
// third of its instructions.
#pragma once

#include "coded/rounded.cuh"

namespace octavo {

// The value of a code is exact in T, and so its product with a scale of T is rounded once.
template <class T, Codes kind>
struct Paired {
  struct Row {
    uint32_t scale, middle;  // twice in a word; prepared for Unpack

    __host__ __device__ static uint32_t zero() { return kind == Codes::int4 ? 8 : 128; }
    __device__ Row(T own_scale, uint32_t zero_point) : middle(Unpack<T, kind>::zero(zero_point)) {
      scale = uint32_t(reinterpret_cast<const unsigned short&>(own_scale)) * 0x00010001u;
    }
  };

  // As Rounded::step.
  __device__ static void step(const uint32_t* words, const Row& low, const Row& high, uint32_t* registers) {
    Unpack<T, kind>::step(words, low.middle, high.middle, registers);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      registers[i] = bits_of_pair(__hmul2(pair_of<T>(registers[i]), pair_of<T>((i % 2 ? high : low).scale)));
  }
};

}  // namespace octavo
