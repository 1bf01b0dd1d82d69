#pragma once

#include <cuda.h>

#include <array>

#include "device/tensor_map.cuh"

#define OCTAVO_WGMMA 1

namespace octavo {

// Where the swizzle of 128 bytes puts a byte: bits 4 to 6 of the address, exclusive-or bits 7 to 9.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// Units, and above them the bytes between atoms across the rows.
template <int row>
uint64_t operand(uint32_t units, uint32_t columns = 16) {
  static_assert(row == 128);
  return units | uint64_t(columns) << 32;
}
inline uint32_t uniform(uint32_t x) { return __shfl_sync(~0u, x, 0); }
inline void products_begin() {}
inline void products_commit() {
  emulator::meet(emulator::own_warpgroup(), 0, 128, nullptr, [](auto&) {
    auto& products = emulator::own_products();
    products.committed.push_back(std::move(products.open));
    products.open.clear();
  });
}
template <int N>
void pin(float (&)[N]) {}
template <int kPending>
void products_wait() {
  emulator::meet(emulator::own_warpgroup(), 0, 128, nullptr, [](auto&) {
    auto& groups = emulator::own_products().committed;
    for (; int(groups.size()) > kPending; groups.pop_front())
      for (auto& product : groups.front()) product();
  });
}
template <int kPending, int N>
void products_wait(float (&)[N]) {
  products_wait<kPending>();
}

// Operands in shared memory: rows along the 16, or across these, along the columns.
template <class T>
float2 pair_at(uint32_t at) {
  uint32_t word;
  std::memcpy(&word, emulator::shared_of(emulator::current->block, swizzled(at), 4), 4);
  return unpack<T>(word);
}
template <class T>
void read_rows(uint64_t units, int rows, float (*to)[16]) {
  for (int n = 0; n < rows; ++n)
    for (int k = 0; k < 16; k += 2) {
      const float2 pair = pair_at<T>(uint32_t(units) * 16 + n / 8 * 1024 + n % 8 * 128 + k * 2);
      to[n][k] = pair.x, to[n][k + 1] = pair.y;
    }
}
template <class T>
void read_across(uint64_t units, int columns, float (*to)[16]) {
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < columns; n += 2) {
      const uint32_t atom = n / 64 * uint32_t(units >> 32) + k / 8 * 1024;
      const float2 pair = pair_at<T>(uint32_t(units) * 16 + atom + k % 8 * 128 + n % 64 * 2);
      to[n][k] = pair.x, to[n + 1][k] = pair.y;
    }
}

// PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": a warp's sixteen rows are as in mma.m16n8k16.
// Nothing of it is read or written before the wait for it.
template <class T, int half, bool across>
struct Held {
  float* d[128];
  const uint32_t* a[128];
  uint64_t b;
  bool adds;

  void multiply() const {
    static float left[64][16], right[half * 2][16];
    if (across) read_across<T>(b, half * 2, right);
    else read_rows<T>(b, half * 2, right);
    for (int thread = 0; thread < 128; ++thread)
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack<T>(a[thread][i]);
        float* to = &left[thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8][i / 2 * 8 + thread % 4 * 2];
        to[0] = pair.x, to[1] = pair.y;
      }
    for (int thread = 0; thread < 128; ++thread)
      for (int i = 0; i < half; ++i) {
        const int row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
        float sum = adds ? d[thread][i] : 0.0f;
        for (int k = 0; k < 16; ++k) sum += left[row][k] * right[column][k];
        d[thread][i] = sum;
      }
  }
};
template <class T, bool across, int half>
void multiply_held(float (&d)[half], const uint32_t* a, uint64_t b, bool adds) {
  struct Given {
    float* d;
    const uint32_t* a;
    uint64_t b;
    bool adds;
  } given{d, a, b, adds};
  emulator::meet(emulator::own_warpgroup(), threadIdx.x % 128, 128, &given, [](emulator::Meeting& m) {
    const auto* first = static_cast<Given*>(m.given[0]);
    Held<T, half, across> held{{}, {}, first->b, first->adds};
    for (int thread = 0; thread < 128; ++thread) {
      const auto* own = static_cast<Given*>(m.given[thread]);
      if (own->b != first->b || own->adds != first->adds) emulator::fail("a warpgroup that does not agree");
      held.d[thread] = own->d, held.a[thread] = own->a;
    }
    emulator::own_products().open.push_back([held] { held.multiply(); });
  });
}
template <class T, int half>
void wgmma_held(T, float (&d)[half], const uint32_t* a, uint64_t b, bool adds) {
  multiply_held<T, false>(d, a, b, adds);
}
template <class T, int half>
void wgmma_transposed(T, float (&d)[half], const uint32_t* a, uint64_t b) {
  multiply_held<T, true>(d, a, b, true);
}

