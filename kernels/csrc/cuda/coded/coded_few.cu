// Products of one to eight rows with weights of codes: out = x weight^T, on every chip from 80 on.
//
// As in linear_row.cu every warp is on its own until the sums are added: it has some bricks of the weights (codes.cuh), a ring
// of copies of them in shared memory that it fills (from before the previous kernel has ended: weights are never written) and
// drains itself. The weights' rows are the sixteen of an instruction and x its eight columns, so one row costs as much as
// eight, and a brick's codes become operands where they lie. The parts of a strip's depth are dealt out to the warps; a lane's
// codes are copied by that lane, scales by others of its warp.
//
// Sums of the codes are those of tensor cores, a group at a time, times the group's scale in float32: no weight is rounded.
// All sums are in an order that depends on the weight and the chip alone: a row's result feels neither the other rows nor
// their number.
#include <algorithm>

#include "coded/codes.cuh"
#include "linear/activation.cuh"
#include "linear/linear.cuh"
#include "linear/row_norm.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * 32;
constexpr int kTokens = 8;     // the columns of an instruction
constexpr int kSlots = 4;      // bricks of a warp's ring: so that two blocks fit, of products that follow each other
constexpr int kSumFloats = 4096;  // of warps, before they are added: 512 of a strip with eight rows, for each of sixteen parts
constexpr int kNormedWidth = kNormedAtOnce * kThreads * kNormVector;  // the widest row that is normalised on the way

// How a launch goes about it. A unit is a strip or, gated, two; `parts` warps share its depth, and kWarps / parts teams the
// units; sums of `batch` units are added at once.
struct Cut {
  int units, bricks, shift, groups;
  int parts, batch;
};

// Shared memory: the squares' sums, the warps' sums, the rings, x.
template <int kGroups>
struct Layout {
  static constexpr int kScales = kGroups * kStripRows * 4, kZeros = kGroups * kStripRows;
  static constexpr int kSlot = kBrickBytes + (kScales + kZeros + 127) / 128 * 128;
  static constexpr int kSumsAt = kMostSquares * 4, kRing = kSumsAt + kSumFloats * 4, kX = kRing + kWarps * kSlots * kSlot;
  static_assert(kRing % 128 == 0);
  // Rows of x end in zeros up to a whole brick; eight of them lie in different banks.
  __host__ __device__ static int pitch(int bricks, int depth) { return bricks * depth * 2 + 16; }
};

template <class T, Codes kKind, int kGroups>
struct Warp {
  using L = Layout<kGroups>;
  using U = Unpack<T, kKind>;
  static constexpr int kDepth = brick_depth(kKind), kSteps = brick_steps(kKind), kGroupSteps = kSteps / kGroups;

  const CodedArgs& a;
  const Cut& cut;
  char* shared;
  const int lane, warp;
  const int first, last;    // units of this block
  const int begin, bricks;  // of the depth, this warp's
  // What is copied next.
  int unit, side = 0, brick = 0, write = 0, read = 0;

  __device__ Warp(const CodedArgs& args, const Cut& how, char* memory)
      : a(args),
        cut(how),
        shared(memory),
        lane(threadIdx.x % 32),
        warp(__shfl_sync(~0u, threadIdx.x / 32, 0)),
        first(int(int64_t(how.units) * blockIdx.x / gridDim.x)),
        last(int(int64_t(how.units) * (blockIdx.x + 1) / gridDim.x)),
        begin(how.bricks * (warp % how.parts) / how.parts),
        bricks(how.bricks * (warp % how.parts + 1) / how.parts - begin),
        unit(bricks > 0 ? first + warp / how.parts : last) {}

  __device__ int sides() const { return a.gated ? 2 : 1; }
  __device__ int teams() const { return kWarps / cut.parts; }
  __device__ float* sums() const { return reinterpret_cast<float*>(shared + L::kSumsAt); }
  __device__ char* slot(int i) const { return shared + L::kRing + (warp * kSlots + i) * L::kSlot; }
  __device__ int pitch() const { return L::pitch(cut.bricks, kDepth); }

