// Sums and gathers over GPUs as functions of a shared library: each GPU is a thread that calls them.
#include "device/peer.cuh"
#include "exchange/args.h"

using namespace octavo;

extern "C" {

struct Ranks {
  int rank, ranks, blocks;
  int64_t slot_bytes;
  char* memory[kMostRanks];
  Watch* watch;
};
struct Operands {
  int dtype, columns;
  int64_t rows;
  const void *addend, *residual, *weight;
  void *out, *normed;
  float eps, offset;
};

static Peers peers_of(const Ranks& r) {
  Peers peers{r.rank, r.ranks, r.blocks, r.slot_bytes, {}, r.watch};
  std::copy(r.memory, r.memory + kMostRanks, peers.memory);
  return peers;
}
static int ended(cudaError_t error) {
  emulator::arrive_all();
  return error;
}

// Where the part lies; the memory before it as a rank makes it.
int64_t prepare(char* memory, int ranks, int64_t slot_bytes) {
  const int64_t part = part_at(ranks, slot_bytes);
  if (!memory) return part;
  std::memset(memory, 0, kSlotsAt);
  for (int64_t at = kSlotsAt; at < kSlotsAt + 2 * ranks * slot_bytes; at += 4) std::memcpy(memory + at, &kGap, 4);
  return part;
}
void seed(unsigned number) { emulator::random_source.seed(number); }
void pass_time(uint64_t nanoseconds) { emulator::clock += nanoseconds; }

int add(const Ranks* r, const Operands* o, int way) {
  ExchangeAddArgs a{};
  a.peers = peers_of(*r), a.dtype = Dtype(o->dtype), a.rows = o->rows, a.columns = o->columns;
  a.addend = o->addend, a.residual = o->residual, a.out = o->out, a.weight = o->weight, a.normed = o->normed;
  a.addend_stride = a.residual_stride = a.out_stride = a.normed_stride = o->columns;
  a.eps = o->eps, a.offset = o->offset;
  return ended(Way(way) == Way::push ? push_add(a, nullptr) : pull_add(a, Way(way) == Way::shared_pull, nullptr));
}
int gather(const Ranks* r, const void* mine, void* part, void* out, int64_t bytes, int way) {
  const ExchangeGatherArgs a{peers_of(*r), mine, part, out, bytes};
  return ended(Way(way) == Way::push ? push_gather(a, nullptr) : pull_gather(a, nullptr));
}
}
