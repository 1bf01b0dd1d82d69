// A weight of codes as the matrix that it stands for, for the products that other kernels compute.
//
// A warp takes a brick at a time: its codes as floats, times their scales in float32, rounded once. Four lanes have sixteen
// words of 64 bytes in a row; they exchange them so that each stores 16 bytes. The next kernel may not begin early: those of
// this library read weights from before the previous one has ended.
#include "coded/codes.cuh"

namespace octavo {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;

template <class T, Codes kKind, int kGroups>
struct Brick {
  using U = Unpack<f16, kKind>;  // every code is one exactly
  static constexpr int kSteps = brick_steps(kKind), kGroupSteps = kSteps / kGroups;

  const DequantiseArgs& a;
  const int lane, row, depth;  // the first row and depth of this lane's

  // Two neighbours of row `row` + 8 * half from `at` on.
  __device__ void store2(int half, int at, float2 x) const {
    T* to = static_cast<T*>(a.out) + int64_t(row + 8 * half) * a.out_stride + at;
    if (row + 8 * half >= a.matrix.columns) return;
    if (at < a.matrix.depth) to[0] = from_float<T>(x.x);
    if (at + 1 < a.matrix.depth) to[1] = from_float<T>(x.y);
  }
  // Words of the four units of eight from `at` on, of which this lane stores one.
  __device__ void store_unit(int half, int at, uint32_t (&words)[4]) const {
    transpose_quad(words);
    at += lane % 4 * 8;
    T* to = static_cast<T*>(a.out) + int64_t(row + 8 * half) * a.out_stride + at;
    if (row + 8 * half < a.matrix.columns && at < a.matrix.depth)
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }

  __device__ void write(const uint4* codes, const float* scales, const uint8_t* zeros, bool whole) const {
#pragma unroll
    for (int pair = 0; pair < kSteps / 2; ++pair) {
      const uint4 raw = codes[pair / (kSteps / 4) * 32 + lane];
      const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
      float2 x[2][4];  // [row][eight]
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int step = pair * 2 + s, g = step / kGroupSteps * kStripRows + lane / 4;
        uint32_t low = U::zero(), high = U::zero(), registers[4];
        if (!is_float(kKind) && zeros) low = U::zero(zeros[g]), high = U::zero(zeros[g + 8]);
        U::step(words + step % (kSteps / 2) * step_words(kKind), low, high, registers);
        const float scale[] = {scales[g], scales[g + 8]};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 code = unpack<f16>(registers[i]);
          x[i % 2][s * 2 + i / 2] = make_float2(code.x * scale[i % 2], code.y * scale[i % 2]);
        }
      }
      const int at = depth + pair * 2 * kStepDepth;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (sizeof(T) == 2) {
          if (whole) {
            uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) packed[i] = pack<T>(x[half][i].x, x[half][i].y);
            store_unit(half, at, packed);
            continue;
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) store2(half, at + i * 8 + lane % 4 * 2, x[half][i]);
      }
    }
  }
};

template <class T, Codes kKind, int kGroups>
__global__ void __launch_bounds__(kThreads)
    dequantise_kernel(const __grid_constant__ DequantiseArgs a, int strips, int bricks, int shift, int groups, bool whole) {
  wait_for_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int64_t number = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (number >= int64_t(strips) * bricks) return;
  const int64_t strip = number / bricks;
  const int brick = int(number % bricks), group = kGroups > 1 ? brick * kGroups : brick >> shift;
  const int64_t of_group = (strip * groups + group) * kStripRows;
  const Brick<T, kKind, kGroups> own{a, lane, int(strip) * kStripRows + lane / 4, brick * brick_depth(kKind)};
  own.write(reinterpret_cast<const uint4*>(static_cast<const char*>(a.matrix.codes) + number * kBrickBytes),
            a.matrix.scales + of_group, a.matrix.zeros ? a.matrix.zeros + of_group : nullptr, whole);
}

}  // namespace

cudaError_t dequantise(const DequantiseArgs& a, cudaStream_t stream) {
  const CodedSizes sizes = sizes_of(a.matrix);
  if (a.matrix.columns < 1 || a.matrix.depth < 1) return cudaErrorInvalidValue;
  const int64_t bricks = int64_t(sizes.strips) * sizes.bricks;
  const bool whole = a.matrix.depth % 8 == 0 && reinterpret_cast<uintptr_t>(a.out) % 16 == 0 && a.out_stride % 8 == 0;
  return with_dtype(a.dtype, [&](auto tag) {
    return with_codes(a.matrix.kind, sizes.grouping.of_brick, [&](auto kind, auto groups) {
      return launch_after(dequantise_kernel<decltype(tag), decltype(kind)::value, decltype(groups)::value>,
                          {dim3(unsigned((bricks + kWarps - 1) / kWarps)), kThreads}, stream, a, sizes.strips, sizes.bricks,
                          sizes.grouping.shift, sizes.groups, whole);
    });
  });
}

}  // namespace octavo
