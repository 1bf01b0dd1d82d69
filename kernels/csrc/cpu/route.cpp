// Which experts each row takes. A row's choice and weights are its own: scalar code in double arithmetic, one row after
// the other.
#include <algorithm>
#include <limits>
#include <vector>

#include "exponential.h"
#include "launch.h"
#include "thread_pool.h"

namespace octavo {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The largest of `keys[n]` that is not taken yet, the first of equals; one that is no number is the lowest.
int best(const float* keys, const char* taken, int n) {
  int found = -1;
  float most = kLowest;
  for (int i = 0; i < n; ++i) {
    if (taken[i]) continue;
    if (found < 0 || keys[i] > most) {
      found = i;
      most = keys[i] == keys[i] ? keys[i] : kLowest;
    }
  }
  return found;
}

// Softmax of `n` values, each in turn from `at(i)` to `put(i, value)`.
template <class At, class Put>
void softmax(int n, At at, Put put) {
  float top = kLowest;
  for (int i = 0; i < n; ++i) top = std::max(top, at(i));
  double sum = 0.0;
  for (int i = 0; i < n; ++i) sum += exponential(double(at(i)) - double(top));
  for (int i = 0; i < n; ++i) put(i, float(exponential(double(at(i)) - double(top)) / sum));
}

struct Room {
  std::vector<float> scores, keys, of_groups;
  std::vector<char> taken, group_taken;
  explicit Room(const RouteArgs& a)
      : scores(size_t(a.experts)), keys(size_t(a.experts)), of_groups(size_t(a.groups)), taken(size_t(a.experts)),
        group_taken(size_t(a.groups)) {}
};

void score(const RouteArgs& a, const float* logits, Room& room) {
  if (a.score == Score::softmax)
    softmax(a.experts, [&](int e) { return logits[e]; }, [&](int e, float value) { room.scores[size_t(e)] = value; });
  for (int e = 0; e < a.experts; ++e) {
    float& value = room.scores[size_t(e)];
    if (a.score == Score::sigmoid) value = sigmoid(logits[e]);
    if (a.score == Score::chosen_softmax) value = logits[e];
    room.keys[size_t(e)] = a.correction ? value + a.correction[e] : a.top_groups < a.groups ? value : logits[e];
  }
}

// Takes the experts of all groups but the best ones out of the choice. A group's score is the sum of its best keys.
void drop_groups(const RouteArgs& a, Room& room) {
  const int size = a.experts / a.groups;
  for (int g = 0; g < a.groups; ++g) {
    const float* keys = room.keys.data() + g * size;
    char* taken = room.taken.data() + g * size;
    float sum = 0.0f;
    for (int i = 0; i < a.group_best; ++i) {
      const int e = best(keys, taken, size);
      taken[e] = 1;
      sum += keys[e];
    }
    std::fill(taken, taken + size, char(0));
    room.of_groups[size_t(g)] = sum;
  }
  std::fill(room.group_taken.begin(), room.group_taken.end(), char(0));
  for (int i = 0; i < a.top_groups; ++i) room.group_taken[size_t(best(room.of_groups.data(), room.group_taken.data(), a.groups))] = 1;
  for (int e = 0; e < a.experts; ++e) room.taken[size_t(e)] = !room.group_taken[size_t(e / size)];
}

void weigh(const RouteArgs& a, const int32_t* ids, const Room& room, float* weights) {
  const int n = a.chosen;
  for (int j = 0; j < n; ++j) weights[j] = room.scores[size_t(ids[j])];
  if (a.score == Score::chosen_softmax)
    softmax(n, [&](int j) { return room.scores[size_t(ids[j])]; }, [&](int j, float value) { weights[j] = value; });
  if (a.normalised) {
    float sum = 0.0f;
    for (int j = 0; j < n; ++j) sum += weights[j];
    sum = std::max(sum + a.eps, a.least);
    for (int j = 0; j < n; ++j) weights[j] /= sum;
  }
  for (int j = 0; j < n; ++j) weights[j] *= a.scale;
}

void route_row(const RouteArgs& a, int64_t row, Room& room) {
  score(a, a.logits + row * a.stride, room);
  std::fill(room.taken.begin(), room.taken.end(), char(0));
  if (a.top_groups < a.groups) drop_groups(a, room);
  int32_t* ids = a.places + row * a.chosen;
  for (int j = 0; j < a.chosen; ++j) {
    const int e = best(room.keys.data(), room.taken.data(), a.experts);
    room.taken[size_t(e)] = 1;
    ids[j] = e;
  }
  std::sort(ids, ids + a.chosen);
  weigh(a, ids, room, a.weights + row * a.chosen);
}

// Places of all assignments, by expert and then by row, instead of the experts themselves.
void sort_by_expert(const RouteArgs& a) {
  const int64_t count = a.rows * a.chosen;
  std::fill(a.starts, a.starts + a.experts + 1, 0);
  for (int64_t i = 0; i < count; ++i) ++a.starts[a.places[i] + 1];
  for (int e = 0; e < a.experts; ++e) a.starts[e + 1] += a.starts[e];
  std::vector<int32_t> next(a.starts, a.starts + a.experts);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t place = next[size_t(a.places[i])]++;
    a.sources[place] = int32_t(i / a.chosen);
    a.places[i] = place;
  }
}

}  // namespace

void launch_route(const RouteArgs& a) {
  parallel_ranges(a.rows, std::max<int64_t>(1, 2048 / a.experts), [&](int64_t begin, int64_t end) {
    Room room(a);
    for (int64_t row = begin; row < end; ++row) route_row(a, row, room);
  });
  sort_by_expert(a);
}

}  // namespace octavo
