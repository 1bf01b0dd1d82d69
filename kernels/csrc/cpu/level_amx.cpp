// AVX-512 with tile registers, for products of bf16 or integers and attention over bf16.
#include "simd_avx512.h"
// Specialisations follow what they specialise.
#include "attention_amx.h"
#include "linear_amx.h"
#include "quantised_amx.h"

#include "kernels.h"

namespace octavo {
extern constexpr Kernels amx_kernels = level_kernels();
}
