// Products of one row, which becomes codes on the way, with codes of eight bits: without tensor cores, for the decode step of a
// single sequence.
//
// row_of_weights.cuh says how weights flow. Every block normalises and quantises x for itself, which takes less time than a
// launch. Sums of integers are exact; those of floats are added up in an order that depends on the depth alone.
//
// Of a piece in blocks each lane holds the scale of one group, and has the product with x's ready when the piece comes. What
// a lane adds up of sixteen codes, which are of one group, is multiplied by it and added in float32: as in `wide`, but for the
// order, and for the bits that tensor cores drop within a group. So results are not those of `wide` to the bit.
#include "cache/args.h"
#include "cache/cells.cuh"
#include "linear/row_norm.cuh"
#include "linear/row_of_weights.cuh"
#include "w8a8/w8a8.cuh"

namespace octavo {
namespace {

constexpr int kVector = 16;                // codes of 16 bytes
constexpr int kStride = 4 * 32 * kVector;  // of the depth, what a warp multiplies at once: four vectors a lane
constexpr int kPiece = 4096;               // of a row, what a copy brings
constexpr int kElements = 8;               // of x, in 16 bytes
constexpr int kAtOnce = 4;                 // vectors of x that a thread holds
constexpr int kMostDepth = kAtOnce * kRowThreads * kElements, kMostNormed = 32 * 32 * kElements;

// Shared memory: barriers, what warps have of the whole of x, the lanes' sums, x, in blocks its scales, the rings.
constexpr int kSquaresAt = kSlotBarriers, kLargestAt = kSquaresAt + 32 * 4, kXAt = kLargestAt + 32 * 4 + kLaneSums;
__host__ __device__ inline int groups_of(int depth) { return (depth + kScaledDepth - 1) / kScaledDepth; }
__host__ __device__ inline int scales_at(int depth) { return kXAt + (depth * 2 + 127) / 128 * 128; }
__host__ __device__ inline int ring_at(int depth, bool in_blocks) {
  return scales_at(depth) + (in_blocks ? (groups_of(depth) * 4 + 127) / 128 * 128 : 0);
}
static_assert(kPiece <= 32 * kScaledDepth && kStride % kScaledDepth == 0);

#if OCTAVO_BULK_COPY

// x in shared memory, sixteen elements a vector, and the products with it. Integers: its codes.
struct Integers {
  using C = Int8;
  static constexpr bool kInBlocks = false;
  struct Vector {
    uint4 codes;
  };
  __device__ static Vector load(const char* x, int, int vector) {
    return {reinterpret_cast<const uint4*>(x)[vector]};
  }
  // Eight elements, the half of a vector.
  __device__ static void store(char* x, int, int half, uint32_t low, uint32_t high) {
    reinterpret_cast<uint2*>(x)[half] = make_uint2(low, high);
  }
  __device__ static void multiply(int& sum, const uint4& weights, const Vector& x) {
    sum = __dp4a(int(weights.x), int(x.codes.x), sum);
    sum = __dp4a(int(weights.y), int(x.codes.y), sum);
    sum = __dp4a(int(weights.z), int(x.codes.z), sum);
    sum = __dp4a(int(weights.w), int(x.codes.w), sum);
  }
  __device__ static float whole(int sum) { return __int2float_rn(sum); }
};
// Floats: a sixteenth of its codes as float16. A code's product with that is a float16, too: of eight bits, below 2^14 and a
// multiple of 2^-22. Four products are added up as such, rounded to eleven bits three times, which is less than tensor cores
// drop; the sums of four in float32. Both halves of all vectors lie in a row of their own, against bank conflicts.
template <bool in_blocks>
struct Floats {
  using C = Fp8;
  static constexpr bool kInBlocks = in_blocks;
  struct Vector {
    uint4 halves[2];
  };
  __device__ static uint4* row(char* x, int depth, int half) {
    return reinterpret_cast<uint4*>(x) + half * (depth / kVector);
  }
  __device__ static Vector load(char* x, int depth, int vector) {
    return {{row(x, depth, 0)[vector], row(x, depth, 1)[vector]}};
  }
  __device__ static __half2 pair(uint32_t word) { return reinterpret_cast<const __half2&>(word); }
  __device__ static void store(char* x, int depth, int half, uint32_t low, uint32_t high) {
    constexpr uint32_t sixteenth = 0x2c002c00u;
    uint32_t words[4];
    widen<false>(f8{}, low, words[0], words[1]), widen<false>(f8{}, high, words[2], words[3]);
#pragma unroll
    for (uint32_t& word : words) {
      const __half2 small = __hmul2_rn(pair(word), pair(sixteenth));
      word = reinterpret_cast<const uint32_t&>(small);
    }
    row(x, depth, half % 2)[half / 2] = make_uint4(words[0], words[1], words[2], words[3]);
  }
  __device__ static void multiply(float& sum, const uint4& weights, const Vector& x) {
    multiply(sum, weights.x, weights.y, x.halves[0]);
    multiply(sum, weights.z, weights.w, x.halves[1]);
  }
  __device__ static void multiply(float& sum, uint32_t low, uint32_t high, const uint4& x) {
    uint32_t words[4];
    widen<false>(f8{}, low, words[0], words[1]), widen<false>(f8{}, high, words[2], words[3]);
    __half2 four = __hmul2_rn(pair(words[0]), pair(x.x));
    four = __hfma2(pair(words[1]), pair(x.y), four);
    four = __hfma2(pair(words[2]), pair(x.z), four);
    four = __hfma2(pair(words[3]), pair(x.w), four);
    const float2 both = __half22float2(four);
    sum = __fadd_rn(__fadd_rn(sum, both.x), both.y);
  }
  __device__ static float whole(float sum) { return 16.0f * sum; }
};

template <class T, class K>
struct Warp : RowOfWeights<Warp<T, K>, W8A8RowArgs, char, typename K::C::Sum> {
  using Sum = typename K::C::Sum;
  using Base = RowOfWeights<Warp<T, K>, W8A8RowArgs, char, Sum>;
  using Base::a, Base::cut, Base::shared, Base::lane, Base::warp, Base::first, Base::last, Base::wait, Base::feed, Base::sums;
  static constexpr int kSumsAt = kLargestAt + 32 * 4;

