#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace octavo {
namespace {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// How long a thread looks for the next call before it sleeps: longer than the Python between two operations of a
// layer, short enough to cost nothing when the engine is idle.
constexpr int kSpins = 2000;

class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_.store(true);
    }
    wake_.notify_all();
    for (auto& w : workers_) w.join();
  }

  // A ticket is (call number, next task). Workers take tasks by compare-and-swap, so one that wakes up late, with the
  // call over or another begun, takes nothing, and no call waits for it.
  void run(int64_t tasks, Task task, void* context) {
    const uint64_t call = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(call << 32 | kClosed);
    task_.store(task), context_.store(context), tasks_.store(uint32_t(tasks));
    done_.store(0);
    ticket_.store(call << 32);
    if (sleepers_.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex_); }
      wake_.notify_all();
    }
    drain();
    for (int i = 0; done_.load(std::memory_order_acquire) < tasks; ++i)
      i < kSpins ? pause() : std::this_thread::yield();
  }

 private:
  static constexpr uint64_t kClosed = 0xffffffffu;

  void drain() {
    uint64_t ticket = ticket_.load();
    for (;;) {
      const Task task = task_.load(std::memory_order_relaxed);
      void* context = context_.load(std::memory_order_relaxed);
      if ((ticket & kClosed) >= tasks_.load(std::memory_order_relaxed)) return;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      task(context, int64_t(ticket & kClosed));
      done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load();
    }
  }

  void work() {
    uint64_t seen = 0;
    auto idle = [&] { return ticket_.load() >> 32 == seen && !stop_.load(); };
    for (;;) {
      for (int i = 0; i < kSpins && idle(); ++i) pause();
      if (idle()) {
        std::unique_lock<std::mutex> lock(mutex_);
        ++sleepers_;
        wake_.wait(lock, [&] { return !idle(); });
        --sleepers_;
      }
      if (stop_.load()) return;
      seen = ticket_.load() >> 32;
      drain();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<Task> task_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> tasks_{0};
  alignas(64) std::atomic<uint64_t> ticket_{kClosed};
  alignas(64) std::atomic<int64_t> done_{0};
};

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  int n = int(std::thread::hardware_concurrency());
  return n > 0 ? n : 1;
}

// The state lives in one place so that the child of a fork can start afresh: threads do not survive fork(), and what
// they held cannot be released.
struct State {
  std::mutex mutex;
  int threads = available_cores();
  std::unique_ptr<Pool> pool;
};

State*& state() {
  static State* s = [] {
    pthread_atfork(nullptr, nullptr, [] {
      State* old = state();
      state() = new State;
      state()->threads = old->threads;
    });
    return new State;
  }();
  return s;
}

}  // namespace

int num_threads() { return state()->threads; }

void set_num_threads(int n) {
  if (n < 1) throw std::invalid_argument("the number of threads must be at least 1");
  State& s = *state();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (n != s.threads) s.pool.reset();
  s.threads = n;
}

void run_tasks(int64_t tasks, Task task, void* context) {
  State& s = *state();
  std::unique_lock<std::mutex> lock(s.mutex, std::defer_lock);
  if (tasks > 1 && s.threads > 1 && lock.try_lock()) {
    if (!s.pool) s.pool = std::make_unique<Pool>(s.threads);
    s.pool->run(tasks, task, context);
    return;
  }
  for (int64_t i = 0; i < tasks; ++i) task(context, i);
}

void* scratch(Slot slot, size_t bytes) {
  struct Buffer {
    void* data = nullptr;
    size_t size = 0;
    ~Buffer() { ::operator delete(data, std::align_val_t(64)); }
  };
  thread_local Buffer buffers[2];
  Buffer& b = buffers[int(slot)];
  if (b.size < bytes) {
    ::operator delete(b.data, std::align_val_t(64));
    b.data = nullptr, b.size = 0;
    b.data = ::operator new(bytes, std::align_val_t(64));
    b.size = bytes;
  }
  return b.data;
}

}  // namespace octavo
