// The primitives of `device/ptx.cuh` in plain C++, as far as the kernels of a plain engine take it. AMD's compiler reads it
// and nvcc, too: there it runs on any NVIDIA GPU.
#pragma once

#include "device/elements.cuh"

#define OCTAVO_BULK_COPY 0
#define OCTAVO_CLUSTERS 0
#define OCTAVO_UNEVEN 0
#define OCTAVO_WIDENS_F8 0

namespace octavo {

template <class T>
__device__ inline uint32_t pack(float low, float high) {
  static_assert(sizeof(T) == 2);
  const T pair[2] = {from_float<T>(low), from_float<T>(high)};
  return uint32_t(reinterpret_cast<const uint16_t&>(pair[0])) | uint32_t(reinterpret_cast<const uint16_t&>(pair[1])) << 16;
}

__device__ inline float fast_exp2(float x) { return exp2f(x); }
__device__ inline float fast_inverse(float x) { return 1.0f / x; }

// Shared memory by numbers of 32 bits.
__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__device__ inline void* shared_pointer(uint32_t address) { return __cvta_shared_to_generic(address); }
__device__ inline void clear16(uint32_t shared) { *static_cast<uint4*>(shared_pointer(shared)) = make_uint4(0, 0, 0, 0); }

// Copies that PTX would make behind the thread's back: here they are made when the thread waits for them or before.
__device__ inline void copy16(uint32_t shared, const void* global, bool valid = true) {
  *static_cast<uint4*>(shared_pointer(shared)) = valid ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
}
template <int kBytes>
__device__ inline void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  using Words = Elements<uint32_t, kBytes / 4>;
  *static_cast<Words*>(shared) = *static_cast<const Words*>(global);
}
__device__ inline void commit_copies() {}
template <int kPending>
__device__ inline void wait_copies() {}

__device__ inline void store_words(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  *static_cast<uint4*>(to) = make_uint4(a, b, c, d);
}
__device__ inline void store_words(void* to, uint32_t a, uint32_t b) { *static_cast<uint2*>(to) = make_uint2(a, b); }

// A kernel begins when the one before it has ended.
__device__ inline void launch_next_kernel() {}
__device__ inline void wait_for_previous_kernel() {}

// The compiler decides what stays in registers.
__device__ inline void hold(float&) {}
__device__ inline void hold(uint32_t&) {}
__device__ inline void hold(int64_t&) {}

}  // namespace octavo