  __device__ Warp(const W8A8RowArgs& args, const RowCut& how, char* memory) : Base(args, how, memory) {}
  __device__ static int rings_at(const W8A8RowArgs& a) { return ring_at(a.depth, K::kInBlocks); }
  __device__ static const char* weights(const W8A8RowArgs& a, int row) {
    return static_cast<const char*>(a.weight.codes) + int64_t(row) * a.weight.stride;
  }
  __device__ char* x() const { return shared + kXAt; }
  __device__ float* x_scales() const { return reinterpret_cast<float*>(shared + scales_at(a.depth)); }

  // Puts the weights of the norm where x is going to be.
  __device__ void load_norm() const {
    for (int v = threadIdx.x; a.norm && v < a.depth / kElements; v += kRowThreads)
      reinterpret_cast<uint4*>(x())[v] = static_cast<const uint4*>(a.norm)[v];
  }
  // All threads: x into shared memory, with the arithmetic of w8a8_rows.cu in its order: a row's codes do not tell which
  // kernel made them. Returns its scale; those of blocks are in shared memory then.
  __device__ float take_x() const {
    const int vectors = a.depth / kElements;
    uint4 raw[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      raw[i] = make_uint4(0, 0, 0, 0);
      const int v = threadIdx.x + i * kRowThreads;
      if (v < vectors) raw[i] = __ldcg(static_cast<const uint4*>(a.x) + v);
    }
    if (a.norm) normalise(raw, vectors);
    float back = 1.0f;
    if constexpr (K::kInBlocks) encode_blocks(raw, vectors);
    else back = encode_whole(raw, vectors);
    __syncthreads();
    return back;
  }
  __device__ float encode_whole(const uint4 (&raw)[kAtOnce], int vectors) const {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float own[kElements];
      widen<T>(raw[i], own);
      most = max(most, largest_of(own));
    }
    uint32_t* largest = reinterpret_cast<uint32_t*>(shared + kLargestAt);
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) largest[warp] = most;
    __syncthreads();
    const RowScale scale = row_scale<typename K::C>(__reduce_max_sync(~0u, largest[lane % kRowWarps]));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int v = threadIdx.x + i * kRowThreads;
      if (v >= vectors) break;
      store_codes(raw[i], v, scale.forth);
    }
    return scale.back;
  }
  __device__ void encode_blocks(const uint4 (&raw)[kAtOnce], int vectors) const {
    constexpr int lanes = kScaledDepth / kElements;
    __syncthreads();  // codes lie where other threads had weights of the norm
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float own[kElements];
      widen<T>(raw[i], own);
      const RowScale scale = row_scale<typename K::C>(lanes_max<lanes>(largest_of(own)));
      const int v = threadIdx.x + i * kRowThreads;
      if (v >= vectors) continue;
      store_codes(raw[i], v, scale.forth);
      if (v % lanes == 0) x_scales()[v / lanes] = scale.back;
    }
  }
  __device__ void store_codes(const uint4& raw, int v, float factor) const {
    float own[kElements];
    widen<T>(raw, own);
    uint32_t codes[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = __fmul_rn(own[4 * half + j], factor);
      codes[half] = K::C::encode(four);
    }
    K::store(x(), a.depth, v, codes[0], codes[1]);
  }
  __device__ void normalise(uint4 (&raw)[kAtOnce], int vectors) const {
    constexpr int most = kMostNormed / kElements / kRowThreads;
    float* squares = reinterpret_cast<float*>(shared + kSquaresAt);
    const float inverse = inverse_of_row<T, kRowThreads, most>(raw, squares, vectors, a.depth, a.eps, lane, warp);
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int v = threadIdx.x + i * kRowThreads;
      if (v >= vectors) break;
      float own[kElements], factor[kElements];
      widen<T>(raw[i], own), widen<T>(reinterpret_cast<const uint4*>(x())[v], factor);
#pragma unroll
      for (int j = 0; j < kElements; ++j) own[j] = own[j] * inverse * (factor[j] + a.offset);
      raw[i] = narrow<T>(own);
    }
  }

  // A lane's part of a piece in blocks: the scales of its 32nd of the groups.
  template <int kSides>
  struct Scales {
    float of[kSides];
  };
  __device__ int own_group(int from) const { return min(from / kScaledDepth + lane, groups_of(a.depth) - 1); }
  template <int kSides>
  __device__ Scales<kSides> weight_scales(int unit, int from) const {
    Scales<kSides> scales{};
    if constexpr (K::kInBlocks) {
      if (unit == last) return scales;
      const float* of_group = a.weight.scales + own_group(from) * a.weight.scales_stride + unit;
#pragma unroll
      for (int s = 0; s < kSides; ++s) scales.of[s] = of_group[s * cut.units];
    }
    return scales;
  }
  template <int kSides>
  __device__ Scales<kSides> times_x_scales(Scales<kSides> scales, int from) const {
    if constexpr (K::kInBlocks) {
      const float own = x_scales()[own_group(from)];
#pragma unroll
      for (float& scale : scales.of) scale = __fmul_rn(own, scale);
    }
    return scales;
  }

  // Adds to a lane's sums what it has of a piece of a unit: its vectors from `from` of x on, of `count`; in blocks, the piece's
  // scales from `group` on are theirs.
  template <int kSides, bool kWhole>
  __device__ void multiply(const uint4* const (&weights)[kSides], int from, int count, const Scales<kSides>& scales, int group,
                           Sum (&partial)[kSides][4]) const {
    constexpr int of_group = kScaledDepth / kVector;
    uint4 raw[kSides][4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int s = 0; s < kSides; ++s)
        raw[s][j] = kWhole || j * 32 + lane < count ? weights[s][j * 32 + lane] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float scale[kSides] = {};
      if constexpr (K::kInBlocks) {
#pragma unroll
        for (int s = 0; s < kSides; ++s) scale[s] = __shfl_sync(~0u, scales.of[s], group + (j * 32 + lane) / of_group);
      }
      if (!kWhole && j * 32 + lane >= count) continue;
      const auto own = K::load(x(), a.depth, from + j * 32 + lane);
#pragma unroll
      for (int s = 0; s < kSides; ++s) {
        if constexpr (K::kInBlocks) {
          Sum part = 0;
          K::multiply(part, raw[s][j], own);
          partial[s][j] = __fmaf_rn(part, scale[s], partial[s][j]);
        } else {
          K::multiply(partial[s][j], raw[s][j], own);
        }
      }
    }
  }

  // A lane's addend and factor of the result that it is going to store of the units from `begin` on.
  struct Addend {
    float residual, scale;
  };
  template <int kSides>
  __device__ Addend addend(int begin) const {
    const int row = lane / 4, column = begin + row / kSides;
    if (lane % 4 != 0 || column >= last) return {0.0f, 0.0f};
    const float scale = K::kInBlocks ? 1.0f : a.weight.scales[column + row % kSides * cut.units];
    if (!a.residual || a.gated) return {0.0f, scale};
    const unsigned short raw = __ldcg(static_cast<const unsigned short*>(a.residual) + column);
    return {to_float(reinterpret_cast<const T&>(raw)), scale};
  }

  // Adds up the sums of the lanes for `rows` rows of a batch, and stores what is theirs, from column `begin` on.
  template <int kSides>
  __device__ void finish(int begin, int rows, float x_scale, const Addend& addend) const {
    const Sum sum = Base::total();
    const int row = lane / 4, column = begin + row / kSides, weight_row = column + row % kSides * cut.units;
    float y = K::whole(sum);
    if constexpr (!K::kInBlocks) y = scaled(y, x_scale, addend.scale);
    if (a.bias && row < rows) y = __fadd_rn(y, element<T>(a.bias, weight_row));
    const float up = kSides == 2 ? __shfl_down_sync(~0u, y, 4) : 0.0f;
    if (lane % (4 * kSides) == 0 && row < rows) {
      if constexpr (kSides == 2) y = gated<T>(a.activation, y, up);
      else if (a.residual) y = __fadd_rn(y, addend.residual);
      static_cast<T*>(a.out)[column] = from_float<T>(y);
    }
    __syncwarp();
  }

  template <int kSides>
  __device__ void compute(float x_scale, Addend addends, Scales<kSides> next) {
    constexpr int units_at_once = kBatch / kSides;
#pragma unroll 1
    for (int begin = first; begin < last; begin += units_at_once) {
      const int batch_end = min(begin + units_at_once, last);
      if (begin > first) addends = addend<kSides>(begin);
#pragma unroll 1
      for (int u = begin; u < batch_end; ++u) {
        Sum partial[kSides][4] = {};
#pragma unroll 1
        for (int from = 0; from < a.depth; from += cut.piece) {
          const uint4* weights[kSides];
#pragma unroll
          for (int s = 0; s < kSides; ++s) weights[s] = wait();
          const Scales<kSides> scales = times_x_scales(next, from);
          const bool ends = from + cut.piece >= a.depth;
          next = weight_scales<kSides>(u + ends, ends ? 0 : from + cut.piece);
          int own = from / kVector, left = min(cut.piece, a.depth - from), group = 0;
#pragma unroll 1
          for (; left >= kStride; left -= kStride) {
            multiply<kSides, true>(weights, own, 0, scales, group, partial);
            own += kStride / kVector, group += kStride / kScaledDepth;
#pragma unroll
            for (int s = 0; s < kSides; ++s) weights[s] += kStride / kVector;
          }
          if (left > 0) multiply<kSides, false>(weights, own, left / kVector, scales, group, partial);
          __syncwarp();
#pragma unroll
          for (int s = 0; s < kSides; ++s) feed();
        }
#pragma unroll
        for (int s = 0; s < kSides; ++s)
          sums()[((u - begin) * kSides + s) * kPitch + lane] =
              (partial[s][0] + partial[s][1]) + (partial[s][2] + partial[s][3]);
      }
      finish<kSides>(begin, (batch_end - begin) * kSides, x_scale, addends);
    }
  }

  template <int kSides>
  __device__ void run() {
    Base::begin();
    const Scales<kSides> scales = weight_scales<kSides>(first, 0);
    load_norm();
    wait_for_previous_kernel();
    launch_next_kernel();
    const Addend addends = addend<kSides>(first);
    compute<kSides>(take_x(), addends, scales);
  }
};

