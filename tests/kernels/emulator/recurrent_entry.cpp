// Recurrent layers as functions of a shared library.
#include "device/common.cuh"
#include "recurrent/args.h"

using namespace octavo;

extern "C" {

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }
int delta(const DeltaArgs* a) { return delta_step(*a, nullptr); }
int ssm(const SsmArgs* a) { return ssm_step(*a, nullptr); }
int conv(const RecurrentArgs* a) { return conv_step(*a, nullptr); }
}
