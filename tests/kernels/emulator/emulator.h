// Runs the source of a CUDA kernel on the host: every thread of a cluster is a fiber, and what is of the GPU alone (copies,
// barriers, matrix products) is computed as the PTX ISA says. Copies end as late as the kernel allows or at a random time
// before, products of warpgroups as late as it allows, fibers take turns in a random order, warps rest for a while, and shared
// memory begins as NaN: a kernel that does not wait for what it reads computes something else.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

// Of each thread of the host: where several GPUs are emulated, each has one (EMULATED_GPUS).
#if EMULATED_GPUS
#define EMULATED thread_local
#else
#define EMULATED
#endif

namespace emulator {

struct Index {
  int x = 0, y = 0, z = 0;
};

struct Barrier {
  int count = 0, pending = 0;
  int64_t bytes = 0;
  uint32_t phase = 0;
};
struct Meeting {
  int arrived = 0;
  uint64_t generation = 0;
  void* given[1024] = {};
  uint64_t paths[32] = {};
};
// Matrix products of a warpgroup: begun, and in groups that have been committed.
struct Products {
  std::vector<std::function<void()>> open;
  std::deque<std::vector<std::function<void()>>> committed;
};
struct Block {
  std::unique_ptr<char[]> memory;
  char* shared = nullptr;
  int bytes = 0, rank = 0;
  Index index;
  std::map<uint32_t, Barrier> barriers;
  std::map<int, Meeting> named;
  std::vector<Meeting> warps, waves, warpgroups;
  std::vector<Products> products;  // of each warpgroup
  std::vector<Block*> cluster;
};
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Block* block = nullptr;
  Index thread;
  bool done = false;
  std::vector<std::vector<std::function<void()>>> copies{1};  // groups of this thread's; the last is open
  uint64_t meetings = 0;
};

constexpr int kStack = 65536;
inline EMULATED Fiber* current = nullptr;
inline EMULATED ucontext_t scheduler;
inline EMULATED Index block_size, grid_size;
inline EMULATED std::mt19937 random_source{1};
inline EMULATED std::vector<std::pair<Block*, std::function<void()>>> under_way;  // bulk copies
inline EMULATED Meeting cluster_meeting;
inline EMULATED int cluster_threads = 0;
inline EMULATED uint64_t steps_without_progress = 0;

inline void yield() { swapcontext(&current->context, &scheduler); }
inline void fail(const char* what) {
  std::fprintf(stderr, "emulator: %s\n", what);
  std::abort();
}

inline int lane() { return current->thread.x % 32; }
inline Meeting& own_warp() { return current->block->warps[current->thread.x / 32]; }

// The calls that the current thread is in, as one number. On a chip lanes of a warp that meet must be at one instruction: lanes
// that come by another call of the same code wait there for ever. Asks for frame pointers (EMULATED_PATHS).
inline uint64_t path() {
  uint64_t calls = 0;
#if EMULATED_PATHS
  const char* const low = current->stack.get();
  auto frame = static_cast<void* const*>(__builtin_frame_address(0));
  for (const char* at; at = reinterpret_cast<const char*>(frame), at > low && at < low + kStack - 16;
       frame = static_cast<void* const*>(*frame))
    calls = calls * 31 + reinterpret_cast<uint64_t>(frame[1]);
#endif
  return calls;
}

// Threads that do something together: the last to come does it with what all of them gave.
template <class F>
void meet(Meeting& m, int place, int count, void* given, F&& together) {
  const uint64_t generation = m.generation;
  m.given[place] = given;
  const bool of_warp = &m == &own_warp();
  if (of_warp) m.paths[place] = path();
  if (++m.arrived == count) {
    for (int i = 1; of_warp && i < 32; ++i)
      if (m.paths[i] != m.paths[0]) fail("lanes of a warp that meet at different places");
    together(m);
    m.arrived = 0, ++m.generation, steps_without_progress = 0;
    return;
  }
  while (m.generation == generation) yield();
}
inline Meeting& own_warpgroup() { return current->block->warpgroups[current->thread.x / 128]; }
inline Products& own_products() { return current->block->products[current->thread.x / 128]; }

