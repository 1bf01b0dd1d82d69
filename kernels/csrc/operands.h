// Operands of both modules' kernels: pointers, strides in elements, sizes and element types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

enum class Dtype : int { f32 = 0, bf16 = 1, f16 = 2 };
enum class Cells : int { plain = 0, i8 = 1, f8 = 2 };  // of a cache; plain: the dtype of the call

inline constexpr size_t item_size(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }

// A block of one layer holds K and V of each KV head; how they lie there is each module's own. In eight bits each of them
// is followed by float32 scales [block_size].
struct Cache {
  void* data;
  Cells cells;
  int64_t block_stride, kv_stride, head_stride;
  int block_size;
};

struct WriteArgs {
  Dtype dtype;
  const void *q, *k, *v;  // q is null when only K and V are written, v where values are the first elements of keys
  int64_t q_stride, k_stride, v_stride;
  void* q_out;
  int64_t q_out_stride;
  int64_t tokens;
  int heads, kv_heads, head_dim;
  Cache cache;
  const int64_t* slots;
  const int64_t* positions;
  const float* cos_sin;  // null: no rotation
  int64_t cos_sin_stride;
  int rotary_at, rotary_dim;  // columns of a head
  const void *q_norm, *k_norm;  // null: no norm
  float eps, norm_offset;
};

// Operands of attention; each module adds how the work is cut.
struct AttentionOperands {
  Dtype dtype;
  const void* q;
  int64_t q_stride;
  void* out;
  int64_t out_stride;
  int heads, kv_heads, head_dim;
  Cache cache;
  const int32_t* tables;
  int64_t table_stride;
  int sequences;
  float scale, softcap;  // softcap 0: none
  int window;            // 0: unbounded
  const float* sinks;    // null: none
};

struct NormArgs {
  Dtype dtype;
  const void* x;
  int64_t x_stride;
  void* residual;       // null: none; otherwise residual += x in place and the sum is normalised
  int64_t residual_stride;
  const void *weight, *bias;
  void* out;
  int64_t out_stride;
  int64_t rows;
  int width;
  float eps, offset;
};

enum class Activation : int { silu = 0, gelu = 1, gelu_tanh = 2, relu = 3 };

struct ActivationArgs {
  Dtype dtype;
  Activation kind;
  bool gated;  // x is [rows, 2 * width], the first half is the gate
  const void* x;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
  int64_t rows;
  int width;
};

}  // namespace octavo
