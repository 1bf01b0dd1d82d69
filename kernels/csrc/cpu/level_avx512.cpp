#include "simd_avx512.h"
// Kernels are written against whichever vectors come first.
#include "kernels.h"

namespace octavo {
extern constexpr Kernels avx512_kernels = level_kernels();
}
