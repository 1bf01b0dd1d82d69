// Attention of prompts, with the plan of its step, as functions of a shared library.
#include <vector>

#include "attention/extend.cuh"
#include "attention/plan.cu"
#include "attention/plan_host.cpp"

using namespace octavo;

extern "C" {

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }

// `listed`: room for as many extend items as there are at most, or null. Gives an error of the runtime, or the negative number
// of items.
int attend(const AttentionOperands* operands, const int32_t* context_lens, const int32_t* query_start, int tokens,
           int max_queries, bool pairs, ExtendItem* listed) {
  AttentionArgs a{};
  static_cast<AttentionOperands&>(a) = *operands;
  AttentionPlan plan({a.sequences, tokens, 0, a.heads, a.kv_heads, a.head_dim, max_queries, a.window, false, true, 0, pairs});
  std::vector<int4> lists(plan.list_bytes() / sizeof(int4));
  plan.place(lists.data(), nullptr);
  PlanArgs p = plan.args();
  p.context_lens = context_lens, p.query_start = query_start, p.sequences = a.sequences;
  if (cudaError_t error = plan_attention(p, nullptr); error != cudaSuccess) return error;
  plan.fill(a);
  a.value_dim = a.head_dim, a.extends = true;
  if (listed) std::copy_n(a.extend, a.header->extend_items, listed);
  if (cudaError_t error = extend_attention_wgmma(a, nullptr); error != cudaSuccess) return error;
  return -a.header->extend_items;
}
}
