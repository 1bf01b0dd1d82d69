// AVX-512 with tile registers: products of bf16 by tiles of 16 rows of the weight and 16 rows of x.
#include "simd_avx512.h"
// The specialisation follows what it specialises.
#include "linear_amx.h"

#include "kernels.h"

namespace octavo {
extern constexpr Kernels amx_kernels = level_kernels();
}
