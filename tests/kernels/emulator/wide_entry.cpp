// Attention of wide heads as functions of a shared library.
#include "attention/wide.h"
#include "device/common.cuh"

using namespace octavo;

extern "C" {

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }
int plan(const WidePlanArgs* a) { return plan_wide(*a, nullptr); }
int attend(const WideArgs* a) { return wide_attention(*a, nullptr); }
}