#endif

template <class T, bool integers, bool in_blocks>
__global__ void __launch_bounds__(kRowThreads, 1)
    w8a8_row_kernel(const __grid_constant__ W8A8RowArgs a, const __grid_constant__ RowCut cut) {
#if OCTAVO_BULK_COPY
  extern __shared__ __align__(128) char shared[];
  Warp<T, std::conditional_t<integers, Integers, Floats<in_blocks>>> warp(a, cut, shared);
  if (a.gated) warp.template run<2>();
  else warp.template run<1>();
#endif
}

}  // namespace

cudaError_t w8a8_row(const W8A8RowArgs& a, cudaStream_t stream) {
  Device device;
  if (cudaError_t error = describe(device); error != cudaSuccess) return error;
  if (device.major < 9 || a.depth == 0 || a.depth % kVector != 0 || a.depth > kMostDepth ||
      !begins_aligned(a.weight.codes, a.weight.stride) || !begins_aligned(a.x, 0) || !begins_aligned(a.norm, 0) ||
      (a.norm && a.depth > kMostNormed))
    return cudaErrorInvalidValue;
  RowCut cut;
  Launch how;
  const int in_front = ring_at(a.depth, a.in_blocks);
  const cudaError_t room = cut_row(cut, how, device, a.columns, a.gated, a.depth, kPiece, kStride, 1, in_front);
  if (room != cudaSuccess) return room;
  return with_half(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.cells == Cells::i8 && !a.in_blocks) return launch_after(w8a8_row_kernel<T, true, false>, how, stream, a, cut);
    if (a.cells != Cells::f8) return cudaErrorInvalidValue;
    if (a.in_blocks) return launch_after(w8a8_row_kernel<T, false, true>, how, stream, a, cut);
    return launch_after(w8a8_row_kernel<T, false, false>, how, stream, a, cut);
  });
}

}  // namespace octavo
