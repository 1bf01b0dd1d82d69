// Arguments of sums and gathers over several GPUs, and how the memory lies that each of them allots for that.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "operands.h"

namespace octavo {

inline constexpr int kMostRanks = 8;
inline constexpr int kMostMeeting = 512;    // blocks of a launch that meet those of other ranks
inline constexpr int kRowVectors = 2048;    // of 16 bytes, at most
inline constexpr int kGatherThreads = 256;  // of a block

// The numbers are those of octavo_kernels/exchange/gpus.py, which decides.
enum class Way : int { push = 0, pull = 1, shared_pull = 2 };

// On the host, mapped: what ends all waits, and what tells that one was ended.
struct Watch {
  uint32_t aborted, lost;
};

// At the beginning of the memory that a rank allots; only its own kernels touch it.
struct Counts {
  uint64_t calls;    // that have ended: before a call the same number on all ranks
  uint32_t arrived;  // blocks of the call under way that know it
};

// The ranks as one of them sees them. Of each: counts, flags [kMostMeeting][kMostRanks], slots [2][ranks] for what the
// others push, this rank's part of what is pulled.
struct Peers {
  int rank, ranks;
  int blocks;  // of 1,024 threads that run at once on every rank
  int64_t slot_bytes;
  char* memory[kMostRanks];
  Watch* watch;
};
inline constexpr int64_t kFlagsAt = 256;
inline constexpr int64_t kSlotsAt = kFlagsAt + int64_t(kMostMeeting) * kMostRanks * sizeof(uint64_t);
inline int64_t part_at(int ranks, int64_t slot_bytes) { return (kSlotsAt + 2 * ranks * slot_bytes + 255) / 256 * 256; }

// A word that has not come. In what is pushed no word is like it: elements that are -0 go as +0.
inline constexpr uint32_t kGap = 0x80000000u;

struct ExchangeAddArgs {
  Peers peers;
  Dtype dtype;
  const void* addend;  // to be pulled: in the part
  int64_t addend_stride;
  const void* residual;  // null: none
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
  const void* weight;  // null: no norm
  float eps, offset;
  void* normed;
  int64_t normed_stride;
  int64_t rows;
  int columns;
};

struct ExchangeGatherArgs {
  Peers peers;
  const void* mine;
  void* part;  // where the other ranks find `mine`, if that is not where it lies already; pulled only
  void* out;
  int64_t bytes;
};

// A row is summed by one block, each of whose threads has one or two of its vectors. Blocks of at most 1,024 threads in all
// share a multiprocessor, whatever its kind, so those that wait for other ranks are all there.
inline int held_of(int vectors) { return vectors <= 1024 ? 1 : 2; }
inline int threads_of(int vectors) { return (vectors + held_of(vectors) * 32 - 1) / (held_of(vectors) * 32) * 32; }
inline int blocks_at_once(const Peers& peers, int threads) { return peers.blocks * std::min(16, 1024 / threads); }

cudaError_t push_add(const ExchangeAddArgs&, cudaStream_t);
cudaError_t pull_add(const ExchangeAddArgs&, bool shared_out, cudaStream_t);
cudaError_t push_gather(const ExchangeGatherArgs&, cudaStream_t);
cudaError_t pull_gather(const ExchangeGatherArgs&, cudaStream_t);

}  // namespace octavo
