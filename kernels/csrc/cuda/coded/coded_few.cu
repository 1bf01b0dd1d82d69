// Products of one to eight rows with weights of codes: out = x weight^T.
//
// The weights' rows are the sixteen of a tensor core instruction and x's its eight columns, so one row costs as much as
// eight. x lies in shared memory; weights come straight into the registers of the lanes that multiply them, some bricks ahead
// (codes.cuh; from before the previous kernel has ended: weights are never written). Every warp is on its own until the sums
// are added: an item of its work is a unit, two strips, which share what is read of x, with a part of the depth. Blocks of a
// cluster share the depth, so that x fits.
//
// Sums of the codes are those of tensor cores, a group at a time, times the group's scale in float32: no weight is rounded.
// All sums are in an order that depends on the weight and the chip alone: a row's result feels neither the other rows nor their
// number.
#include <algorithm>

#include "coded/codes.cuh"
#include "coded/store.cuh"
#include "linear/linear.cuh"
#include "linear/row_norm.cuh"

namespace octavo {
namespace {

constexpr int kStrips = 2, kUnitColumns = kStrips * kStripRows;
constexpr int kPitch = kUnitColumns + 4;   // floats between the sums of two rows of x, against bank conflicts
constexpr int kQuads = kUnitColumns / 4;   // of a unit's sums of a row
static_assert(kQuads == 8);
constexpr int kMostRows = 8;
constexpr int kNormedWidth = 8192;         // of the widest row that is normalised on the way
constexpr int kSquares = kMostSquares * 4;                      // bytes in front of x

// How a launch goes about it. 1 << `part_bits` warps share a unit's depth in a block; the sums of `batch` units are added at
// once.
struct Cut {
  int units, bricks, shift, groups;  // units: two strips, side by side or, gated, of both factors
  int cluster, part_bits, batch;
  __host__ __device__ int parts() const { return 1 << part_bits; }
};

// Bytes of shared memory: of a row of x, which ends in zeros up to a whole brick (eight of them lie in different banks), and of
// an item's sums.
__host__ __device__ constexpr int row_bytes(int bricks, int brick_depth) { return bricks * brick_depth * 2 + 16; }
constexpr int kItemBytes = kMostRows * kPitch * 4;
// As many as there are registers for.
template <int kGroups>
constexpr int kWarps = kGroups > 2 ? 8 : 12;

// A lane's of a brick of both strips, as it comes from memory.
template <int kGroups>
struct Brick {
  static constexpr int kScales = kGroups <= 2 ? 1 : kGroups / 2;  // floats of a lane
  uint4 codes[kStrips][2];
  float scales[kStrips][kScales];
  uint32_t zeros[kStrips];
};

template <class T, Codes kKind, int kGroups>
struct Warp {
  using U = Unpack<T, kKind>;
  using B = Brick<kGroups>;
  static constexpr int kDepth = brick_depth(kKind), kSteps = brick_steps(kKind), kGroupSteps = kSteps / kGroups;
  static constexpr int kWarps = octavo::kWarps<kGroups>, kThreads = kWarps * 32;
  // Bricks of each strip that are on their way.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr int kAhead = is_float(kKind) && kGroups == 4 ? 1 : 2;  // code for older chips takes more registers
#else
  static constexpr int kAhead = kGroups > 1 ? 2 : 3;
#endif
  static constexpr int kAtOnce = (kNormedWidth / kNormVector + kThreads - 1) / kThreads;  // vectors of a row that a thread normalises
  static constexpr int kChains = kGroups <= 2 ? 2 : 1;  // of products that do not wait for each other
  using Sums = float[kStrips][4];

  const CodedArgs& a;
  const Cut& cut;
  char* const shared;
  const int lane, warp, rank;
  const int first, last;    // units of this cluster
  const int begin, bricks;  // of the depth, this block's

  // The next to bring: first unit of a batch, item in it, brick of the block's, and where the item's end. Where this lane's
  // of a strip's codes, scales and zeros begin, and how far the other strip's are behind them.
  struct Place {
    int batch, item, brick, end;
    const char* codes;
    const float* scales;
    const uint8_t* zeros;
    int64_t other_codes, other_scales;
  } next;

