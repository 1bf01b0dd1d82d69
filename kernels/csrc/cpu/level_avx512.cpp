#include "simd_avx512.h"
// Specialisations follow what they specialise.
#include "integer_dot_pairs.h"

#include "kernels.h"

namespace octavo {
extern constexpr Kernels avx512_kernels = level_kernels();
}
