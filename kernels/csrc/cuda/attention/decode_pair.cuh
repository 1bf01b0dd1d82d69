// Items of groups with nine to sixteen query rows, in the kernel for eight: two tiles of eight rows meet the same slices, which
// come once. Each row's arithmetic is that of chunk_few.cuh.
#pragma once

#include "attention/decode_ring.cuh"

namespace octavo {
namespace {

// One slice, of which all rows see all keys. Each fragment meets both tiles. Those of the keys and then those of the values are
// on their way together, as far as there are registers beside two states.
template <class T, int D>
__device__ void attend_pair(const AttentionArgs& a, uint32_t keys, const Queries<T, D, 1> (&queries)[2],
                            State<D, 1> (&states)[2]) {
  constexpr int kAtOnce = D <= 96 ? D / 16 : 4;
  uint32_t tiles[kAtOnce][4], weights[2][2];
  float sums[2][4] = {}, s[2][2][4], high[2], factor[2] = {1.0f, 1.0f};
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    if (k % kAtOnce == 0)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) read_keys<D>(keys, k + i, tiles[i]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t q[4];
      queries[i].fragment(k, q);
      mma<T>(sums[i], tiles[k % kAtOnce], q[0], q[2]);
    }
  }
  const float unit = score_unit(a);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    turn_scores(sums[i], s[i]);
    if (a.softcap > 0.0f) cap<1>(a, s[i]);
    high[i] = highest(s[i]);
  }
  if (__any_sync(~0u, rises(high[0], unit, states[0]) || rises(high[1], unit, states[1])))  // rare after the first slice
#pragma unroll
    for (int i = 0; i < 2; ++i) factor[i] = raise<D, false>(high[i], unit, states[i]);
  const uint32_t values = keys + slice_bytes<T, D>;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) read_values<D>(values, i, tiles[i]);
#pragma unroll
  for (int i = 0; i < 2; ++i) weigh<T, D, false>(s[i], unit, factor[i], states[i], weights[i]);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    if (k > 0 && k % kAtOnce == 0)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) read_values<D>(values, k + i, tiles[i]);
#pragma unroll
    for (int i = 0; i < 2; ++i) mma<T>(states[i].o[k], tiles[k % kAtOnce], weights[i][0], weights[i][1]);
  }
}

// An item for all its warps. `first`: its first eight rows; `advance(f)` calls f with each slice of a warp; `done()` is called
// when the results are on their way: registers are free then, and it may replace the item.
template <class T, int D, class Advance, class Done>
__device__ void take_pair(const AttentionArgs& a, const DecodeItem& it, int head, const Queries<T, D, 1>& first,
                          const Exchange<D, 1>& exchange, Advance&& advance, Done&& done) {
  const auto later = [&](int row) { return group_row(a, it.slot + 8 + row, it.chunk); };
  Queries<T, D, 1> queries[2] = {first, {a, head, it.group_rows - 8, later}};
  queries[1].hold();
  State<D, 1> states[2];
  states[0].clear(), states[1].clear();
  advance([&](uint32_t keys) { attend_pair<T, D>(a, keys, queries, states); });
  finish(states[0]), finish(states[1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sync_warps();  // what was left of the last tile has been read
    exchange.leave(states[i]);
    if (i == 1) done();
    sync_warps();
    exchange.join(min(8, it.group_rows - 8 * i), [&](int row, int column, auto f) {
      write_partial<D>(a, head, group_row(a, it.slot + 8 * i + row, it.chunk), column, f, Exchange<D, 1>::kApart);
    });
  }
}

}  // namespace
}  // namespace octavo