// Where shared memory begins: no multiple of what swizzled copies need, unless a kernel counts on one.
#ifndef EMULATED_SHARED
#define EMULATED_SHARED 4352
#endif
constexpr int kShared = EMULATED_SHARED;
inline uint32_t shared_offset(const void* p) { return uint32_t(static_cast<const char*>(p) - current->block->shared) + kShared; }
inline char* shared_of(Block* block, uint32_t address, int bytes) {
  const int64_t at = int64_t(address) - kShared;
  if (at < 0 || at + bytes > block->bytes) fail("an address beyond shared memory");
  return block->shared + at;
}

inline void settle(Barrier& b) {
  if (b.pending == 0 && b.bytes == 0) b.pending = b.count, b.phase ^= 1, steps_without_progress = 0;
}
inline Barrier& barrier_at(Block* block, uint32_t address) {
  const auto found = block->barriers.find(address);
  if (found == block->barriers.end()) fail("no barrier there");
  return found->second;
}

inline void land_some(bool all_of_one) {
  if (under_way.empty() || (!all_of_one && random_source() % 64 != 0)) return;
  const size_t i = random_source() % under_way.size();
  const auto copy = under_way[i].second;
  under_way.erase(under_way.begin() + i);
  copy();
  steps_without_progress = 0;
}

inline EMULATED std::function<void()>* entry;
inline void fiber_main() {
  (*entry)();
  current->done = true;
  steps_without_progress = 0;
  yield();
}

// One cluster's blocks side by side; clusters one after the other.
inline void launch(Index grid, int threads, int shared_bytes, int cluster, std::function<void()> kernel) {
  grid_size = grid, block_size = {threads, 1, 1};
  if (grid.x % cluster || grid.z > 1) fail("a grid of part of a cluster, or of three dimensions");
  for (int first = 0; first < grid.x * grid.y; first += cluster) {
    std::vector<Block> blocks(cluster);
    std::vector<std::unique_ptr<Fiber>> fibers;
    cluster_threads = cluster * threads, cluster_meeting = {};
    entry = &kernel;
    for (int b = 0; b < cluster; ++b) {
      Block& block = blocks[b];
      block.memory.reset(new char[shared_bytes + 2048]);
      std::memset(block.memory.get(), 0xff, shared_bytes + 2048);
      block.shared = block.memory.get() + (-reinterpret_cast<uintptr_t>(block.memory.get()) & 127);
      block.bytes = shared_bytes, block.rank = b, block.index = {(first + b) % grid.x, first / grid.x, 0};
      block.warps.resize((threads + 31) / 32), block.waves.resize((threads + 63) / 64), block.warpgroups.resize((threads + 127) / 128);
      block.products.resize(block.warpgroups.size());
      for (Block& other : blocks) block.cluster.push_back(&other);
      for (int t = 0; t < threads; ++t) {
        fibers.push_back(std::make_unique<Fiber>());
        Fiber& f = *fibers.back();
        f.block = &block, f.thread = {t, 0, 0};
        f.stack.reset(new char[kStack]);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.get(), f.context.uc_stack.ss_size = kStack, f.context.uc_link = nullptr;
        makecontext(&f.context, fiber_main, 0);
      }
    }
    size_t left = fibers.size();
    steps_without_progress = 0;
    std::vector<int> rests((fibers.size() + 31) / 32);  // turns that a warp misses, while others run ahead
    while (left > 0) {
      const size_t offset = random_source() % fibers.size();
      left = 0;
      for (int& turns : rests) {
        if (turns > 0) --turns;
        else if (random_source() % 64 == 0) turns = random_source() % 64;
      }
      for (size_t i = 0; i < fibers.size(); ++i) {
        const size_t at = (i + offset) % fibers.size();
        Fiber& f = *fibers[at];
        if (f.done) continue;
        ++left;
        if (rests[at / 32] > 0) continue;
        current = &f;
        swapcontext(&scheduler, &f.context);
      }
      land_some(steps_without_progress > 3 || random_source() % 4 == 0);
      if (++steps_without_progress > 2000) fail("threads wait for each other for ever");
    }
    if (!under_way.empty()) fail("a copy arrives when its block has ended");
  }
}

}  // namespace emulator

#define threadIdx (emulator::current->thread)
#define blockIdx (emulator::current->block->index)
#define blockDim (emulator::block_size)
#define gridDim (emulator::grid_size)