  // Brings the next brick of this warp, with its scales and zeros, into the slot that is free. What is copied or not, it is
  // one more group of copies.
  __device__ void feed() {
    if (unit < last) {
      const int64_t strip = unit + side * cut.units;
      const int at = begin + brick, group = kGroups > 1 ? at * kGroups : at >> cut.shift;
      const uint32_t to = shared_address(slot(write));
      const char* codes = static_cast<const char*>(a.matrix.codes) + (strip * cut.bricks + at) * kBrickBytes + lane * 16;
      copy16_once(to + lane * 16, codes), copy16_once(to + 512 + lane * 16, codes + 512);
      const int64_t of_group = (strip * cut.groups + group) * kStripRows;
      if (lane < L::kScales / 16) copy16(to + kBrickBytes + lane * 16, a.matrix.scales + of_group + lane * 4);
      if (a.matrix.zeros && lane < kGroups)
        copy16(to + kBrickBytes + L::kScales + lane * 16, a.matrix.zeros + of_group + lane * 16);
      if (++brick == bricks) {
        brick = 0;
        if (++side == sides()) side = 0, unit += teams();
      }
    }
    commit_copies();
    if (++write == kSlots) write = 0;
  }

  // All threads: x into shared memory, behind its norm where there is one.
  __device__ void load_norm() const {
    uint4* to = reinterpret_cast<uint4*>(shared + L::kX);
    for (int v = threadIdx.x; a.norm && v < a.depth / kNormVector; v += kThreads) to[v] = static_cast<const uint4*>(a.norm)[v];
  }
  __device__ void take_x() const {
    const int vectors = a.depth / kNormVector, padded = cut.bricks * kDepth / kNormVector;
    const auto row_at = [&](int row) { return reinterpret_cast<uint4*>(shared + L::kX + row * pitch()); };
    if (a.norm)
      take_normed_row<T, kThreads>(static_cast<const uint4*>(a.x), row_at(0), reinterpret_cast<float*>(shared), vectors, a,
                                   lane, warp);
#pragma unroll 1
    for (int row = 0; row < a.rows; ++row) {
      const uint4* from = reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + row * a.x_stride);
      for (int v = a.norm ? vectors + int(threadIdx.x) : int(threadIdx.x); v < padded; v += kThreads)
        row_at(row)[v] = v < vectors ? __ldcg(from + v) : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
  }