  __device__ Warp(const CodedArgs& args, const Cut& how, char* memory)
      : a(args),
        cut(how),
        shared(memory),
        lane(threadIdx.x % 32),
        warp(__shfl_sync(~0u, threadIdx.x / 32, 0)),
        rank(blockIdx.x % how.cluster),
        first(unit_at(blockIdx.x / how.cluster)),
        last(unit_at(blockIdx.x / how.cluster + 1)),
        begin(how.bricks * rank / how.cluster),
        bricks(how.bricks * (rank + 1) / how.cluster - begin) {
    next.batch = first, next.item = warp;
    settle();
  }

  __device__ int unit_at(int cluster) const { return int(int64_t(cut.units) * cluster / (gridDim.x / cut.cluster)); }
  __device__ int units_of(int batch) const { return min(cut.batch, last - batch); }
  __device__ int part_of(int item) const { return item & (cut.parts() - 1); }
  __device__ int part_at(int part) const { return bricks * part >> cut.part_bits; }
  __device__ int strips() const { return (a.matrix.columns + kStripRows - 1) / kStripRows; }
  __device__ char* x_at() const { return shared + kSquares; }
  // Of one row with a norm all of it is there, of others what this block multiplies.
  __device__ int x_bricks() const { return a.norm ? cut.bricks : bricks; }
  __device__ int pitch() const { return row_bytes(x_bricks(), kDepth); }
  __device__ int sums_at() const {
    return kSquares + (a.norm ? 1 : a.rows) * row_bytes(a.norm ? cut.bricks : most_bricks(), kDepth);
  }
  __device__ int most_bricks() const { return (cut.bricks + cut.cluster - 1) / cut.cluster; }

  // Goes on to the next item that has bricks.
  __device__ void settle() {
    while (next.batch < last) {
      if (next.item >= units_of(next.batch) << cut.part_bits) {
        next.batch += cut.batch, next.item = warp;
        continue;
      }
      const int part = part_of(next.item), unit = next.batch + (next.item >> cut.part_bits);
      next.brick = part_at(part), next.end = part_at(part + 1);
      if (next.brick < next.end) return find(unit);
      next.item += kWarps;
    }
  }
  __device__ void find(int unit) {
    const int64_t strip = a.gated ? unit : unit * kStrips, of_scales = strip * cut.groups * kStripRows;
    next.codes = static_cast<const char*>(a.matrix.codes) + (strip * cut.bricks + begin + next.brick) * kBrickBytes + lane * 16;
    next.scales = a.matrix.scales + of_scales + lane % (kGroups * kStripRows);
    if (a.matrix.zeros) next.zeros = a.matrix.zeros + of_scales + lane % (kGroups * 4) * 4;
    // A strip that is not there is the one before it: its results are not stored.
    const int64_t apart = a.gated ? cut.units : strip + 1 < strips() ? 1 : 0;
    next.other_codes = apart * cut.bricks * kBrickBytes, next.other_scales = apart * cut.groups * kStripRows;
  }

  __device__ void bring(B& to) {
    if (next.batch >= last) return;
    const int at = begin + next.brick, group = kGroups > 1 ? at * kGroups : at >> cut.shift;
    const float* scales = next.scales + group * kStripRows;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const char* codes = next.codes + s * next.other_codes;
      to.codes[s][0] = load16_once(codes), to.codes[s][1] = load16_once(codes + 512);
#pragma unroll
      for (int i = 0; i < B::kScales; ++i) to.scales[s][i] = load_float(scales + s * next.other_scales + i * 32);
      if (!is_float(kKind) && a.matrix.zeros)
        to.zeros[s] = load_word(next.zeros + group * kStripRows + s * next.other_scales);
    }
    next.codes += kBrickBytes;
    if (++next.brick == next.end) next.item += kWarps, settle();
  }

  // Scale of group g of the brick, for the rows lane / 4 and + 8.
  __device__ float scale_of(const float (&scales)[B::kScales], int g, int half) const {
    const int at = g * kStripRows + half * 8 + lane / 4;
    return __shfl_sync(~0u, scales[g * kStripRows / 32], at % 32);
  }
  __device__ uint32_t zero_of(uint32_t zeros, int g, int half) const {
    const int at = g * kStripRows + half * 8 + lane / 4;
    return U::zero(__shfl_sync(~0u, zeros, at / 4) >> at % 4 * 8 & 255);
  }

