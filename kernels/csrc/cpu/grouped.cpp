// Products of the rows of several experts with their parts of one matrix, as one set of tasks: all threads work, however
// few rows an expert has. An element's arithmetic is that of the product with this part alone.
#include <algorithm>

#include "launch.h"
#include "levels.h"
#include "thread_pool.h"

namespace octavo {
namespace {

int64_t over(int64_t n, int64_t by) { return (n + by - 1) / by; }

// One expert's product: its `packed` rows of x begin so many bytes into the memory of all.
template <class Args>
struct Group {
  Args args;
  LinearPlan plan;
  size_t packed;
};

// Blocks of all groups: `across` columns, so many of them in a group, numbers from `first` on.
struct Blocks {
  int64_t columns, across, first;
};

template <class Args>
int64_t cut(const std::vector<Group<Args>>& groups, int64_t step, std::vector<Blocks>& blocks) {
  const int64_t wanted = over(4 * num_threads(), int64_t(groups.size()));
  int64_t count = 0;
  for (const auto& group : groups) {
    int64_t columns = group.plan.columns;
    const int64_t high = over(group.args.rows, group.plan.rows);
    while (columns > 64 && high * over(group.args.columns, columns) < wanted) columns = over(columns / 2, step) * step;
    const int64_t across = over(group.args.columns, columns);
    blocks.push_back({columns, across, count});
    count += high * across;
  }
  return count;
}

// `pack(args, memory, begin, end)` lays out rows of x; `run(args, block, scratch)` computes a block.
template <class Args, class Pack, class Run>
void in_groups(std::vector<Group<Args>>& groups, int64_t step, Pack pack, Run run) {
  if (groups.empty()) return;
  size_t bytes = 0;
  for (auto& group : groups) {
    group.packed = bytes;
    bytes += group.plan.packed_row * size_t(over(group.args.rows, kPackRows) * kPackRows);
    bytes = size_t(over(int64_t(bytes), 64) * 64);
  }
  if (bytes > 0) {
    char* memory = static_cast<char*>(scratch(Slot::shared, bytes));
    parallel_for(int64_t(groups.size()), [&](int64_t i) {
      Group<Args>& group = groups[size_t(i)];
      if (group.plan.packed_row == 0) return;
      pack(group.args, memory + group.packed);
      group.args.x = memory + group.packed;
      if (group.plan.packed_stride > 0) group.args.x_stride = group.plan.packed_stride;
    });
  }
  std::vector<Blocks> blocks;
  const int64_t count = cut(groups, step, blocks);
  parallel_for(count, [&](int64_t i) {
    const auto after = std::upper_bound(blocks.begin(), blocks.end(), i,
                                        [](int64_t number, const Blocks& each) { return number < each.first; });
    const size_t at = size_t(after - blocks.begin()) - 1;
    const Group<Args>& group = groups[at];
    const int64_t number = i - blocks[at].first, columns = blocks[at].columns;
    const int64_t row = number / blocks[at].across * group.plan.rows, column = number % blocks[at].across * columns;
    const LinearBlock block = {row, std::min(row + group.plan.rows, group.args.rows), column,
                               std::min(column + columns, group.args.columns)};
    run(group.args, block, group.plan.scratch > 0 ? scratch(Slot::local, group.plan.scratch) : nullptr);
  });
}

template <class Args>
Args rows_of(const Args& a, int64_t begin, int64_t end) {
  Args part = a;
  const int64_t item = int64_t(item_size(a.dtype));
  part.x = static_cast<const char*>(a.x) + begin * a.x_stride * item;
  part.out = static_cast<char*>(a.out) + begin * a.out_stride * item;
  part.rows = end - begin;
  return part;
}

}  // namespace

void launch_grouped_linear(const LinearArgs& a, const int32_t* starts, int experts) {
  const Kernels& k = kernels();
  const int64_t item = int64_t(item_size(a.dtype));
  std::vector<Group<LinearArgs>> groups;
  for (int64_t e = 0; e < experts; ++e) {
    if (starts[e] == starts[e + 1]) continue;
    LinearArgs part = rows_of(a, starts[e], starts[e + 1]);
    part.weight = static_cast<const char*>(a.weight) + e * a.columns * a.weight_stride * item;
    if (a.bias) part.bias = static_cast<const char*>(a.bias) + e * a.columns * item;
    groups.push_back({part, k.linear_plan(part), 0});
  }
  in_groups(groups, 32, [&](const LinearArgs& part, void* memory) { k.linear_pack(part, memory, 0, part.rows); },
            [&](const LinearArgs& part, const LinearBlock& block, void* memory) { k.linear(part, block, memory); });
}

void launch_grouped_quantised(const QuantisedArgs& a, const int32_t* starts, int experts) {
  const Kernels& k = kernels();
  const int64_t item = int64_t(item_size(a.dtype));
  const int64_t panels = a.columns / kPanelColumns, bytes = a.depth / a.piece_depth() * kPiece * kPanels;
  const size_t floats = size_t(a.x_depth + a.depth) + 2 * kPackRows;
  std::vector<Group<QuantisedArgs>> groups;
  for (int64_t e = 0; e < experts; ++e) {
    if (starts[e] == starts[e + 1]) continue;
    QuantisedArgs part = rows_of(a, starts[e], starts[e + 1]);
    part.weight = a.weight + e * panels * bytes;
    part.scales = a.scales + e * panels * a.groups * kPanelColumns;
    if (a.zeros) part.zeros = a.zeros + e * panels * a.groups * kPanelColumns;
    if (a.bias) part.bias = static_cast<const char*>(a.bias) + e * a.columns * item;
    groups.push_back({part, k.quantised_plan(part), 0});
  }
  in_groups(groups, kPanelColumns,
            [&](const QuantisedArgs& part, void* memory) {
              k.quantised_pack(part, memory, 0, part.rows,
                               static_cast<float*>(scratch(Slot::local, floats * sizeof(float))));
            },
            [&](const QuantisedArgs& part, const LinearBlock& block, void* memory) { k.quantised(part, block, memory); });
}

void launch_combine(const CombineArgs& a) {
  const Kernels& k = kernels();
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, a.width * (a.chosen + 1)));
  parallel_ranges(a.rows, grain, [&](int64_t begin, int64_t end) { k.combine(a, begin, end); });
}

}  // namespace octavo
