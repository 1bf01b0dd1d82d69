// AVX2 with a dot product of bytes, as laptops without AVX-512 have it.
#include "simd_avx2.h"
// Specialisations follow what they specialise.
#include "integer_dot_bytes.h"

#include "kernels.h"

namespace octavo {
extern constexpr Kernels avx2_vnni_kernels = level_kernels();
}
