// Words of shared memory, read and written where they stand in the code, and the number of a thread, read anew each time.
#pragma once

#include "device/common.cuh"

namespace octavo {

__device__ inline int load_one(uint32_t address) {
  int w;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w) : "r"(address) : "memory");
  return w;
}
__device__ inline int2 load_pair(uint32_t address) {
  int2 w;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w.x), "=r"(w.y) : "r"(address) : "memory");
  return w;
}
__device__ inline int4 load_four(uint32_t address) {
  int4 w;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "r"(address)
               : "memory");
  return w;
}
__device__ inline void store_pair(uint32_t address, int x, int y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}
__device__ inline void store_four(uint32_t address, int x, int y, int z, int w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ inline int read_thread() {
  int thread;
  asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
  return thread;
}

}  // namespace octavo
