// What products of experts of codes take, and where an expert's strips are.
#pragma once

#include "coded/codes.cuh"
#include "coded_experts/args.h"
#include "experts/checks.h"

namespace octavo {

// Scales of all experts' strips in float32, or in bfloat16.
using LongScale = float;
using ShortScale = bf16;

// Strips of all experts: `own` of each.
template <class Scale>
struct ExpertStrips {
  const char* codes;
  const Scale* scales;
  const uint8_t* zeros;
  int own, bricks, shift, groups;  // as in codes.cuh

  __device__ const char* codes_of(int64_t strip, int brick) const { return codes + (strip * bricks + brick) * kBrickBytes; }
  __device__ const Scale* scales_of(int64_t strip, int group) const { return scales + (strip * groups + group) * kStripRows; }
  __device__ const uint8_t* zeros_of(int64_t strip, int group) const { return zeros + (strip * groups + group) * kStripRows; }
};

template <class Scale>
inline ExpertStrips<Scale> strips_of(const CodedMatrix& m) {
  const CodedSizes sizes = sizes_of(m);
  return {static_cast<const char*>(m.codes), reinterpret_cast<const Scale*>(m.scales), m.zeros,
          sizes.strips, sizes.bricks, sizes.grouping.shift, sizes.groups};
}

inline bool takes_codes(const Device& device, const CodedMatrix& m, const ExpertMatrix& experts, bool gated, int chosen,
                        const void* x, int64_t x_stride) {
  const auto whole = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return device.major == 9 && m.columns == experts.columns && m.depth == experts.depth && experts.experts <= kMostExperts &&
         chosen <= kMostChosen && m.depth > 0 && m.depth % 8 == 0 && m.columns % (gated ? 2 * kStripRows : kStripRows) == 0 &&
         in_units(x, x_stride) && whole(m.codes) && whole(m.scales) && whole(m.zeros);
}

}  // namespace octavo
