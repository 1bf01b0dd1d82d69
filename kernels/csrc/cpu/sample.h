// Token choice by the Gumbel-max trick, and log-probabilities.
//
// The filters are defined on sets, not on an order, so that any exact selection algorithm gives the same answer:
//   top-k keeps every token whose scaled logit is at least the k-th largest (ties at the threshold all stay);
//   top-p keeps, among those, every token at least as large as the first one, from the top, at which the cumulative
//   mass reaches top_p of the total; masses are exp(z - max) in 64-bit fixed point, so no order of summation matters;
//   min-p keeps tokens with exp(z - max) >= min_p.
// Division, additions, the exponential and the logarithm are the same operations at every level: so are the tokens.
#pragma once

#include "philox.h"

namespace octavo {
namespace {

constexpr float kInfinity = __builtin_inff();

inline Vec load_logits(const float* p, int64_t n) {
  if (n >= W) return vload(p);
  Vec lanes = viota();
  return vselect(vlt(lanes, vset(float(n))), vload_n(p, int(n)), vset(-kInfinity));
}

inline float row_max(const float* p, int64_t n) {
  Vec top = vset(-kInfinity);
  for (int64_t i = 0; i < n; i += W) top = vmax(load_logits(p + i, n - i), top);
  return vmax_all(top);
}

// Best value and lowest index that has it, for a stream of vectors in ascending order of index. NaN is passed over; the
// index is -1 where nothing exceeds minus infinity.
struct ArgMax {
  Vec best = vset(-kInfinity);
  UVec where = uset(0);
  void add(Vec value, UVec index) {
    Mask better = vgt(value, best);
    best = vselect(better, value, best);
    where = uselect(better, index, where);
  }
  float value() const { return vmax_all(best); }
  int64_t index() const {
    alignas(64) float values[W];
    alignas(64) uint32_t places[W];
    vstore(values, best);
    ustore(places, where);
    const float most = value();
    if (!(most > -kInfinity)) return -1;
    int64_t found = INT64_MAX;
    for (int i = 0; i < W; ++i)
      if (values[i] == most && places[i] < found) found = places[i];
    return found;
  }
};

inline UVec lane_indices(uint32_t base) { return uadd(uset(base), round_to_int(viota())); }

ArgMax arg_max(const float* p, int64_t n) {
  ArgMax best;
  for (int64_t i = 0; i < n; i += W) best.add(load_logits(p + i, n - i), lane_indices(uint32_t(i)));
  return best;
}

// Tokens fall into bins by distance from the maximum. The bin is a monotone function of z, so a threshold is found by
// counting bins and then looking only at the tokens of one bin.
constexpr float kBinsPerUnit = 64.0f;

struct Bins {
  int32_t lane[W];
  Bins(Vec z, float top) {
    Vec distance = (vset(top) - z) * vset(kBinsPerUnit);
    // A NaN (infinity minus infinity) counts as the maximum itself.
    distance = vselect(vge(distance, vset(0.0f)), vmin(distance, vset(float(kSampleBins - 1))), vset(0.0f));
    alignas(64) float wide[W];
    vstore(wide, distance);
    for (int i = 0; i < W; ++i) lane[i] = int32_t(wide[i]);
  }
};

// Addend of a token to its bin: one, or exp(z - top) in units of 2^-40.
struct Count {
  uint64_t lane[W];
  Count(Vec, float) {
    for (int i = 0; i < W; ++i) lane[i] = 1;
  }
};
struct Mass {
  uint64_t lane[W];
  Mass(Vec z, float top) {
    alignas(64) float wide[W];
    vstore(wide, exp2v<Exact>((z - vset(top)) * vset(kLog2e)) * vset(0x1p40f));
    for (int i = 0; i < W; ++i) lane[i] = wide[i] >= 0.0f ? uint64_t(int64_t(wide[i])) : 0;
  }
};

// Largest element first; heap sort, as the rest of the library must not be instantiated at this level.
inline void sort_descending(float* v, int64_t n) {
  auto sift = [&](int64_t i, int64_t end) {
    for (int64_t child; (child = 2 * i + 1) < end; i = child) {
      if (child + 1 < end && v[child + 1] < v[child]) ++child;
      if (v[i] <= v[child]) return;
      float swap = v[i];
      v[i] = v[child], v[child] = swap;
    }
  };
  for (int64_t i = n / 2; i-- > 0;) sift(i, n);
  for (int64_t end = n; end-- > 1;) {
    float swap = v[0];
    v[0] = v[end], v[end] = swap;
    sift(0, end);
  }
}

struct Row {
  const float* logits;
  int64_t vocab;
  float temperature, top;  // top: largest scaled logit
  uint64_t* bins;
  float* list;  // room for the vocabulary
};

// Calls f(z, lanes of z) for every vector of scaled logits that has one of at least `floor`; lanes below it are NaN.
template <class F>
inline void for_scaled(const Row& row, float floor, F&& f) {
  const Vec temperature = vset(row.temperature), bar = vset(floor);
  for (int64_t i = 0; i < row.vocab; i += W) {
    Vec z = load_logits(row.logits + i, row.vocab - i) / temperature;
    Mask passes = vge(z, bar);
    if (!any(passes)) continue;
    alignas(64) float lanes[W];
    vstore(lanes, vselect(passes, z, vset(__builtin_nanf(""))));
    f(z, lanes);
  }
}

template <class Weight>
inline uint64_t fill_bins(const Row& row, float floor) {
  uint64_t total = 0;
  for (int i = 0; i < kSampleBins; ++i) row.bins[i] = 0;
  for_scaled(row, floor, [&](Vec z, const float* lanes) {
    const Bins bins(z, row.top);
    const Weight weight(z, row.top);
    for (int i = 0; i < W; ++i) {
      if (lanes[i] != lanes[i]) continue;
      row.bins[bins.lane[i]] += weight.lane[i];
      total += weight.lane[i];
    }
  });
  return total;
}

// Smallest scaled logit to keep, such that the weights of all tokens at or above it first reach `goal`.
template <class Weight>
inline float threshold(const Row& row, float floor, uint64_t goal) {
  uint64_t reached = 0;
  int bin = 0;
  while (bin < kSampleBins - 1 && reached + row.bins[bin] < goal) reached += row.bins[bin++];
  int64_t n = 0;
  for_scaled(row, floor, [&](Vec z, const float* lanes) {
    const Bins bins(z, row.top);
    for (int i = 0; i < W; ++i)
      if (bins.lane[i] == bin && lanes[i] == lanes[i]) row.list[n++] = lanes[i];
  });
  sort_descending(row.list, n);
  for (int64_t i = 0; i < n; ++i) {
    reached += Weight(vset(row.list[i]), row.top).lane[0];
    if (reached >= goal) return row.list[i];
  }
  return floor;
}

// The smallest scaled logit that survives all filters.
inline float filter_floor(const Row& row, int32_t top_k, float top_p, float min_p) {
  float floor = -__FLT_MAX__;  // what is -inf stays out
  if (top_k > 0 && top_k < row.vocab) {
    fill_bins<Count>(row, floor);
    floor = threshold<Count>(row, floor, uint64_t(top_k));
  }
  if (top_p < 1.0f) {
    const uint64_t total = fill_bins<Mass>(row, floor);
    const uint64_t goal = uint64_t(double(total) * double(top_p > 0.0f ? top_p : 0.0f));
    floor = threshold<Mass>(row, floor, goal > 0 ? goal : 1);
  }
  if (min_p > 0.0f) {
    const float least = row.top + float(__builtin_log(double(min_p)));
    floor = least > floor ? least : floor;
  }
  return floor;
}

inline ArgMax gumbel_max(const Row& row, float floor, const NoiseKey& key, uint32_t first) {
  ArgMax best;
  float lead = -kInfinity;
  const Vec temperature = vset(row.temperature), bar = vset(floor);
  for (int64_t i = 0; i < row.vocab; i += 4 * W) {
    Vec z[4], top = vset(-kInfinity);
    for (int j = 0; j < 4; ++j) {
      int64_t first = i + j * W;
      z[j] = first < row.vocab ? load_logits(row.logits + first, row.vocab - first) / temperature : vset(-kInfinity);
      z[j] = vselect(vge(z[j], bar), z[j], vset(-kInfinity));
      top = vmax(z[j], top);
    }
    float most = vmax_all(top);
    // No noise could lift these tokens to the best one so far.
    if (!(most > -kInfinity) || most + kMaxNoise < lead) continue;
    Vec g[4];
    noise(key, first + uint32_t(i), g);
    for (int j = 0; j < 4; ++j) best.add(z[j] + g[j], lane_indices(uint32_t(i + j * W)));
    lead = best.value();
  }
  return best;
}

inline ArgMax choose(const SampleArgs& a, int64_t r, void* scratch) {
  const float* logits = a.logits + r * a.stride;
  const StepSample& s = a.samples[r];
  if (!(s.temperature > 0.0f)) return arg_max(logits, a.vocab);
  auto* bins = static_cast<uint64_t*>(scratch);
  Row row = {logits, a.vocab, s.temperature, 0.0f, bins, reinterpret_cast<float*>(bins + kSampleBins)};
  NoiseKey key = {s.seed_low, s.seed_high, uint32_t(s.position), uint32_t(s.index)};
  if (a.floors) return gumbel_max(row, a.floors[r], key, uint32_t(a.first));
  row.top = row_max(logits, a.vocab) / row.temperature;
  return gumbel_max(row, filter_floor(row, s.top_k, s.top_p, s.min_p), key, uint32_t(a.first));
}

void sample(const SampleArgs& a, int64_t r, void* scratch) {
  const ArgMax best = choose(a, r, scratch);
  const int64_t index = best.index();
  a.tokens[r] = index < 0 ? -1 : index + a.first;
  if (a.reached) a.reached[r] = best.value();
}

void masses(const MassArgs& a, int64_t r) {
  const float* scaled = a.scaled + r * a.stride;
  int64_t* out = a.masses + r * a.columns;
  for (int64_t i = 0; i < a.columns; i += W) {
    const Mass mass(load_logits(scaled + i, a.columns - i), a.tops[r]);
    for (int64_t j = 0; j < W && i + j < a.columns; ++j) out[i + j] = int64_t(mass.lane[j]);
  }
}

// Keeps the `top` best (value, lowest id first) in a sorted array.
inline void insert_top(float value, int64_t id, int top, int& filled, float* values, int64_t* ids) {
  int i = filled < top ? filled++ : top - 1;
  for (; i > 0 && values[i - 1] < value; --i) values[i] = values[i - 1], ids[i] = ids[i - 1];
  values[i] = value, ids[i] = id;
}

void logprobs(const LogprobArgs& a, int64_t r) {
  const float* logits = a.logits + r * a.stride;
  const float top = row_max(logits, a.vocab);
  double sum = 0.0;
  constexpr int64_t stretch = 64 * W;
  for (int64_t i = 0; i < a.vocab;) {
    const int64_t end = i + stretch < a.vocab ? i + stretch : a.vocab;
    Vec part = vset(0.0f);
    for (; i < end; i += W) part = part + expv(load_logits(logits + i, end - i) - vset(top));
    sum += double(vsum(part));
    i = end;
  }
  const float log_sum = top + float(__builtin_log(sum));
  a.chosen[r] = a.tokens[r] < 0 ? __builtin_nanf("") : logits[a.tokens[r]] - log_sum;
  if (a.top == 0) return;
  int64_t* ids = a.top_ids + r * a.top;
  float* values = a.top_values + r * a.top;
  int filled = 0;
  for (int64_t i = 0; i < a.vocab; i += W) {
    const int64_t n = a.vocab - i < W ? a.vocab - i : W;
    if (filled == a.top && !any(vgt(load_logits(logits + i, n), vset(values[a.top - 1])))) continue;
    for (int64_t j = i; j < i + n; ++j)
      if (filled < a.top || logits[j] > values[a.top - 1]) insert_top(logits[j], j, a.top, filled, values, ids);
  }
  for (int i = 0; i < a.top; ++i) values[i] -= log_sum;
}

}  // namespace
}  // namespace octavo