  // All threads: x into shared memory, behind its norm where there is one.
  __device__ void load_norm() const {
    uint4* to = reinterpret_cast<uint4*>(x_at());
    for (int v = threadIdx.x; a.norm && v < a.depth / kNormVector; v += kThreads) to[v] = static_cast<const uint4*>(a.norm)[v];
  }
  __device__ void take_x() const {
    const int from = a.norm ? 0 : begin * kDepth, whole = x_bricks() * kDepth / kNormVector;
    const int vectors = min(whole, (a.depth - from) / kNormVector);
    if (a.norm)
      take_normed_row<T, kThreads, kAtOnce>(static_cast<const uint4*>(a.x), reinterpret_cast<uint4*>(x_at()),
                                            reinterpret_cast<float*>(shared), vectors, a, lane, warp);
#pragma unroll 1
    for (int row = 0; row < a.rows; ++row) {
      const uint4* source = reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + row * a.x_stride + from);
      char* to = x_at() + row * pitch();
      for (int v = a.norm ? vectors + int(threadIdx.x) : int(threadIdx.x); v < whole; v += kThreads) {
        if (v < vectors) copy16(shared_address(to) + v * 16, source + v);
        else reinterpret_cast<uint4*>(to)[v] = make_uint4(0, 0, 0, 0);
      }
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();
  }

  // Adds to a lane's sums (rows lane / 4 and + 8 of each strip, with rows lane % 4 * 2 + {0, 1} of x) what a brick has. `x`:
  // where this lane's row, for ldmatrix, has the brick's depth.
  __device__ void multiply(const B& brick, uint32_t x, Sums& sums) const {
    const bool has_zeros = !is_float(kKind) && a.matrix.zeros;
    uint32_t b[4];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float products[kStrips][kChains][4] = {};
      uint32_t middle[kStrips][2];
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) middle[s][half] = has_zeros ? zero_of(brick.zeros[s], g, half) : U::zero();
#pragma unroll
      for (int i = 0; i < kGroupSteps; ++i) {
        const int step = g * kGroupSteps + i;
        if (step % 2 == 0) ldmatrix(b, x + step * kStepDepth * 2);
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
          const uint4& raw = brick.codes[s][step / (kSteps / 2)];
          const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
          uint32_t operand[4];
          U::step(words + step % (kSteps / 2) * step_words(kKind), middle[s][0], middle[s][1], operand);
          mma<T>(products[s][i % kChains], operand, b[step % 2 * 2], b[step % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        const float scale[2] = {scale_of(brick.scales[s], g, 0), scale_of(brick.scales[s], g, 1)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float product = kChains == 1 ? products[s][0][i] : products[s][0][i] + products[s][kChains - 1][i];
          sums[s][i] = __fmaf_rn(product, scale[i / 2], sums[s][i]);
        }
      }
    }
  }

  // An item's sums, [row of x][column of the unit], where all threads of the cluster find them.
  __device__ void share(int item, const Sums& sums) const {
    float* to = reinterpret_cast<float*>(shared + sums_at() + item * kItemBytes) + lane % 4 * 2 * kPitch + lane / 4;
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i % 2 * kPitch + s * kStripRows + i / 2 * 8] = sums[s][i];
  }

