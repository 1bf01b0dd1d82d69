// AVX-512 with tile registers, for products of bf16 and attention over it.
#include "simd_avx512.h"
// Specialisations follow what they specialise.
#include "attention_amx.h"
#include "linear_amx.h"

#include "kernels.h"

namespace octavo {
extern constexpr Kernels amx_kernels = level_kernels();
}
