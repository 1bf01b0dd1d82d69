// A small pool that shares out numbered tasks. Idle threads sleep; a child process after fork() gets its own pool.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

int num_threads();
void set_num_threads(int n);

using Task = void (*)(void* context, int64_t task);

// Runs task(context, i) for i in [0, tasks), the caller included, and returns when all are done. Calls from a second
// thread at the same time run on that thread alone.
void run_tasks(int64_t tasks, Task task, void* context);

template <class F>
void parallel_for(int64_t tasks, F f) {
  run_tasks(tasks, [](void* context, int64_t i) { (*static_cast<F*>(context))(i); }, &f);
}

// Splits [0, n) into ranges of at most `grain` and calls f(begin, end) for each.
template <class F>
void parallel_ranges(int64_t n, int64_t grain, F f) {
  auto range = [&](int64_t i) { f(i * grain, i * grain + grain < n ? i * grain + grain : n); };
  parallel_for((n + grain - 1) / grain, range);
}

// Memory of the calling thread, aligned to 64 bytes, valid until its next call with the same slot.
enum class Slot { shared, local };
void* scratch(Slot slot, size_t bytes);

}  // namespace octavo
