// A number in memory that several processes share: one of them counts it up, the others wait for it.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {

struct alignas(64) SharedCount {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};

namespace {

using Clock = std::chrono::steady_clock;

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

inline bool has_come(uint32_t now, uint32_t wanted) { return int32_t(now - wanted) >= 0; }

#if defined(__linux__)
static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

inline void wake(SharedCount* count) { syscall(SYS_futex, &count->value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

inline void sleep(SharedCount* count, uint32_t seen, Clock::duration left) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  const timespec time = {time_t(ns / 1000000000), long(ns % 1000000000)};
  syscall(SYS_futex, &count->value, FUTEX_WAIT, seen, &time, nullptr, 0);
}
#else
inline void wake(SharedCount*) {}
inline void sleep(SharedCount*, uint32_t, Clock::duration) { std::this_thread::yield(); }
#endif

}  // namespace

// Writes of this thread before it are seen by all that have awaited the value.
inline void post(SharedCount* count, uint32_t value) {
  count->value.store(value);  // in one order with `sleepers`: either the sleeper sees the value, or we see the sleeper
  if (count->sleepers.load() > 0) wake(count);
}

inline uint32_t read(const SharedCount* count) { return count->value.load(std::memory_order_acquire); }

// True if the count has come to `value`, modulo 2^32: looks at it for a while, then in turn with whatever else wants the
// core, then sleeps until it changes or the time is up. Where more wants to run than there are cores, a long look would
// take the time of what it waits for.
inline bool await(SharedCount* count, uint32_t value, int64_t spin_us, int64_t yield_us, int64_t sleep_ms) {
  const auto began = Clock::now();
  const auto spun = began + std::chrono::microseconds(spin_us), yielded = spun + std::chrono::microseconds(yield_us);
  const auto end = yielded + std::chrono::milliseconds(sleep_ms);
  do {
    for (int i = 0; i < 64; ++i) {
      if (has_come(read(count), value)) return true;
      pause_briefly();
    }
  } while (Clock::now() < spun);
  while (Clock::now() < yielded) {
    if (has_come(read(count), value)) return true;
    std::this_thread::yield();
  }
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    count->sleepers.fetch_add(1);
    const uint32_t seen = count->value.load();
    if (!has_come(seen, value)) sleep(count, seen, end - now);
    count->sleepers.fetch_sub(1);
    if (has_come(read(count), value)) return true;
  }
  return has_come(read(count), value);
}

}  // namespace octavo