// Both operands in shared memory, the rows of the second along the 16 or, `across`, along its columns. Nothing of it is read or
// written before the wait for it.
template <class T, int half, bool across = false>
struct Stored {
  float* d[128];
  uint64_t a, b;
  bool adds;

  void multiply() const {
    static float left[64][16], right[half * 2][16];
    read_rows<T>(a, 64, left);
    if (across) read_across<T>(b, half * 2, right);
    else read_rows<T>(b, half * 2, right);
    for (int thread = 0; thread < 128; ++thread)
      for (int i = 0; i < half; ++i) {
        const int row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
        float sum = adds ? d[thread][i] : 0.0f;
        for (int k = 0; k < 16; ++k) sum += left[row][k] * right[column][k];
        d[thread][i] = sum;
      }
  }
};
template <class T, bool across, int half>
void multiply_stored(float (&d)[half], uint64_t a, uint64_t b, bool adds) {
  struct Given {
    float* d;
    uint64_t a, b;
    bool adds;
  } given{d, a, b, adds};
  emulator::meet(emulator::own_warpgroup(), threadIdx.x % 128, 128, &given, [](emulator::Meeting& m) {
    const auto* first = static_cast<Given*>(m.given[0]);
    Stored<T, half, across> stored{{}, first->a, first->b, first->adds};
    for (int thread = 0; thread < 128; ++thread) {
      const auto* own = static_cast<Given*>(m.given[thread]);
      if (own->a != first->a || own->b != first->b || own->adds != first->adds)
        emulator::fail("a warpgroup that does not agree");
      stored.d[thread] = own->d;
    }
    emulator::own_products().open.push_back([stored] { stored.multiply(); });
  });
}
template <class T, int half>
void wgmma(T, float (&d)[half], uint64_t a, uint64_t b) {
  multiply_stored<T, false>(d, a, b, true);
}
template <class T, int half>
void wgmma_first(T, float (&d)[half], uint64_t a, uint64_t b) {
  multiply_stored<T, false>(d, a, b, false);
}
template <class T>
void wgmma_across(T, float (&d)[128], uint64_t a, uint64_t b) {
  multiply_stored<T, true>(d, a, b, true);
}

// Elements outside of the tensor come as zeros.
inline void copy_tensor(emulator::Block* block, uint32_t shared, const CUtensorMap& map, std::array<int, 5> first,
                        uint32_t barrier) {
  Map m;
  std::memcpy(&m, &map, sizeof(m));
  const bool swizzles = m.rows == BoxRows::swizzled;
  if (shared % 128 || (swizzles && m.box[1] >= 8 && shared % 1024)) emulator::fail("a box at no multiple of what it needs");
  emulator::shared_of(block, shared, m.bytes());
  copy_later(block, barrier, m.bytes(), [=] {
    const int elements = m.bytes() / m.element;
    for (int n = 0; n < elements; ++n) {
      char value[4] = {};
      int64_t offset = 0;
      bool inside = true;
      for (int i = 0, rest = n; i < 5; rest /= m.box[i++]) {
        const int64_t at = first[i] + rest % m.box[i];
        inside &= at < m.sizes[i], offset += at * m.strides[i];
      }
      if (inside) std::memcpy(value, m.data + offset, m.element);
      const uint32_t to = shared + n * m.element;
      std::memcpy(emulator::shared_of(block, swizzles ? swizzled(to) : to, m.element), value, m.element);
    }
  });
}
inline void copy_rows(uint32_t shared, const CUtensorMap& map, int depth, int row, uint32_t barrier) {
  copy_tensor(emulator::current->block, shared, map, {depth, row, 0, 0, 0}, barrier);
}
inline void copy_box(uint32_t shared, const CUtensorMap& map, int column, int token, int head, int block, uint32_t barrier) {
  copy_tensor(emulator::current->block, shared, map, {0, column, token, head, block}, barrier);
}

}  // namespace octavo
