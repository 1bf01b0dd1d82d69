// Arguments of the single-threaded kernels, by the launcher. Every instruction-set level fills one `Kernels` table.
//
// Kernel translation units are compiled with flags that the machine may not support, so they must not emit any symbol
// that the linker could share with the rest: no standard containers in them, everything in anonymous namespaces.
#pragma once

#include "../messages.h"
#include "../operands.h"
#include "recurrent_args.h"

namespace octavo {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
// Cells of a cache in eight bits: whole numbers, or floats of four exponent and three mantissa bits (e4m3fn).
struct i8 {
  int8_t code;
};
struct f8 {
  uint8_t code;
};

// Attention walks keys in tiles, and tiles in chunks, both aligned to absolute positions. A query row's arithmetic is
// therefore the same whether it runs alone, in a batch, in a decode step or inside a prefill chunk.
inline constexpr int kTile = 64;
inline constexpr int kChunk = 512;
inline constexpr int kSegment = 16;  // block sizes are multiples or halves of this
inline constexpr int kMaxHeadDim = 512;
inline constexpr int kMaxLatentDim = 576;  // of keys whose leading elements are the values

// Inside a block K lies transposed, [head_dim][block_size], and V as [block_size][head_dim]. A cache without V has a
// K-to-V stride of 0: values are the first `value_dim` elements of keys, and the last ones are rotated. In eight bits those
// lie behind the scales, in the data's type.
struct AttentionArgs : AttentionOperands {
  int value_dim;  // head_dim where V is kept
  const int32_t* context_lens;
  const int32_t* query_start;
};

// Query tokens [token, token + tokens) of one sequence against the chunks [chunk, chunk_end) of one KV head.
// `partial` null: the item covers all its chunks and writes the output itself.
struct AttentionItem {
  int sequence, kv_head, token, tokens, chunk, chunk_end;
  float* partial;
};

struct LinearArgs {
  Dtype dtype;
  const void* x;  // packed by `linear_pack` where that is needed
  int64_t x_stride;
  const void* weight;
  int64_t weight_stride;
  const void* bias;
  const void* residual;
  int64_t residual_stride;
  float factor = 1.0f;  // of the product with its bias, before the residual is added
  void* out;
  int64_t out_stride;
  int64_t rows, columns, depth;  // T, N, K
};

// How a level wants a product cut: x is rearranged first where `packed_row` bytes are not 0 (memory is there for a
// multiple of kPackRows rows, and ranges of rows to pack begin at such multiples), then blocks of at most
// `rows` x `columns` outputs are computed, each with `scratch` bytes, from columns on that are multiples of 32 or, of a
// quantised weight, of kPanelColumns. An output's bits do not depend on its block.
inline constexpr int64_t kPackRows = 16;
struct LinearPlan {
  size_t packed_row;
  int64_t packed_stride;
  int64_t rows, columns;
  size_t scratch;
};
struct LinearBlock {
  int64_t row, row_end, column, column_end;
};

// Codes of a weight: see octavo_kernels/products/weights.py.
enum class WeightCodes : int { int4 = 0, int8 = 1, fp4 = 2, fp8 = 3 };

// A weight in panels of 16 columns of the output, four side by side, the last ones filled up. Along the depth each group is
// filled up so that it ends at a multiple of 16. Codes are pieces of 64 bytes:
//   4 bits   [columns / 64][depth / 8][4 panels][16] words of eight codes, from the lowest bits: depths 0 2 4 6 1 3 5 7
//   8 bits   [columns / 64][depth / 4][4 panels][4][16] codes
//   8 bits, integer activations   [columns / 16][depth / 4][16][4] codes plus 128: tiles as they stand
// Scales and zeros are [columns / 64][groups][4][16]; where activations are integers zeros too have 128 added.
inline constexpr int kPanel = 16, kPanels = 4, kPanelColumns = kPanel * kPanels, kPiece = 64;
struct QuantisedArgs {
  Dtype dtype;
  WeightCodes codes;
  bool integers;  // rows of x become int8; each `x_group` columns, which meet `x_groups` groups, have a scale
  const void* x;  // packed by `quantised_pack`
  int64_t x_stride, x_depth;
  const int32_t* order;  // [depth]: columns of x that the codes meet, -1: none; null: as they stand, none beyond x_depth
  const uint8_t* weight;
  const float* scales;
  const uint8_t* zeros;  // null: a symmetric weight
  int64_t group, groups, x_group, x_groups;
  const void* bias;
  const void* residual;
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
  int64_t rows, columns, depth;

