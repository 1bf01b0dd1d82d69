#include "simd_baseline.h"
// Kernels are written against whichever vectors come first.
#include "kernels.h"

namespace octavo {
extern constexpr Kernels baseline_kernels = level_kernels();
}