  // Four columns of a unit of the batch, added up over parts and blocks, in their order; some loads at a time.
  __device__ float4 total(int unit, int row, int quad) const {
    const int of_unit = sums_at() + (row * kPitch + quad * 4) * 4 + (unit << cut.part_bits) * kItemBytes;
    const int terms = cut.cluster << cut.part_bits;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int from = 0; from < terms; from += 4) {
      float4 v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (from + i < terms) v[i] = term(of_unit + part_of(from + i) * kItemBytes, from + i >> cut.part_bits);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (from + i < terms) sum = from + i == 0 ? v[i] : plus(sum, v[i]);
    }
    return sum;
  }
  __device__ float4 term(int at, int block) const {
#if OCTAVO_CLUSTERS
    if (cut.cluster > 1) return load_of(block, shared_address(shared) + at);
#endif
    return *reinterpret_cast<const float4*>(shared + at);
  }
  __device__ static float4 plus(float4 x, float4 y) { return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w}; }
  __device__ void meet() const {
#if OCTAVO_CLUSTERS
    if (cut.cluster > 1) return cluster_meet();
#endif
    __syncthreads();
  }

  // This block's part of a batch's results: four columns of a row at a time, of the cluster's all an equal share.
  struct Result {
    int unit, row, quad, column;
  };
  __device__ int quad_bits() const { return a.gated ? 2 : 3; }
  __device__ Result result(int batch, int i) const {
    const int quad = i & ((1 << quad_bits()) - 1), unit = (i >> quad_bits()) / a.rows, row = (i >> quad_bits()) % a.rows;
    return {unit, row, quad, (batch + unit) * (a.gated ? kStripRows : kUnitColumns) + quad * 4};
  }
  struct Share {
    int begin, end;
  };
  __device__ Share share_of(int batch) const {
    const int all = units_of(batch) * a.rows << quad_bits();
    return {all * rank / cut.cluster, all * (rank + 1) / cut.cluster};
  }
  __device__ int columns() const { return a.gated ? a.columns / 2 : a.columns; }
  __device__ float4 addend(const Result& r) const {
    return r.column < columns() ? addends<T>(a, r.row, r.column) : float4{0.0f, 0.0f, 0.0f, 0.0f};
  }
  // `early`: what is added to this thread's first result of the first batch.
  __device__ void finish(int batch, const float4& early) const {
    const Share mine = share_of(batch);
#pragma unroll 1
    for (int i = mine.begin + threadIdx.x; i < mine.end; i += kThreads) {
      const Result r = result(batch, i);
      if (r.column >= columns()) continue;
      float4 other = early;
      if (a.gated) other = total(r.unit, r.row, kQuads / 2 + r.quad);
      else if (batch != first || i != mine.begin + int(threadIdx.x)) other = addend(r);
      store4<T>(a, r.row, r.column, total(r.unit, r.row, r.quad), other);
    }
  }

  // Bricks in turn: `kAhead` are in registers or on their way there.
  __device__ void compute(B (&ahead)[kAhead], const float4& early) {
    // Rows of x that are not there are the last one's again: columns of a product do not feel each other.
    const uint32_t x = shared_address(x_at()) + min(lane % 8, a.rows - 1) * pitch() + lane / 8 * 16 +
                       (a.norm ? begin * kDepth * 2 : 0);
    int turn = 0;
#pragma unroll 1
    for (int batch = first; batch < last; batch += cut.batch) {
#pragma unroll 1
      for (int item = warp; item < units_of(batch) << cut.part_bits; item += kWarps) {
        Sums sums = {};
        int at = part_at(part_of(item)), left = part_at(part_of(item) + 1) - at;
        at *= kDepth * 2;
        // Registers have no numbers that are known at run time: the turn is where this loop is entered.
        while (left > 0) {
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            if (i != turn || left == 0) continue;
            multiply(ahead[i], x + at, sums);
            bring(ahead[i]);
            at += kDepth * 2, --left, turn = (i + 1) % kAhead;
          }
        }
        share(item, sums);
      }
      meet();
      finish(batch, early);
      if (batch + cut.batch < last || cut.cluster > 1) meet();  // sums have been read
    }
  }

  __device__ void run() {
    B ahead[kAhead];
#pragma unroll
    for (B& brick : ahead) bring(brick);
    load_norm();
    wait_for_previous_kernel();
    launch_next_kernel();
    float4 early = {0.0f, 0.0f, 0.0f, 0.0f};
    const Share mine = share_of(first);
    if (!a.gated && first < last && mine.begin + int(threadIdx.x) < mine.end) early = addend(result(first, mine.begin + threadIdx.x));
    take_x();
    compute(ahead, early);
  }
};

template <class T, Codes kKind, int kGroups>
__global__ void __launch_bounds__(kWarps<kGroups> * 32)
    coded_few_kernel(const __grid_constant__ CodedArgs a, const __grid_constant__ Cut cut) {
  extern __shared__ __align__(128) char shared[];
  Warp<T, kKind, kGroups>(a, cut, shared).run();
}

// Clocks that parts of a launch take, fitted to measurements on an H200: what a brick of both strips keeps a quarter of a
// multiprocessor busy, what a warp alone needs for it, a meeting of a cluster of two and of more. Bytes a clock: from memory,
// through the L2, of another block's sums.
constexpr int kBusy = 260, kAlone = 800, kMeetingOfTwo = 1000, kMeeting = 4000;
constexpr int kFromMemory = 21, kFromL2 = 40, kFromBlock = 32;

struct Choice {
  Cut cut;
  int grid, bytes;
  int64_t clocks;
};

