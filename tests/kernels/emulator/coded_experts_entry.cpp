// Mixtures of experts of codes as functions of a shared library.
#include "coded_experts/args.h"
#include "device/common.cuh"
#include "experts/sum.cu"

using namespace octavo;

extern "C" {

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }
int up_few(const CodedExpertsUpArgs* a) { return coded_experts_up_few(*a, nullptr); }
int up_many(const CodedExpertsUpArgs* a) { return coded_experts_up_many(*a, nullptr); }
int down_few(const CodedExpertsDownArgs* a) { return coded_experts_down_few(*a, nullptr); }
int down_many(const CodedExpertsDownArgs* a) {
  const int error = coded_experts_down_many(*a, nullptr);
  return error ? error : experts_sum(*a, nullptr);
}
}
