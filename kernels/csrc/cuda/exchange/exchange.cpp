// CUDA Runtime API, "Interprocess Communication" in Device Management.
#include "exchange/exchange.h"

#include <cuda_runtime.h>

#include <cstring>
#include <stdexcept>

#include "device/current.h"

namespace octavo {

namespace {

void check(const std::string& what, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would report it
  throw std::runtime_error(what + ": " + cudaGetErrorString(error));
}

// A handle of this process's memory, as bytes for the others.
struct Handle {
  char format[16];
  int rank, ranks, multiprocessors;
  int64_t slot_bytes, part_bytes;
  char bus_id[32];  // the GPU, by a name that is the same in all processes
  cudaIpcMemHandle_t memory;
};
constexpr char kFormat[16] = "octavo exchange";

int multiprocessors_of(int device) {
  int count = 0;
  check("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// Opens what another rank's GPU allotted, for kernels of `device`.
char* open(const Handle& handle, int device) {
  const std::string whose = "the GPU of rank " + std::to_string(handle.rank) + " (" + handle.bus_id + ")";
  int other, reaches = 1;
  check(whose + " must be visible to all ranks", cudaDeviceGetByPCIBusId(&other, handle.bus_id));
  if (other != device) check("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&reaches, device, other));
  if (!reaches) throw std::runtime_error(whose + " is not reached from GPU " + std::to_string(device));
  void* memory = nullptr;
  check("the memory of " + whose + ", which processes share that are in one IPC namespace and one PID namespace",
        cudaIpcOpenMemHandle(&memory, handle.memory, cudaIpcMemLazyEnablePeerAccess));
  return static_cast<char*>(memory);
}

}  // namespace

Exchange::Exchange(int rank, int ranks, int device, int64_t slot_bytes, int64_t part_bytes)
    : device_(device), part_bytes_(part_bytes) {
  peers_.rank = rank, peers_.ranks = ranks, peers_.slot_bytes = slot_bytes;
  const Current current(device);
  try {
    allot();
  } catch (...) {
    release();
    throw;
  }
}

Exchange::~Exchange() { release(); }

void Exchange::allot() {
  const int64_t slots = 2 * peers_.ranks * peers_.slot_bytes, all = part_at(peers_.ranks, peers_.slot_bytes) + part_bytes_;
  peers_.blocks = multiprocessors_of(device_);
  void *memory = nullptr, *watch = nullptr;
  check(std::to_string(all >> 20) + " MiB of the GPU's memory", cudaMalloc(&memory, size_t(all)));
  peers_.memory[peers_.rank] = own_ = static_cast<char*>(memory);
  check("pinned memory", cudaHostAlloc(&watch, sizeof(Watch), cudaHostAllocMapped));
  peers_.watch = static_cast<Watch*>(watch);
  *peers_.watch = {};
  check("cudaMemset", cudaMemset(own_, 0, kSlotsAt));
  const std::vector<uint32_t> gaps(size_t(slots) / sizeof(uint32_t), kGap);
  check("cudaMemcpy", cudaMemcpy(own_ + kSlotsAt, gaps.data(), size_t(slots), cudaMemcpyHostToDevice));
  check("cudaDeviceSynchronize", cudaDeviceSynchronize());  // another rank writes there as soon as it has the handle
}

std::string Exchange::handle() const {
  const Current current(device_);
  Handle handle{};
  std::memcpy(handle.format, kFormat, sizeof(kFormat));
  handle.rank = peers_.rank, handle.ranks = peers_.ranks, handle.multiprocessors = multiprocessors_of(device_);
  handle.slot_bytes = peers_.slot_bytes, handle.part_bytes = part_bytes_;
  check("cudaDeviceGetPCIBusId", cudaDeviceGetPCIBusId(handle.bus_id, sizeof(handle.bus_id), device_));
  check("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle.memory, own_));
  return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
}

void Exchange::connect(const std::vector<std::string>& handles) {
  const Current current(device_);
  if (connected_) throw std::runtime_error("the ranks are connected already");
  if (int(handles.size()) != peers_.ranks)
    throw std::runtime_error("there are " + std::to_string(handles.size()) + " handles for " + std::to_string(peers_.ranks) +
                             " ranks");
  for (int rank = 0; rank < peers_.ranks; ++rank) {
    Handle handle{};
    const std::string& bytes = handles[size_t(rank)];
    if (bytes.size() == sizeof(handle)) std::memcpy(&handle, bytes.data(), sizeof(handle));
    if (std::memcmp(handle.format, kFormat, sizeof(kFormat)) != 0 || handle.rank != rank || handle.ranks != peers_.ranks ||
        handle.slot_bytes != peers_.slot_bytes || handle.part_bytes != part_bytes_)
      throw std::runtime_error("the handle in the place of rank " + std::to_string(rank) +
                               " is not of that rank, or of another version or size of exchange");
    peers_.blocks = std::min(peers_.blocks, handle.multiprocessors);
    if (rank != peers_.rank && !peers_.memory[rank]) peers_.memory[rank] = open(handle, device_);
  }
  connected_ = true;
}

const Peers& Exchange::peers() const {
  if (!connected_) throw std::runtime_error("the exchange is not connected to the other ranks");
  return peers_;
}

int Exchange::blocks(int64_t row_bytes) const {
  return blocks_at_once(peers_, threads_of(int(std::min<int64_t>(kRowVectors, std::max<int64_t>(1, row_bytes / 16)))));
}

void Exchange::abort() {
  if (peers_.watch) __atomic_store_n(&peers_.watch->aborted, 1u, __ATOMIC_RELAXED);
}

bool Exchange::lost() const { return peers_.watch && __atomic_load_n(&peers_.watch->lost, __ATOMIC_RELAXED) != 0; }

void Exchange::close() { release(); }

// At the end of a process the driver may be gone already, and everything with it: nothing here asks what CUDA says.
void Exchange::release() noexcept {
  const Current current(device_);
  connected_ = false;
  if (own_) cudaDeviceSynchronize();
  for (int rank = 0; rank < peers_.ranks; ++rank)
    if (rank != peers_.rank && peers_.memory[rank]) cudaIpcCloseMemHandle(peers_.memory[rank]);
  if (own_) cudaFree(own_);
  if (peers_.watch) cudaFreeHost(peers_.watch);
  std::memset(peers_.memory, 0, sizeof(peers_.memory));
  own_ = nullptr, peers_.watch = nullptr;
  cudaGetLastError();
}

}  // namespace octavo
