#pragma once

#include <cuda.h>

#include "device/tensor_map.cuh"

#define OCTAVO_WGMMA 1

namespace octavo {

// Where the swizzle of 128 bytes puts a byte: bits 4 to 6 of the address, exclusive-or bits 7 to 9.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

template <int row>
uint64_t operand(uint32_t units, uint32_t = 16) {
  static_assert(row == 128);
  return units;
}
inline uint32_t uniform(uint32_t x) { return __shfl_sync(~0u, x, 0); }
inline void products_begin() {}
inline void products_commit() {}
template <int N>
void pin(float (&)[N]) {}
template <int kPending, int N>
void products_wait(float (&)[N]) {}

// PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": a warp's sixteen rows are as in mma.m16n8k16.
template <class T, int half>
void wgmma_held(T, float (&d)[half], const uint32_t* a, uint64_t b, bool adds) {
  constexpr int columns = half * 2;
  struct Given {
    float* d;
    const uint32_t* a;
    uint64_t b;
    bool adds;
  } given{d, a, b, adds};
  emulator::meet(emulator::own_warpgroup(), threadIdx.x % 128, 128, &given, [](emulator::Meeting& m) {
    const auto* first = static_cast<Given*>(m.given[0]);
    static float right[columns][16];
    for (int n = 0; n < columns; ++n)
      for (int k = 0; k < 16; k += 2) {
        const uint32_t at = uint32_t(first->b) * 16 + n / 8 * 1024 + n % 8 * 128 + k * 2;
        uint32_t word;
        std::memcpy(&word, emulator::shared_of(emulator::current->block, swizzled(at), 4), 4);
        const float2 pair = unpack<T>(word);
        right[n][k] = pair.x, right[n][k + 1] = pair.y;
      }
    for (int thread = 0; thread < 128; ++thread) {
      const auto* own = static_cast<Given*>(m.given[thread]);
      if (own->b != first->b || own->adds != first->adds) emulator::fail("a warpgroup that does not agree");
      const int lane = thread % 32, warp = thread / 32 * 32;
      for (int i = 0; i < half; ++i) {
        const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        float sum = own->adds ? own->d[i] : 0.0f;
        for (int k = 0; k < 16; k += 2) {
          const auto* holder = static_cast<Given*>(m.given[warp + row % 8 * 4 + k % 8 / 2]);
          const float2 pair = unpack<T>(holder->a[row / 8 + k / 8 * 2]);
          sum += pair.x * right[column][k] + pair.y * right[column][k + 1];
        }
        own->d[i] = sum;
      }
    }
  });
}

inline void copy_rows(uint32_t shared, const CUtensorMap& map, int depth, int row, uint32_t barrier) {
  Map m;
  std::memcpy(&m, &map, sizeof(m));
  auto* block = emulator::current->block;
  const uint32_t bytes = m.box_columns * m.box_rows * 2;
  if (shared % 1024 && m.box_rows >= 8) emulator::fail("a swizzled box at no multiple of 1024");
  emulator::shared_of(block, shared, int(bytes));
  copy_later(barrier, bytes, [=] {
    for (int r = 0; r < m.box_rows; ++r)
      for (int c = 0; c < m.box_columns; ++c) {
        uint16_t value = 0;
        if (row + r < m.rows && depth + c < m.columns) std::memcpy(&value, m.data + (row + r) * m.stride + (depth + c) * 2, 2);
        std::memcpy(emulator::shared_of(block, swizzled(shared + r * 128 + c * 2), 2), &value, 2);
      }
  });
}

}  // namespace octavo
