// Memory on the GPUs of one host that each rank's kernels write and read, and a rank's view of all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "exchange/args.h"

namespace octavo {

// Every member throws std::runtime_error with what CUDA says.
class Exchange {
 public:
  // `slot_bytes`: the most that is pushed, a multiple of 16; `part_bytes`: the most that is pulled.
  Exchange(int rank, int ranks, int device, int64_t slot_bytes, int64_t part_bytes);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Handle by which other processes open this rank's memory.
  std::string handle() const;
  void connect(const std::vector<std::string>& handles);
  // Waits for the device first.
  void close();

  // Arguments of kernels; before `connect` there are no other ranks to give.
  const Peers& peers() const;
  char* part() const { return own_ + part_at(peers_.ranks, peers_.slot_bytes); }
  // Rows of so many bytes that are summed at once.
  int blocks(int64_t row_bytes) const;

  void abort();
  bool lost() const;

 private:
  void allot();
  void release() noexcept;

  int device_;
  int64_t part_bytes_;
  bool connected_ = false;
  char* own_ = nullptr;
  Peers peers_{};
};

}  // namespace octavo
