// Vectors of eight lanes: AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include "args.h"

namespace octavo {
namespace {

constexpr int W = 8;
constexpr int kScoreRows = 3, kScoreSegments = 2;
constexpr int kValueVectors = 4;
constexpr int kLinearColumns = 4, kLinearRows = 2;

using Vec = __m256;
using UVec = __m256i;
using Mask = __m256;

inline Vec vset(float x) { return _mm256_set1_ps(x); }
inline UVec uset(uint32_t x) { return _mm256_set1_epi32(int(x)); }
inline UVec to_bits(Vec x) { return _mm256_castps_si256(x); }
inline Vec from_bits(UVec x) { return _mm256_castsi256_ps(x); }

inline Vec vload(const float* p) { return _mm256_loadu_ps(p); }
inline Vec vload(const bf16* p) {
  __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
inline Vec vload(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Vec vload(const i8* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
// A code's bits are those of a half with too short an exponent: 2^8 times too small (see Codes<f8>).
inline Vec vload(const f8* p) {
  const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16(short(0xbfff))));
}
inline void vstore(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline void vstore(bf16* p, Vec x) {
  __m256i u = _mm256_castps_si256(x);
  __m256i even = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), even);
  __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  __m256i r = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline void vstore(f16* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

inline Vec vselect(Mask m, Vec a, Vec b) { return _mm256_blendv_ps(b, a, m); }
inline Vec vfma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Mask vlt(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline Mask vge(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
inline Mask vgt(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
inline Mask mask_and(Mask a, Mask b) { return _mm256_and_ps(a, b); }
inline bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
inline Vec vmax(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec vmin(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline float vsum(Vec x) {
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
inline void vsum4(const Vec* v, float* sums) {
  for (int i = 0; i < 4; ++i) sums[i] = vsum(v[i]);
}
inline float vmax_all(Vec x) {
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
inline Vec viota() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

inline UVec uadd(UVec a, UVec b) { return _mm256_add_epi32(a, b); }
inline UVec uxor(UVec a, UVec b) { return _mm256_xor_si256(a, b); }
inline UVec uand(UVec a, UVec b) { return _mm256_and_si256(a, b); }
inline UVec uor(UVec a, UVec b) { return _mm256_or_si256(a, b); }
template <int N>
inline UVec ushr(UVec a) {
  return _mm256_srli_epi32(a, N);
}
template <int N>
inline UVec ushl(UVec a) {
  return _mm256_slli_epi32(a, N);
}
inline UVec uselect(Mask m, UVec a, UVec b) { return _mm256_blendv_epi8(b, a, _mm256_castps_si256(m)); }
inline void umul(UVec a, uint32_t m, UVec& high, UVec& low) {
  __m256i mm = _mm256_set1_epi32(int(m));
  __m256i even = _mm256_mul_epu32(a, mm), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), mm);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
inline Vec float_of_signed(UVec a) { return _mm256_cvtepi32_ps(a); }
inline Vec float_of_unsigned(UVec a) {
  Vec high = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(a, 16)), _mm256_set1_ps(65536.0f));
  return _mm256_add_ps(high, _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(0xffff))));
}
inline UVec round_to_int(Vec x) { return _mm256_cvtps_epi32(x); }
inline void ustore(uint32_t* p, UVec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
// The lowest bytes of the first n lanes.
inline void store_bytes(void* p, UVec x, int n) {
  const __m256i lowest = _mm256_shuffle_epi8(x, _mm256_set1_epi32(0x0c080400));
  const __m256i both = _mm256_permutevar8x32_epi32(lowest, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
  const int64_t bytes = _mm_cvtsi128_si64(_mm256_castsi256_si128(both));
  __builtin_memcpy(p, &bytes, size_t(n));
}

// Numbers that the lowest four bits stand for: an int4 less 8, and twice an e2m1.
inline Vec nibble_value(UVec x) { return float_of_signed(uand(x, uset(15))) - vset(8.0f); }
inline Vec e2m1_value(UVec x) {
  const Vec size = _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 1, 2, 3, 4, 6, 8, 12), x);
  return from_bits(uor(to_bits(size), uand(ushl<28>(x), uset(0x80000000u))));
}

inline void transpose4(UVec& a, UVec& b, UVec& c, UVec& d) {
  __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
  __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
  a = _mm256_unpacklo_epi64(ab0, cd0), b = _mm256_unpackhi_epi64(ab0, cd0);
  c = _mm256_unpacklo_epi64(ab1, cd1), d = _mm256_unpackhi_epi64(ab1, cd1);
}

// For sums of integers: bytes as int16, four int16 for all lanes, sums of the products of two, of four bytes.
inline UVec widen_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline UVec uset64(int64_t x) { return _mm256_set1_epi64x(x); }
inline UVec sum_pairs(UVec a, UVec b) { return _mm256_madd_epi16(a, b); }
#if defined(__AVXVNNI__)
inline UVec sum_bytes(UVec sum, UVec codes, UVec x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
#endif

inline UVec counter_order() { return _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7); }

}  // namespace
}  // namespace octavo

#include "simd_tail.h"
