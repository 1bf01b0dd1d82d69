#include "simd_avx2.h"
// Specialisations follow what they specialise.
#include "integer_dot_pairs.h"

#include "kernels.h"

namespace octavo {
extern constexpr Kernels avx2_kernels = level_kernels();
}
