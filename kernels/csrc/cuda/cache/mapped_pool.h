// Memory of a device and of its host under one range of addresses.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

// The first part lies on the device. The second lies on the host, pinned, and kernels read and write it over the link as
// they do the first: nothing but its speed tells them apart.
class MappedPool {
 public:
  // Both sizes are multiples of `granularity(device)`. Throws std::runtime_error with what the driver says.
  MappedPool(int device, std::size_t device_bytes, std::size_t host_bytes);
  // Waits for the device first.
  ~MappedPool();
  MappedPool(const MappedPool&) = delete;
  MappedPool& operator=(const MappedPool&) = delete;

  std::uintptr_t address() const { return base_; }

  // Size of both parts, in bytes.
  static std::size_t granularity(int device);

 private:
  CUdeviceptr end() const;
  void map(std::size_t bytes, const CUmemAllocationProp& where, const char* whose);
  void release() noexcept;

  int device_;
  std::size_t reserved_;
  CUdeviceptr base_ = 0;
  std::vector<std::size_t> mapped_;  // sizes of the parts, one behind the other
};

}  // namespace octavo
