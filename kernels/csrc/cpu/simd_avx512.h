// Vectors of sixteen lanes: AVX-512 F, BW and VL.
#pragma once

#include <immintrin.h>

#include "args.h"

namespace octavo {
namespace {

constexpr int W = 16;
constexpr int kScoreRows = 6, kScoreSegments = 4;
constexpr int kValueVectors = 4;
constexpr int kLinearColumns = 4, kLinearRows = 6;

using Vec = __m512;
using UVec = __m512i;
using Mask = __mmask16;

inline Vec vset(float x) { return _mm512_set1_ps(x); }
inline UVec uset(uint32_t x) { return _mm512_set1_epi32(int(x)); }
inline UVec to_bits(Vec x) { return _mm512_castps_si512(x); }
inline Vec from_bits(UVec x) { return _mm512_castsi512_ps(x); }

inline Vec widen(__m256i bits, bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline Vec widen(__m256i bits, f16) { return _mm512_cvtph_ps(bits); }
inline Vec widen(__m128i codes, i8) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }
// A code's bits are those of a half with too short an exponent: 2^8 times too small (see Codes<f8>).
inline Vec widen(__m128i codes, f8) {
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  return _mm512_cvtph_ps(_mm256_and_si256(shifted, _mm256_set1_epi16(short(0xbfff))));
}
inline __m256i narrow(Vec x, bf16) {
  __m512i u = _mm512_castps_si512(x);
  __m512i even = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), even);
  Mask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
inline __m256i narrow(Vec x, f16) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
inline Mask first(int n) { return Mask((1u << n) - 1); }

inline Vec vload(const float* p) { return _mm512_loadu_ps(p); }
inline Vec vload_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
inline void vstore(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline void vstore_n(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
template <class T>
inline Vec vload(const T* p) {
  if constexpr (sizeof(T) == 1)
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), T{});
  else
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), T{});
}
template <class T>
inline Vec vload_n(const T* p, int n) {
  if constexpr (sizeof(T) == 1)
    return widen(_mm_maskz_loadu_epi8(first(n), p), T{});
  else
    return widen(_mm256_maskz_loadu_epi16(first(n), p), T{});
}
template <class T>
inline void vstore(T* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x, T{}));
}
template <class T>
inline void vstore_n(T* p, Vec x, int n) {
  _mm256_mask_storeu_epi16(p, first(n), narrow(x, T{}));
}

inline Vec vselect(Mask m, Vec a, Vec b) { return _mm512_mask_blend_ps(m, b, a); }
inline Vec vfma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Mask vlt(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Mask vge(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline Mask vgt(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask mask_and(Mask a, Mask b) { return a & b; }
inline bool any(Mask m) { return m != 0; }
inline Vec vmax(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec vmin(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline __m256 upper_half(Vec x) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
}
inline float vsum(Vec x) {
  __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), upper_half(x));
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
// The sums of four vectors, each the same as `vsum` gives.
inline void vsum4(const Vec* v, float* sums) {
  auto halves = [](Vec a, Vec b) { return _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee); };
  const Vec ab = halves(v[0], v[1]), cd = halves(v[2], v[3]);
  Vec y = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
  y = y + _mm512_permute_ps(y, 0x4e);
  y = y + _mm512_permute_ps(y, 0xb1);
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(sums, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, y)));
}
inline float vmax_all(Vec x) {
  __m256 y = _mm256_max_ps(_mm512_castps512_ps256(x), upper_half(x));
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
inline Vec viota() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

inline UVec uadd(UVec a, UVec b) { return _mm512_add_epi32(a, b); }
inline UVec uxor(UVec a, UVec b) { return _mm512_xor_si512(a, b); }
inline UVec uand(UVec a, UVec b) { return _mm512_and_si512(a, b); }
inline UVec uor(UVec a, UVec b) { return _mm512_or_si512(a, b); }
template <int N>
inline UVec ushr(UVec a) {
  return _mm512_srli_epi32(a, N);
}
template <int N>
inline UVec ushl(UVec a) {
  return _mm512_slli_epi32(a, N);
}
inline UVec uselect(Mask m, UVec a, UVec b) { return _mm512_mask_blend_epi32(m, b, a); }
inline void umul(UVec a, uint32_t m, UVec& high, UVec& low) {
  __m512i mm = _mm512_set1_epi32(int(m));
  __m512i even = _mm512_mul_epu32(a, mm), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), mm);
  high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
inline Vec float_of_signed(UVec a) { return _mm512_cvtepi32_ps(a); }
inline Vec float_of_unsigned(UVec a) { return _mm512_cvtepu32_ps(a); }
inline UVec round_to_int(Vec x) { return _mm512_cvtps_epi32(x); }
inline void ustore(uint32_t* p, UVec x) { _mm512_storeu_si512(p, x); }
// The lowest bytes of the first n lanes.
inline void store_bytes(void* p, UVec x, int n) { _mm_mask_storeu_epi8(p, first(n), _mm512_cvtepi32_epi8(x)); }

// Numbers that the lowest four bits stand for: an int4 less 8, and twice an e2m1.
inline Vec nibble_value(UVec x) {
  return _mm512_permutexvar_ps(x, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec e2m1_value(UVec x) {
  return _mm512_permutexvar_ps(x, _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
}

inline void transpose4(UVec& a, UVec& b, UVec& c, UVec& d) {
  __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b);
  __m512i cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
  a = _mm512_unpacklo_epi64(ab0, cd0), b = _mm512_unpackhi_epi64(ab0, cd0);
  c = _mm512_unpacklo_epi64(ab1, cd1), d = _mm512_unpackhi_epi64(ab1, cd1);
}

// For sums of integers, as in simd_avx2.h.
inline UVec widen_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline UVec uset64(int64_t x) { return _mm512_set1_epi64(x); }
inline UVec sum_pairs(UVec a, UVec b) { return _mm512_madd_epi16(a, b); }
#if defined(__AVX512VNNI__)
inline UVec sum_bytes(UVec sum, UVec codes, UVec x) { return _mm512_dpbusd_epi32(sum, codes, x); }
#endif

inline UVec counter_order() {
  return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

}  // namespace
}  // namespace octavo