  int64_t piece_depth() const { return codes == WeightCodes::int4 || codes == WeightCodes::fp4 ? 8 : 4; }
};

struct SampleArgs {
  const float* logits;
  int64_t stride, rows, vocab;
  const StepSample* samples;  // [rows]
  int64_t* tokens;
  // A part of each row: the token of its first column, a multiple of 4; the smallest scaled logit that survives the
  // filters of the whole row; room for what the chosen tokens reach. Null: the row is whole.
  int64_t first;
  const float* floors;  // [rows]
  float* reached;       // [rows]
};

// exp(z - top) in units of 2^-40, of scaled logits z.
struct MassArgs {
  const float* scaled;
  int64_t stride, rows, columns;
  const float* tops;  // [rows]
  int64_t* masses;    // [rows, columns]
};

// The sum of what each rank has, in their order, plus the residual.
struct SumArgs {
  Dtype dtype;
  const char* parts;  // [ranks][rows, width]
  int64_t part_bytes;
  int ranks;
  const void* residual;
  int64_t residual_stride;
  void* out;
  int64_t out_stride;
  int64_t rows, width;
};

// How each row of a mixture of experts chooses among them: see octavo_kernels/experts/route.py.
enum class Score : int { softmax = 0, sigmoid = 1, chosen_softmax = 2 };
struct RouteArgs {
  const float* logits;
  int64_t stride, rows;
  int experts, chosen;
  Score score;
  const float* correction;  // [experts], of the choice alone; null: none
  int groups, top_groups, group_best;
  bool normalised;
  float eps, least, scale;
  float* weights;    // [rows, chosen], of ascending experts
  int32_t* places;   // [rows, chosen]: where the row's assignments are among all of them
  int32_t* sources;  // [rows * chosen]: the row of each assignment, by expert and then by row
  int32_t* starts;   // [experts + 1]: where each expert's assignments begin
};

// The sum of a row's experts, ascending, times their weights; then what all rows have in common, then the residual.
struct CombineArgs {
  Dtype dtype;
  const void* parts;  // [assignments, width]
  int64_t parts_stride;
  const int32_t* places;  // [rows, chosen]
  const float* weights;
  int chosen;
  const void* shared;  // null: none
  int64_t shared_stride;
  const float* gates;  // [rows], factors of `shared`; null: 1
  const void* residual;
  int64_t residual_stride;
  float factor;  // of the sum, before the residual is added
  void* out;
  int64_t out_stride;
  int64_t rows, width;
};

struct AdjustArgs {
  float* logits;
  int64_t stride, rows, vocab;
  const AdjustRow* parameters;  // [rows], then the entries of all rows
  const int64_t* latest;        // [rows]; null: none
  const int32_t* allowed;       // [rows, words]; null: all
  int64_t allowed_stride;
};

struct LogprobArgs {
  const float* logits;
  int64_t stride, rows, vocab;
  const int64_t* tokens;
  int top;
  float* chosen;     // [rows]
  int64_t* top_ids;  // [rows, top]
  float* top_values;
};

struct Kernels {
  void (*write)(const WriteArgs&, int64_t token_begin, int64_t token_end);
  // Query rows (tokens times grouped heads) that an item should have; floats that an item of this many query tokens
  // needs, and those of one partial result.
  int (*attention_rows)(const AttentionArgs&);
  size_t (*attention_scratch)(const AttentionArgs&, int tokens);
  size_t (*attention_partial)(const AttentionArgs&, int tokens);
  // `next`: what this thread computes afterwards, if known.
  void (*attention)(const AttentionArgs&, const AttentionItem&, const AttentionItem* next, float* scratch);
  void (*attention_merge)(const AttentionArgs&, const AttentionItem&, const float* const* partials, float* scratch);
  LinearPlan (*linear_plan)(const LinearArgs&);
  void (*linear_pack)(const LinearArgs&, void* packed, int64_t row_begin, int64_t row_end);
  void (*linear)(const LinearArgs&, const LinearBlock&, void* scratch);
  LinearPlan (*quantised_plan)(const QuantisedArgs&);
  // `scratch`: floats for a row of x and one of `depth`.
  void (*quantised_pack)(const QuantisedArgs&, void* packed, int64_t row_begin, int64_t row_end, float* scratch);
  void (*quantised)(const QuantisedArgs&, const LinearBlock&, void* scratch);
  void (*rms_norm)(const NormArgs&, int64_t row_begin, int64_t row_end);
  void (*layer_norm)(const NormArgs&, int64_t row_begin, int64_t row_end);
  void (*activation)(const ActivationArgs&, int64_t row_begin, int64_t row_end);
  void (*sample)(const SampleArgs&, int64_t row, void* scratch);
  void (*logprobs)(const LogprobArgs&, int64_t row);
  void (*masses)(const MassArgs&, int64_t row);
  void (*sum)(const SumArgs&, int64_t row_begin, int64_t row_end);
  void (*combine)(const CombineArgs&, int64_t row_begin, int64_t row_end);
  void (*convolve)(const ConvolutionArgs&, int sequence, int64_t channel_begin, int64_t channel_end);
  void (*recurrence_prepare)(const RecurrenceArgs&, int64_t row_begin, int64_t row_end);
  // `state`: floats for a depth of kMostStateColumns.
  void (*recurrence_advance)(const RecurrenceArgs&, int sequence, int head, float* state);
  void (*recurrence_finish)(const RecurrenceArgs&, int64_t row_begin, int64_t row_end);
};

inline constexpr int kMostStateColumns = 32;

// Bytes of scratch that `Kernels::sample` needs.
inline constexpr int kSampleBins = 2048;
inline size_t sample_scratch(int64_t vocab) { return kSampleBins * sizeof(uint64_t) + size_t(vocab) * sizeof(float); }

extern const Kernels baseline_kernels;
#if OCTAVO_X86
extern const Kernels avx2_kernels, avx2_vnni_kernels, avx512_kernels, avx512_bf16_kernels, amx_kernels;
#endif

}  // namespace octavo
