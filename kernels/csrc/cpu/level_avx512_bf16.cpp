// AVX-512 with dot products: pairs of bf16 are multiplied and added in float32 without widening, four bytes in int32.
#include "simd_avx512.h"
// Specialisations follow what they specialise.
#include "integer_dot_bytes.h"
#include "linear_kernel.h"
#include "pair_dot.h"
#include "products.h"

namespace octavo {
namespace {

template <>
struct Dot<bf16> {
  using X = bf16;
  using Operand = __m512bh;
  static constexpr int step = 2 * W;
  static constexpr bool pack_needed = false;
  static Operand weight(const bf16* p) { return reinterpret_cast<Operand>(_mm512_loadu_si512(p)); }
  static Operand weight_n(const bf16* p, int n) {
    return reinterpret_cast<Operand>(_mm512_maskz_loadu_epi16((__mmask32(1) << n) - 1, p));
  }
  static Operand input(const bf16* p) { return weight(p); }
  static Vec mac(Operand w, Operand x, Vec acc) { return _mm512_dpbf16_ps(acc, w, x); }
  static void pack(const bf16* x, bf16* out, int64_t depth) { __builtin_memcpy(out, x, size_t(depth) * sizeof *x); }
};

template <WeightCodes kCodes, bool kZeros>
struct GivenProduct<bf16, kCodes, kZeros> {
  using type = Quantised<bf16, PairDot<kCodes, kZeros>>;
};

}  // namespace
}  // namespace octavo

#include "kernels.h"

namespace octavo {
extern constexpr Kernels avx512_bf16_kernels = level_kernels();
}
