// CUDA Driver API, "Virtual Memory Management".
#include "cache/mapped_pool.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "device/current.h"

namespace octavo {

namespace {

// The driver's functions, found at run time: nothing here links to the driver.
template <class Function>
Function driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, 12020, cudaEnableDefault, &found);
  if (error != cudaSuccess || !function) throw std::runtime_error(std::string("the driver has no ") + name);
  return reinterpret_cast<Function>(function);
}

#define OCTAVO_DRIVER(name) driver<decltype(&name)>(#name)

void check(const std::string& what, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  OCTAVO_DRIVER(cuGetErrorString)(result, &text);
  throw std::runtime_error(what + ": " + (text ? text : "unknown error"));
}

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp where{};
  where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  where.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  where.location.id = device;
  return where;
}

// The node that is nearest to the device; the first where the system does not say.
CUmemAllocationProp on_host(int device) {
  int node = 0;
  check("cuDeviceGetAttribute", OCTAVO_DRIVER(cuDeviceGetAttribute)(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device));
  CUmemAllocationProp where{};
  where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  where.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  where.location.id = std::max(node, 0);
  return where;
}

}  // namespace

std::size_t MappedPool::granularity(int device) {
  const Current current(device);
  const auto ask = OCTAVO_DRIVER(cuMemGetAllocationGranularity);
  std::size_t largest = 0;
  for (const CUmemAllocationProp& where : {on_device(device), on_host(device)}) {
    std::size_t size = 0;
    check("cuMemGetAllocationGranularity", ask(&size, &where, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    largest = std::max(largest, size);
  }
  return largest;
}

MappedPool::MappedPool(int device, std::size_t device_bytes, std::size_t host_bytes)
    : device_(device), reserved_(device_bytes + host_bytes) {
  const Current current(device);
  check("cuMemAddressReserve", OCTAVO_DRIVER(cuMemAddressReserve)(&base_, reserved_, 0, 0, 0));
  try {
    map(device_bytes, on_device(device), "the GPU's");
    map(host_bytes, on_host(device), "pinned host");
    CUmemAccessDesc access{};
    access.location = on_device(device).location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check("cuMemSetAccess", OCTAVO_DRIVER(cuMemSetAccess)(base_, reserved_, &access, 1));
  } catch (...) {
    release();
    throw;
  }
}

MappedPool::~MappedPool() { release(); }

CUdeviceptr MappedPool::end() const { return std::accumulate(mapped_.begin(), mapped_.end(), base_); }

void MappedPool::map(std::size_t bytes, const CUmemAllocationProp& where, const char* whose) {
  CUmemGenericAllocationHandle memory;
  const std::string what = std::to_string(bytes >> 20) + " MiB of " + whose + " memory for the KV cache";
  check(what, OCTAVO_DRIVER(cuMemCreate)(&memory, bytes, &where, 0));
  const CUresult result = OCTAVO_DRIVER(cuMemMap)(end(), bytes, 0, memory, 0);
  OCTAVO_DRIVER(cuMemRelease)(memory);  // it lives as long as it is mapped
  check("cuMemMap", result);
  mapped_.push_back(bytes);
}

void MappedPool::release() noexcept try {
  const Current current(device_);
  cudaDeviceSynchronize();
  for (; !mapped_.empty(); mapped_.pop_back()) OCTAVO_DRIVER(cuMemUnmap)(end() - mapped_.back(), mapped_.back());
  OCTAVO_DRIVER(cuMemAddressFree)(base_, reserved_);
} catch (const std::runtime_error&) {
  // At the end of a process the driver may be gone already, and everything with it.
}

}  // namespace octavo
