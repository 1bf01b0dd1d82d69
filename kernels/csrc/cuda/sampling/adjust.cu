// Bias, penalties, forbidden tokens and bitmasks on rows of logits: a few blocks a row, each with a stretch of the
// mask, the first one with the listed tokens, too.
#include "device/common.cuh"
#include "sampling/args.h"

namespace octavo {
namespace {

constexpr int kThreads = 256, kMaskWords = 1024;  // of a block

struct Row {
  float* logits;
  AdjustRow parameters;
  const int32_t* allowed;  // null: all

  __device__ bool is_allowed(int token) const {
    return !allowed || (uint32_t(allowed[token / 32]) >> token % 32 & 1) != 0;
  }

  // Arithmetic without contraction, as on the CPU.
  __device__ void adjust(const AdjustEntry& e) const {
    const AdjustRow& p = parameters;
    float x = __fadd_rn(logits[e.token], e.bias);
    if (e.flags & kSeen) x = x > 0.0f ? __fdiv_rn(x, p.repetition) : __fmul_rn(x, p.repetition);
    if (e.count > 0) x = __fsub_rn(x, __fadd_rn(p.presence, __fmul_rn(p.frequency, float(e.count))));
    logits[e.token] = e.flags & kForbidden || !is_allowed(e.token) ? -INFINITY : x;
  }
};

__global__ void __launch_bounds__(kThreads, 4) adjust_kernel(const __grid_constant__ AdjustArgs a) {
  wait_for_previous_kernel();
  launch_next_kernel();
  const int64_t r = blockIdx.y;
  const AdjustRow parameters = reinterpret_cast<const AdjustRow*>(a.message)[r];
  const Row row{a.logits + r * a.stride, parameters, parameters.masked ? a.allowed + r * a.allowed_stride : nullptr};
  if (blockIdx.x == 0) {
    const auto* entries = reinterpret_cast<const AdjustEntry*>(reinterpret_cast<const AdjustRow*>(a.message) + a.rows);
    const int latest = a.latest ? int(a.latest[r]) : -1;
    bool listed = false;
    for (int i = threadIdx.x; i < parameters.entries; i += kThreads) {
      AdjustEntry e = entries[parameters.first + i];
      if (e.token == latest) listed = true, ++e.count, e.flags |= kSeen;
      row.adjust(e);
    }
    listed = __syncthreads_or(listed);
    if (threadIdx.x == 0 && latest >= 0 && !listed) row.adjust({latest, 0.0f, 1, kSeen});
  }
  if (!row.allowed) return;
  const int words = (a.vocab + 31) / 32, first = blockIdx.x * kMaskWords;
  // A warp takes a word's tokens side by side; those above that are allowed are left alone.
  for (int i = first + threadIdx.x / 32; i < min(first + kMaskWords, words); i += kThreads / 32) {
    const int token = 32 * i + threadIdx.x % 32;
    if (token < a.vocab && !row.is_allowed(token)) row.logits[token] = -INFINITY;
  }
}

}  // namespace

cudaError_t adjust(const AdjustArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const int blocks = a.allowed ? ((a.vocab + 31) / 32 + kMaskWords - 1) / kMaskWords : 1;
  return launch_after(adjust_kernel, {dim3(unsigned(blocks), unsigned(a.rows)), kThreads}, stream, a);
}

}  // namespace octavo
