// Products with weights of 16 bits as functions of a shared library.
#include "device/common.cuh"
#include "linear/args.h"

using namespace octavo;

extern "C" {

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }
int product(const LinearArgs* a, const LinearLaunch* how) { return linear(*a, *how, nullptr); }
}
