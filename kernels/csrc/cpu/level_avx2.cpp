#include "simd_avx2.h"
// Kernels are written against whichever vectors come first.
#include "kernels.h"

namespace octavo {
extern constexpr Kernels avx2_kernels = level_kernels();
}
