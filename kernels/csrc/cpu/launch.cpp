#include "launch.h"

#include <algorithm>
#include <cstring>

#include "adjust.h"
#include "levels.h"
#include "thread_pool.h"

namespace octavo {
namespace {

// Elements that are worth a task: below it, waking a thread costs more than it saves.
constexpr int64_t kElementsPerTask = 16384;

int64_t rows_per_task(int64_t elements_per_row) {
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, elements_per_row));
}

// Sequences times KV heads, below which there would be too few items to share out evenly.
constexpr int64_t kItemsPerThread = 8;

struct Plan {
  std::vector<AttentionItem> items;
  struct Merge {
    AttentionItem whole;
    std::vector<const float*> partials;
  };
  std::vector<Merge> merges;
  size_t partial_floats = 0;
  int most_tokens = 1;
};

// Items are (sequence, KV head, tile of query tokens), over all of its chunks. Where they are few, a long sequence with
// few query rows, a decode step above all, is cut into one item a chunk, merged afterwards in ascending order; the
// arithmetic is the same.
Plan plan_attention(const AttentionArgs& a) {
  Plan plan;
  const int group = a.heads / a.kv_heads, tile = std::max(1, kernels().attention_rows(a) / group);
  const bool few = int64_t(a.sequences) * a.kv_heads < kItemsPerThread * num_threads();
  for (int s = 0; s < a.sequences; ++s) {
    const int queries = a.query_start[s + 1] - a.query_start[s], context = a.context_lens[s];
    for (int token = 0; token < queries; token += tile) {
      const int tokens = std::min(tile, queries - token);
      plan.most_tokens = std::max(plan.most_tokens, tokens);
      const int first = context - queries + token, end = std::max(0, first + tokens);
      const int begin = a.window > 0 ? std::max(0, first - a.window + 1) : 0;
      const int chunk = begin / kChunk, chunk_end = (end + kChunk - 1) / kChunk;
      const bool split = few && queries <= tile && chunk_end - chunk > 1;
      for (int h = 0; h < a.kv_heads; ++h) {
        AttentionItem item = {s, h, token, tokens, chunk, chunk_end, nullptr};
        if (!split) {
          plan.items.push_back(item);
          continue;
        }
        plan.merges.push_back({item, std::vector<const float*>(size_t(chunk_end - chunk))});
        plan.partial_floats += size_t(chunk_end - chunk) * kernels().attention_partial(a, tokens);
      }
    }
  }
  return plan;
}

void add_partial_items(const AttentionArgs& a, Plan& plan, float* memory) {
  for (auto& merge : plan.merges) {
    for (int c = merge.whole.chunk; c < merge.whole.chunk_end; ++c) {
      AttentionItem item = merge.whole;
      item.chunk = c, item.chunk_end = c + 1, item.partial = memory;
      merge.partials[size_t(c - merge.whole.chunk)] = memory;
      memory += kernels().attention_partial(a, item.tokens);
      plan.items.push_back(item);
    }
  }
}

int64_t count(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Calls f(block, scratch) for every block of a product: smaller ones than planned until every thread has a few, of
// columns first, in multiples of `step`: they share no weights.
template <class F>
void in_blocks(int64_t rows, int64_t columns, LinearPlan plan, int64_t step, F f) {
  const int64_t wanted = 4 * int64_t(num_threads());
  while (plan.columns > 64 && count(rows, plan.rows) * count(columns, plan.columns) < wanted)
    plan.columns = count(plan.columns / 2, step) * step;
  while (plan.rows > 64 && count(rows, plan.rows) * count(columns, plan.columns) < wanted) plan.rows /= 2;
  const int64_t across = count(columns, plan.columns);
  parallel_for(across * count(rows, plan.rows), [&](int64_t i) {
    const int64_t row = i / across * plan.rows, column = i % across * plan.columns;
    const LinearBlock block = {row, std::min(row + plan.rows, rows), column, std::min(column + plan.columns, columns)};
    f(block, plan.scratch > 0 ? scratch(Slot::local, plan.scratch) : nullptr);
  });
}

}  // namespace

void launch_write(const WriteArgs& a) {
  const Kernels& k = kernels();
  parallel_ranges(a.tokens, rows_per_task(int64_t(a.heads + 2 * a.kv_heads) * a.head_dim),
                  [&](int64_t begin, int64_t end) { k.write(a, begin, end); });
}