template <int kWarps>
bool consider(Choice& choice, const CodedArgs& a, int room, const Device& device) {
  Cut& cut = choice.cut;
  const int parts = cut.parts(), clusters = std::min(room, cut.units), most = units(cut.units, clusters);
  const int part = units(cut.bricks, cut.cluster), depth = brick_depth(a.matrix.kind);
  // One row with its norm takes less, and so do fewer rows: all of them are cut alike.
  const int x_bytes = kSquares + std::max(kMostRows * row_bytes(part, depth), row_bytes(cut.bricks, depth));
  const int fit = (device.shared_per_block - x_bytes) / (kItemBytes * parts);
  if (fit < 1) return false;
  cut.batch = std::min(most, fit);
  const int batches = units(most, cut.batch), items = cut.batch * parts, rest = items % kWarps;
  const auto clocks_of = [](int warps) { return warps == 0 ? 0 : std::max(kAlone, warps * kBusy / 4); };
  const int64_t all_items = items / kWarps * clocks_of(kWarps) + clocks_of(rest);
  const int64_t busy = batches * all_items * units(part, parts);
  const int meeting = cut.cluster == 2 ? kMeetingOfTwo : kMeeting;
  const int64_t read = int64_t(most) * part * kStrips * (kBrickBytes + kBrickBytes / 16) / kFromMemory;
  const int64_t shared_sums = cut.cluster == 1 ? 0 : int64_t(most) * parts * kItemBytes / kFromBlock + batches * meeting;
  choice.clocks = std::max(busy, read) + kMostRows * row_bytes(part, depth) / kFromL2 + shared_sums;
  choice.grid = clusters * cut.cluster;
  // Never two blocks on a multiprocessor: another would be left without one.
  const int alone = device.shared_per_multiprocessor / 2 + 1024;
  choice.bytes = std::min(std::max(x_bytes + cut.batch * parts * kItemBytes, alone), device.shared_per_block);
  return true;
}

template <class T, Codes kKind, int kGroups>
cudaError_t launch(const CodedArgs& a, const CodedSizes& sizes, const Device& device, cudaStream_t stream) {
  Choice best{};
  best.clocks = INT64_MAX;
  const int strips = a.gated ? sizes.strips / 2 : sizes.strips;
  const auto kernel = coded_few_kernel<T, kKind, kGroups>;
  for (int cluster = 1; cluster <= (device.major >= 9 ? kMostCluster : 1); cluster *= 2) {
    int room = device.multiprocessors;
    if (cluster > 1) {
      const Launch full{dim3(room / cluster * cluster), kWarps<kGroups> * 32, device.shared_per_block, cluster};
      if (cudaError_t error = clusters_at_once(kernel, full, room); error != cudaSuccess) return error;
    }
    for (int part_bits = 0; 1 << part_bits <= kWarps<kGroups> && room > 0; ++part_bits) {
      Choice choice{};
      choice.cut = {a.gated ? strips : units(strips, kStrips), sizes.bricks, sizes.grouping.shift, sizes.groups, cluster, part_bits, 0};
      if (consider<kWarps<kGroups>>(choice, a, room, device) && choice.clocks < best.clocks) best = choice;
    }
  }
  if (best.clocks == INT64_MAX) return cudaErrorNotSupported;
  const Launch how{dim3(best.grid), kWarps<kGroups> * 32, best.bytes, best.cut.cluster};
  return launch_after(kernel, how, stream, a, best.cut);
}

}  // namespace

cudaError_t coded_few(const CodedArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const CodedSizes sizes = sizes_of(a.matrix);
  const bool halves = !a.gated || a.columns % (2 * kStripRows) == 0;
  if (device.major < 8 || a.rows < 1 || a.rows > kMostRows || a.depth < 1 ||
      a.depth % kNormVector != 0 || a.columns < 1 || !halves || !aligned(a.x, a.rows > 1 ? a.x_stride : 0) ||
      !aligned(a.norm, 0) || (a.norm && (a.rows > 1 || a.depth > kNormedWidth)))
    return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    return with_codes(a.matrix.kind, sizes.grouping.of_brick, [&](auto kind, auto groups) {
      using T = decltype(tag);
      return launch<T, decltype(kind)::value, decltype(groups)::value>(a, sizes, device, stream);
    });
  });
}

}  // namespace octavo
