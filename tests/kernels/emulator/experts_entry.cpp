// Mixtures of experts as functions of a shared library.
#include "device/common.cuh"
#include "experts/args.h"

using namespace octavo;

extern "C" {

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }
int route(const RouteArgs* a) { return route_rows(*a, nullptr); }
int up_few(const ExpertsUpArgs* a) { return experts_up_few(*a, nullptr); }
int up_many(const ExpertsUpArgs* a) { return experts_up_many(*a, nullptr); }
int down_few(const ExpertsDownArgs* a) { return experts_down_few(*a, nullptr); }
int down_many(const ExpertsDownArgs* a) {
  const int error = experts_down_many(*a, nullptr);
  return error ? error : experts_sum(*a, nullptr);
}
}