void launch_attention(const AttentionArgs& a) {
  const Kernels& k = kernels();
  Plan plan = plan_attention(a);
  if (!plan.merges.empty())
    add_partial_items(a, plan, static_cast<float*>(scratch(Slot::shared, plan.partial_floats * sizeof(float))));
  // Long items first, so that no thread is left alone with one at the end.
  std::stable_sort(plan.items.begin(), plan.items.end(), [](const AttentionItem& x, const AttentionItem& y) {
    return int64_t(x.tokens) * (x.chunk_end - x.chunk) > int64_t(y.tokens) * (y.chunk_end - y.chunk);
  });
  const size_t bytes = k.attention_scratch(a, plan.most_tokens) * sizeof(float);
  const int64_t count = int64_t(plan.items.size());
  parallel_ranges(count, std::clamp<int64_t>(count / (kItemsPerThread * num_threads()), 1, 8),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                      const AttentionItem* item = &plan.items[size_t(i)];
                      float* memory = static_cast<float*>(scratch(Slot::local, bytes));
                      k.attention(a, *item, i + 1 < end ? item + 1 : nullptr, memory);
                    }
                  });
  parallel_ranges(int64_t(plan.merges.size()), 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& merge = plan.merges[size_t(i)];
      k.attention_merge(a, merge.whole, merge.partials.data(), static_cast<float*>(scratch(Slot::local, bytes)));
    }
  });
}

void launch_linear(const LinearArgs& a) {
  const Kernels& k = kernels();
  LinearPlan plan = k.linear_plan(a);
  LinearArgs packed = a;
  if (plan.packed_row > 0) {
    void* memory = scratch(Slot::shared, plan.packed_row * size_t((a.rows + kPackRows - 1) / kPackRows * kPackRows));
    parallel_ranges(a.rows, (rows_per_task(a.depth) + kPackRows - 1) / kPackRows * kPackRows,
                    [&](int64_t begin, int64_t end) { k.linear_pack(a, memory, begin, end); });
    packed.x = memory;
    packed.x_stride = plan.packed_stride;
  }
  in_blocks(a.rows, a.columns, plan, 32, [&](const LinearBlock& block, void* memory) { k.linear(packed, block, memory); });
}

void launch_quantised(const QuantisedArgs& a) {
  const Kernels& k = kernels();
  const LinearPlan plan = k.quantised_plan(a);
  QuantisedArgs packed = a;
  packed.x = scratch(Slot::shared, plan.packed_row * size_t((a.rows + kPackRows - 1) / kPackRows * kPackRows));
  const size_t floats = size_t(a.x_depth + a.depth) + 2 * kPackRows;
  parallel_ranges(a.rows, (rows_per_task(a.depth) + kPackRows - 1) / kPackRows * kPackRows,
                  [&](int64_t begin, int64_t end) {
                    float* memory = static_cast<float*>(scratch(Slot::local, floats * sizeof(float)));
                    k.quantised_pack(a, const_cast<void*>(packed.x), begin, end, memory);
                  });
  in_blocks(a.rows, a.columns, plan, kPanelColumns,
            [&](const LinearBlock& block, void* memory) { k.quantised(packed, block, memory); });
}

void launch_rms_norm(const NormArgs& a) {
  const Kernels& k = kernels();
  parallel_ranges(a.rows, rows_per_task(a.width), [&](int64_t begin, int64_t end) { k.rms_norm(a, begin, end); });
}

void launch_layer_norm(const NormArgs& a) {
  const Kernels& k = kernels();
  parallel_ranges(a.rows, rows_per_task(a.width), [&](int64_t begin, int64_t end) { k.layer_norm(a, begin, end); });
}

void launch_activation(const ActivationArgs& a) {
  const Kernels& k = kernels();
  parallel_ranges(a.rows, rows_per_task(a.width), [&](int64_t begin, int64_t end) { k.activation(a, begin, end); });
}

void launch_adjust(const AdjustArgs& a) {
  parallel_for(a.rows, [&](int64_t row) { adjust_row(a, row); });
}

void launch_sample(const SampleArgs& a) {
  const Kernels& k = kernels();
  parallel_for(a.rows, [&](int64_t row) { k.sample(a, row, scratch(Slot::local, sample_scratch(a.vocab))); });
}

void launch_logprobs(const LogprobArgs& a) {
  const Kernels& k = kernels();
  parallel_for(a.rows, [&](int64_t row) { k.logprobs(a, row); });
}

void launch_masses(const MassArgs& a) {
  const Kernels& k = kernels();
  parallel_for(a.rows, [&](int64_t row) { k.masses(a, row); });
}

void launch_sum(const SumArgs& a) {
  const Kernels& k = kernels();
  parallel_ranges(a.rows, rows_per_task(a.width), [&](int64_t begin, int64_t end) { k.sum(a, begin, end); });
}

void launch_copy(char* cache, int64_t block_bytes, const int64_t* pairs, int64_t n) {
  parallel_for(n, [&](int64_t i) {
    memcpy(cache + pairs[2 * i + 1] * block_bytes, cache + pairs[2 * i] * block_bytes, size_t(block_bytes));
  });
}

}  // namespace octavo
