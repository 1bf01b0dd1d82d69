// Recurrent layers of the CPU as a module of their own, at the lowest instruction set: nothing else has to be compiled.
#include "simd_baseline.h"
// Kernels are written against whichever vectors come first.
#include "recurrent.h"

#include "levels.h"
#include "recurrent_bindings.h"

namespace octavo {

const Kernels& kernels() {
  static const Kernels some = [] {
    Kernels k{};
    k.convolve = convolve;
    k.recurrence_prepare = recurrence_prepare, k.recurrence_advance = recurrence_advance;
    k.recurrence_finish = recurrence_finish;
    return k;
  }();
  return some;
}

}  // namespace octavo

PYBIND11_MODULE(recurrent_source, m) { octavo::add_recurrent(m); }
