// CUDA's names in kernels, for AMD's compiler. A warp of the kernels is 32 lanes, be it all of a wave or one of its halves:
// every exchange stays within 32. `__syncthreads` counts waves, not warps: all of a block's warps come to the same one.
#pragma once

#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

#include <type_traits>

#include "hip/floats.h"
#include "hip/runtime.h"

#define __grid_constant__
// HIP's second parameter is waves of a SIMD, not blocks of a multiprocessor.
#undef __launch_bounds__
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))

struct __nv_bfloat16 {
  uint16_t bits;
};
__device__ inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {octavo::bf16_bits(x)}; }
__device__ inline float __bfloat162float(__nv_bfloat16 x) { return octavo::float_of_bf16(x.bits); }

enum __nv_saturation_t { __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3 };
__device__ inline uint8_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t, __nv_fp8_interpretation_t) {
  return octavo::f8_code(x);
}
__device__ inline uint16_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t, __nv_fp8_interpretation_t) {
  return uint16_t(octavo::f8_code(x.x) | octavo::f8_code(x.y) << 8);
}
__device__ inline __half_raw __nv_cvt_fp8_to_halfraw(uint8_t code, __nv_fp8_interpretation_t) {
  return __half_raw(__float2half_rn(octavo::float_of_f8(code)));
}

namespace octavo {

// Shuffles of the warp; masks name all of its lanes. In this namespace they hide HIP's, whose masks have 64 bits.
constexpr int kWarp = 32;
template <class V>
__device__ inline V __shfl_sync(unsigned, V value, int lane) {
  return ::__shfl(value, lane, kWarp);
}
template <class V>
__device__ inline V __shfl_xor_sync(unsigned, V value, int mask) {
  return ::__shfl_xor(value, mask, kWarp);
}
template <class V>
__device__ inline V __shfl_up_sync(unsigned, V value, int step) {
  return ::__shfl_up(value, step, kWarp);
}
__device__ inline unsigned __ballot_sync(unsigned, bool is_set) {
  return unsigned(::__ballot(is_set) >> (::__lane_id() & kWarp));
}
__device__ inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(~0u, value, step));
  return value;
}
// Lanes run in step: the compiler alone must keep memory's order.
__device__ inline void __syncwarp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// Addresses of shared memory have 32 bits; the compiler looks at this for the host, too, where they do not.
using SharedByte = __attribute__((address_space(3))) char;
using SharedPlace = std::conditional_t<sizeof(SharedByte*) == 4, uint32_t, uint64_t>;
__device__ inline size_t __cvta_generic_to_shared(const void* p) { return reinterpret_cast<SharedPlace>((SharedByte*)(p)); }
__device__ inline void* __cvta_shared_to_generic(size_t address) { return (void*)((SharedByte*)(SharedPlace(address))); }

__device__ inline void __trap() { __builtin_trap(); }

// HIP's is the chip's approximation.
__device__ inline float __frcp_rn(float x) { return 1.0f / x; }

// Caches are the compiler's business, but for what the host writes.
template <class V>
__device__ inline V __ldcg(const V* p) {
  return *p;
}
template <class V>
__device__ inline V __ldcs(const V* p) {
  return *p;
}
template <class V>
__device__ inline void __stcs(V* p, const V& value) {
  *p = value;
}
__device__ inline int32_t __ldcv(const int32_t* p) { return *static_cast<const volatile int32_t*>(p); }

}  // namespace octavo
