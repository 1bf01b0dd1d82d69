// Bias, penalties, forbidden tokens and bitmasks on a row of logits: what memory can do, at every instruction-set level
// alike. Compiled without contraction, so that a GPU gives the same bits.
#pragma once

#include <algorithm>
#include <limits>

#include "args.h"

namespace octavo {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

inline void adjust_token(float* logits, const AdjustRow& p, const AdjustEntry& e) {
  float x = logits[e.token] + e.bias;
  if (e.flags & kSeen) x = x > 0.0f ? x / p.repetition : x * p.repetition;
  if (e.count > 0) x -= p.presence + p.frequency * float(e.count);
  logits[e.token] = e.flags & kForbidden ? kMinusInfinity : x;
}

// Only tokens whose bit is 0 are touched. Most words of most masks are all zeros or all ones.
inline void mask_row(float* logits, int64_t vocab, const int32_t* allowed) {
  for (int64_t first = 0; first < vocab; first += 32) {
    const uint32_t word = uint32_t(allowed[first / 32]);
    if (word == ~0u) continue;
    const int64_t end = std::min(first + 32, vocab);
    if (word == 0)
      std::fill(logits + first, logits + end, kMinusInfinity);
    else
      for (int64_t token = first; token < end; ++token)
        if (!(word >> (token - first) & 1)) logits[token] = kMinusInfinity;
  }
}

inline void adjust_row(const AdjustArgs& a, int64_t r) {
  const AdjustRow& p = a.parameters[r];
  const auto* entries = reinterpret_cast<const AdjustEntry*>(a.parameters + a.rows) + p.first;
  float* logits = a.logits + r * a.stride;
  const int64_t latest = a.latest ? a.latest[r] : -1;
  bool listed = false;
  for (int32_t i = 0; i < p.entries; ++i) {
    AdjustEntry e = entries[i];
    if (e.token == latest) listed = true, ++e.count, e.flags |= kSeen;
    adjust_token(logits, p, e);
  }
  if (latest >= 0 && !listed) adjust_token(logits, p, {int32_t(latest), 0.0f, 1, kSeen});
  if (a.allowed && p.masked) mask_row(logits, a.vocab, a.allowed + r * a.allowed_stride);
}

}  // namespace octavo
