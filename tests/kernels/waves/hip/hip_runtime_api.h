// HIP's runtime for a device that is the host, as far as the plain kernels' module calls it.
#pragma once

#include <cstddef>
#include <cstring>

enum hipError_t { hipSuccess, hipErrorInvalidValue, hipErrorNotSupported };
enum hipDeviceAttribute_t {
  hipDeviceAttributeMultiprocessorCount,
  hipDeviceAttributeMaxSharedMemoryPerMultiprocessor,
  hipDeviceAttributeMaxSharedMemoryPerBlock
};
enum hipFuncAttribute { hipFuncAttributeMaxDynamicSharedMemorySize };
enum hipMemcpyKind { hipMemcpyDefault };
using hipStream_t = struct Stream*;

inline const char* hipGetErrorString(hipError_t) { return "an error"; }
inline hipError_t hipGetLastError() { return hipSuccess; }
inline hipError_t hipGetDevice(int* device) { return *device = 0, hipSuccess; }
inline hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int) {
  return *value = attribute == hipDeviceAttributeMultiprocessorCount ? 3 : 65536, hipSuccess;
}
inline hipError_t hipFuncSetAttribute(const void*, hipFuncAttribute, int) { return hipSuccess; }
inline hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind, hipStream_t) {
  return std::memcpy(to, from, bytes), hipSuccess;
}
