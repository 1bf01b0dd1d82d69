// Products of 65 to 256 rows as functions of a shared library.
#include "device/common.cuh"
#include "linear/linear.cuh"

using namespace octavo;

extern "C" {

void set_up(int processors, unsigned seed) {
  multiprocessors = processors, emulator::random_source.seed(seed), emulator::side_by_side = true;
}
int swapped(const LinearArgs* a, int consumers, int tokens, int shares) {
  Device device;
  describe(device);
  return linear_swapped(*a, {consumers, tokens, false}, shares, device, nullptr);
}
}