  // Adds to a lane's sums (rows lane / 4 and + 8 of the strip, with rows lane % 4 * 2 + {0, 1} of x) what a brick has.
  // `x`: where this lane's row of x, for ldmatrix, has the brick's depth.
  __device__ void multiply(const char* from, uint32_t x, float (&sums)[4]) const {
    const uint4* codes = reinterpret_cast<const uint4*>(from) + lane;
    const float* scales = reinterpret_cast<const float*>(from + kBrickBytes) + lane / 4;
    const uint8_t* zeros = reinterpret_cast<const uint8_t*>(from + kBrickBytes + L::kScales) + lane / 4;
    const bool has_zeros = a.matrix.zeros != nullptr;
    uint32_t words[4], b[4];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const float scale[2] = {scales[g * kStripRows], scales[g * kStripRows + 8]};
      uint32_t middle[2] = {U::zero(), U::zero()};
      if (!is_float(kKind) && has_zeros)
        middle[0] = U::zero(zeros[g * kStripRows]), middle[1] = U::zero(zeros[g * kStripRows + 8]);
      float even[4] = {}, odd[4] = {};  // two chains, so that products do not wait for each other
#pragma unroll
      for (int i = 0; i < kGroupSteps; ++i) {
        const int step = g * kGroupSteps + i;
        if (step % (kSteps / 2) == 0) {
          const uint4 raw = codes[step / (kSteps / 2) * 32];
          words[0] = raw.x, words[1] = raw.y, words[2] = raw.z, words[3] = raw.w;
        }
        if (step % 2 == 0) ldmatrix(b, x + step * kStepDepth * 2);
        uint32_t operand[4];
        U::step(words + step % (kSteps / 2) * step_words(kKind), middle[0], middle[1], operand);
        mma<T>(i % 2 ? odd : even, operand, b[step % 2 * 2], b[step % 2 * 2 + 1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[i] = __fmaf_rn(kGroupSteps > 1 ? even[i] + odd[i] : even[i], scale[i / 2], sums[i]);
    }
  }

  // Sums of this warp's part of a strip: [strip of the batch][part][row of x][16].
  __device__ void share(int strip, const float (&mine)[4]) const {
    float* to = sums() + ((strip * cut.parts + warp % cut.parts) * a.rows + lane % 4 * 2) * kStripRows + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (lane % 4 * 2 + i % 2 < a.rows) to[i % 2 * kStripRows + i / 2 * 8] = mine[i];
  }

  __device__ float total(int strip, int row, int column) const {
    const float* from = sums() + (strip * cut.parts * a.rows + row) * kStripRows + column;
    float sum = from[0];
    for (int p = 1; p < cut.parts; ++p) sum += from[p * a.rows * kStripRows];
    return sum;
  }

  // Of the results of a batch of units, the one of this number: its row of x, its unit and its column there.
  struct Result {
    int row, unit, in_strip, column;
  };
  __device__ Result result(int begin, int i) const {
    const int in_strip = i % kStripRows, row = i / kStripRows % a.rows, unit = i / kStripRows / a.rows;
    return {row, unit, in_strip, (begin + unit) * kStripRows + in_strip};
  }
  __device__ int columns() const { return a.columns / sides(); }
  __device__ float addend(const Result& r) const {
    if (!a.residual || r.column >= columns()) return 0.0f;
    const unsigned short raw =
        __ldcg(static_cast<const unsigned short*>(a.residual) + r.row * a.residual_stride + r.column);
    return to_float(reinterpret_cast<const T&>(raw));
  }
  __device__ float biased(float sum, int column) const {
    return a.bias ? sum + to_float(static_cast<const T*>(a.bias)[column]) : sum;
  }

  // All threads: adds up what the warps have of the units from `begin` to `end`, and stores it. The projections of a gate are
  // rounded as if they had been stored. `early`: the addend of the first batch's result of this thread's number.
  __device__ void finish(int begin, int end, float early) const {
    const int count = (end - begin) * a.rows * kStripRows;
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const Result r = result(begin, i);
      if (r.column >= columns()) continue;
      T* out = static_cast<T*>(a.out) + r.row * a.out_stride + r.column;
      float sum = biased(total(r.unit * sides(), r.row, r.in_strip), r.column);
      if (a.gated) {
        const float up = biased(total(r.unit * 2 + 1, r.row, r.in_strip), columns() + r.column);
        sum = activated(a.activation, to_float(from_float<T>(sum))) * to_float(from_float<T>(up));
      } else if (a.residual) {
        sum += begin == first && i == int(threadIdx.x) ? early : addend(r);
      }
      *out = from_float<T>(sum);
    }
  }

  __device__ void compute(float early) {
    // Rows of x that are not there are the last one's again: columns of a product do not feel each other.
    const uint32_t row = shared_address(shared + L::kX) + min(lane % 8, a.rows - 1) * pitch() + lane / 8 * 16;
#pragma unroll 1
    for (int from = first; from < last; from += cut.batch) {
      const int end = min(from + cut.batch, last);
#pragma unroll 1
      for (int u = from + warp / cut.parts; u < end; u += teams()) {
#pragma unroll 1
        for (int s = 0; s < sides(); ++s) {
          float mine[4] = {};
#pragma unroll 1
          for (int i = 0; i < bricks; ++i) {
            wait_copies<kSlots - 1>();
            __syncwarp();  // other lanes' copies of scales are there
            multiply(slot(read), row + (begin + i) * kDepth * 2, mine);
            if (++read == kSlots) read = 0;
            __syncwarp();  // other lanes have read the scales
            feed();
          }
          share((u - from) * sides() + s, mine);
        }
      }
      __syncthreads();
      finish(from, end, early);
      if (end < last) __syncthreads();
    }
  }

  __device__ void run() {
    for (int i = 0; i < kSlots; ++i) feed();
    load_norm();
    wait_for_previous_kernel();
    launch_next_kernel();
    float early = 0.0f;
    if (!a.gated && int(threadIdx.x) < (min(first + cut.batch, last) - first) * a.rows * kStripRows)
      early = addend(result(first, threadIdx.x));
    take_x();
    compute(early);
  }
};

template <class T, Codes kKind, int kGroups>
__global__ void __launch_bounds__(kThreads, kGroups == 1 ? 2 : 1)  // several groups take a few registers more
    coded_few_kernel(const __grid_constant__ CodedArgs a, const __grid_constant__ Cut cut) {
  extern __shared__ __align__(128) char shared[];
  Warp<T, kKind, kGroups>(a, cut, shared).run();
}

// Shares out units to the device's multiprocessors, and a block's units and their depth to its warps, so that the warp with
// the most bricks has as few as can be; of equal ways that with the most parts, whose warps read the longest stretches. Parts
// are the same with a gate and without one, and so are the bits of a product.
Cut cut_for(const CodedArgs& a, const CodedSizes& sizes, const Device& device) {
  const int sides = a.gated ? 2 : 1, own = units(sizes.strips, std::min(device.multiprocessors, sizes.strips));
  Cut best{sizes.strips / sides, sizes.bricks, sizes.grouping.shift, sizes.groups, 0, 0};
  int least = 0;
  for (int parts = kWarps; parts >= 1; parts /= 2) {
    const int most = units(own, kWarps / parts) * units(sizes.bricks, parts);
    if (best.parts == 0 || most < least) best.parts = parts, least = most;
  }
  const int teams = kWarps / best.parts, fit = kSumFloats / (best.parts * sides * a.rows * kStripRows);
  best.batch = fit / teams * teams;
  return best;
}

template <class T, Codes kKind, int kGroups>
cudaError_t launch(const CodedArgs& a, const CodedSizes& sizes, const Device& device, cudaStream_t stream) {
  const Cut cut = cut_for(a, sizes, device);
  const int grid = std::min(device.multiprocessors, cut.units);
  const int bytes = Layout<kGroups>::kX + a.rows * Layout<kGroups>::pitch(sizes.bricks, brick_depth(kKind));
  if (bytes > device.shared_per_block) return cudaErrorNotSupported;
  return launch_after(coded_few_kernel<T, kKind, kGroups>, {dim3(grid), kThreads, bytes}, stream, a, cut);
}

}  // namespace

cudaError_t coded_few(const CodedArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  const CodedSizes sizes = sizes_of(a.matrix);
  const bool halves = !a.gated || a.columns % (2 * kStripRows) == 0;
  if (device.major < 8 || a.rows < 1 || a.rows > kTokens || a.depth < 1 || a.depth % kNormVector != 0 || a.columns < 1 ||
      !halves || !aligned(a.x, a.rows > 1 ? a.x_stride : 0) || !aligned(a.norm, 0) ||
      (a.norm && (a.rows > 1 || a.depth > kNormedWidth)))
    return cudaErrorInvalidValue;
  return with_half(a.dtype, [&](auto tag) {
    return with_codes(a.matrix.kind, sizes.grouping.of_brick, [&](auto kind, auto groups) {
      return launch<decltype(tag), decltype(kind)::value, decltype(groups)::value>(a, sizes, device, stream);
    });
  });
}

}  // namespace octavo
