// Recurrent layers as tasks: channels of a sequence's convolution, rows, heads of a sequence, rows again.
#include <algorithm>

#include "launch.h"
#include "levels.h"
#include "thread_pool.h"

namespace octavo {
namespace {

constexpr int64_t kTaskChannels = 512;  // a multiple of every level's vectors
constexpr int64_t kTaskRows = 8;

void launch_convolution(const ConvolutionArgs& a) {
  const Kernels& k = kernels();
  const int64_t across = (a.taken.channels + kTaskChannels - 1) / kTaskChannels;
  parallel_for(a.moves.sequences * across, [&](int64_t i) {
    const int64_t begin = i % across * kTaskChannels;
    k.convolve(a, int(i / across), begin, std::min(begin + kTaskChannels, a.taken.channels));
  });
}

}  // namespace

void launch_recurrence(ConvolutionArgs c, RecurrenceArgs a) {
  const Kernels& k = kernels();
  const int64_t floats = c.taken.channels + a.inner() + 2 * a.heads + a.sources;
  a.mixed = c.mixed = static_cast<float*>(scratch(Slot::shared, size_t(a.rows * floats) * sizeof(float)));
  a.mixed_stride = c.taken.channels;
  a.y = a.mixed + a.rows * c.taken.channels;
  a.decays = a.y + a.rows * a.inner();
  a.betas = a.decays + a.rows * a.heads;
  a.products = a.betas + a.rows * a.heads;
  launch_convolution(c);
  parallel_ranges(a.rows, kTaskRows, [&](int64_t begin, int64_t end) { k.recurrence_prepare(a, begin, end); });
  parallel_for(int64_t(a.moves.sequences) * a.heads, [&](int64_t i) {
    float* state = static_cast<float*>(scratch(Slot::local, size_t(a.depth) * kMostStateColumns * sizeof(float)));
    k.recurrence_advance(a, int(i / a.heads), int(i % a.heads), state);
  });
  parallel_ranges(a.rows, kTaskRows, [&](int64_t begin, int64_t end) { k.recurrence_finish(a, begin, end); });
}

void launch_short_convolution(ConvolutionArgs c) {
  c.products = scratch(Slot::shared, size_t(c.rows * c.taken.channels) * item_size(c.dtype));
  launch_convolution(c);
}

}  // namespace octavo
