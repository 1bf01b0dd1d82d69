// The host's side of a plan: sizes that follow from the same constants as the lists that plan.cu writes.
#include <algorithm>
#include <cstdint>

#include "attention/plan.h"

namespace octavo {
namespace {

constexpr size_t kAlignment = 256;

constexpr int over(int n, int by) { return (n + by - 1) / by; }
int few_of(const PlanShape& s) { return s.uniform ? 0 : kDecodeRows; }

}  // namespace

AttentionPlan::AttentionPlan(const PlanShape& s)
    : shape(s),
      group(s.heads / s.kv_heads),
      decodes(group <= few_of(s)),
      extends(group * int64_t(s.max_queries) > few_of(s)),
      groups(s.shared_prefixes && decodes && s.window == 0),
      rows(int(std::min<int64_t>(group * int64_t(s.max_queries), few_of(s)))),
      chunks(decodes ? s.chunks : 0),
      tiles(extends ? s.sequences + int(int64_t(s.tokens) * group / extend_rows(s.head_dim)) : 0),
      spared(extends ? 0 : without_tiles()) {
  place(nullptr, nullptr);
}

template <class F>
void AttentionPlan::for_each_list(F&& f) {
  f(header_, 1);
  f(decode_, chunks);
  f(folds_, shape.sequences);
  f(extend_, tiles);
  f(arrivals_, int64_t(shape.sequences) * shape.kv_heads);
  if (!groups) return;
  f(prefix_, chunks);
  f(group_states_, shape.sequences);
  f(group_rows_, std::min(int64_t(shape.tokens) * group, int64_t(shape.sequences) * std::max(rows, kSplitRows)));
}

void AttentionPlan::place(void* lists, void* partial) {
  list_bytes_ = 0;
  for_each_list([&](auto*& list, int64_t count) {
    list = reinterpret_cast<std::remove_reference_t<decltype(list)>>(static_cast<char*>(lists) + list_bytes_);
    list_bytes_ += (count * sizeof(*list) + kAlignment - 1) / kAlignment * kAlignment;
  });
  partial_ = static_cast<float*>(partial);
}

// The most chunks that the members of a group share are known, so that of few sequences none can be given tiles.
int AttentionPlan::without_tiles() const {
  for (int members = 1; members <= shape.sequences; ++members) {
    const int all = members * rows, items = over(all, kDecodeRows) * (chunks / members);
    if (all > shape.few_rows && (all > kFewTimes * shape.few_rows || items > kFewItems)) return members - 1;
  }
  return shape.sequences;
}

PlanArgs AttentionPlan::args() const {
  PlanArgs a{};
  a.group = group, a.window = shape.window, a.decode_rows = rows;
  a.head_dim = shape.head_dim, a.kv_heads = shape.kv_heads;
  a.header = header_, a.decode = decode_, a.folds = folds_, a.extend = extend_;
  a.prefix = prefix_, a.group_states = group_states_, a.rows = group_rows_;
  a.few_rows = shape.few_rows;
  a.decode_capacity = chunks, a.extend_capacity = tiles, a.sequence_capacity = shape.sequences;
  return a;
}

void AttentionPlan::fill(AttentionArgs& a) const {
  a.header = header_, a.decode = decode_, a.folds = folds_, a.extend = extend_;
  a.prefix = prefix_, a.rows = group_rows_;
  a.partial = partial_, a.partial_sums = partial_ + partial_rows() * shape.head_dim, a.partial_rows = rows;
}

int64_t chunk_count(const int32_t* contexts, const int32_t* queries, int64_t count, int group) {
  int64_t chunks = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int parts = is_split(contexts[i], queries[i], group) ? over(queries[i], std::max(1, kDecodeRows / group)) : 1;
    chunks += int64_t(parts) * std::max(1, over(contexts[i], kChunk));
  }
  return chunks;
}

bool only_prompts(const int32_t* contexts, const int32_t* queries, int64_t count, int group) {
  for (int64_t i = 0; i < count; ++i)
    if (int64_t(queries[i]) * group <= kDecodeRows || is_split(contexts[i], queries[i], group)) return false;
  return true;
}

}  // namespace octavo
