// The device that a thread's calls are for.
#pragma once

#include <cuda_runtime_api.h>

namespace octavo {

// Makes a device, and its primary context, the current one for as long as it lives.
class Current {
 public:
  explicit Current(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
  }
  ~Current() { cudaSetDevice(before_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
};

}  // namespace octavo
