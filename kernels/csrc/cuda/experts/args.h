// Arguments of mixtures of experts: which experts rows take, their products, and the sums of what they make of a row.
#pragma once

#include <cuda_runtime_api.h>

#include "operands.h"

namespace octavo {

// As in csrc/cpu/args.h, and so in octavo_kernels/experts/route.py.
enum class Score : int { softmax = 0, sigmoid = 1, chosen_softmax = 2 };

struct Routing {
  int experts, chosen;
  Score score;
  int groups, top_groups, group_best;
  bool normalised;
  float eps, least, scale;
};

// Logits of rows, and what else the choice among experts depends on.
struct RouterLogits {
  Routing routing;
  float* logits;            // [rows][experts]
  const float* correction;  // [experts] of scores; null: none
  const float* factors;     // [experts] of weights; null: none
  const int64_t* slots;     // [rows], below 0: padding; null: there is none
};

// Of all pairs of a row and an expert that it takes, by expert and then by row: the `places[rows][chosen]` of a row's own (-1: it
// is padding, which is in no list), the row of each, and where those of each expert begin, [experts + 1].
struct Lists {
  float* weights;  // [rows][chosen], by ascending expert
  int32_t *places, *sources, *starts;
};

struct RouteArgs : RouterLogits {
  Dtype dtype;
  const void* x;
  int64_t x_stride;
  int rows, width;
  const void* norm;  // null: rows are as they are; otherwise what follows reads their RMS norm, which goes to `normed`
  float eps, offset;
  void* normed;
  int64_t normed_stride;
  const float* router;  // [experts][width]
  int64_t router_stride;
  const float* bias;  // [experts]; null: none
  const float* gate;  // [width] of the shared expert, whose factors go to `gates`; null: none
  Lists lists;        // null: of few rows, whose products choose by themselves
  float* gates;
  int32_t* ids;  // [rows][chosen]
  unsigned* counters;  // `kCounters` zeros for one stream, which are zeros again afterwards
  bool uniform;        // a row's bits do not depend on the number of rows
};
inline constexpr int kCounters = 128;

// One matrix of all experts: `columns` rows of each, one expert below the other.
struct ExpertMatrix {
  const void* weight;
  int64_t stride;
  const void* bias;  // null: none
  int experts, columns, depth;
};

// Logits that products of few rows choose by; `first` is the expert whose matrix is their first.
struct FewChoice : RouterLogits {
  int first;
};

// A product of the expert that all rows of a step take, padding too, within the launch of the others. The first one makes its
// `rows`, the second one takes them.
struct SharedProduct {
  ExpertMatrix matrix;  // of one expert; its weight null: there is none
  void* rows;
  int64_t stride;
};

// activation(x gate^T) * (x up^T) of every pair, at its place: [rows * chosen][columns / 2]; or, by an activation that no gate has,
// activation(x up^T): [rows * chosen][columns].
struct ExpertsUpArgs {
  Dtype dtype;
  ExpertMatrix matrix;  // gate and up, or up
  const void* x;
  int64_t x_stride;
  int rows, chosen;
  const int32_t *sources, *starts;  // of `many`
  FewChoice choice;                 // of `few`
  int activation;  // of octavo_kernels/products/activation.py, or of octavo_kernels/experts/gpu.py
  float clamped;   // 0: not; otherwise the gate is at most that, and up within it and larger by one
  void* out;
  int64_t out_stride;
  SharedProduct shared;  // of `few`: its rows are made here, and never clamped
};

// The product of every pair's row with its expert. With `few`, rows' sums of them, else `parts`.
struct ExpertsDownArgs {
  Dtype dtype;
  ExpertMatrix matrix;
  const void* x;  // by place
  int64_t x_stride;
  int rows, chosen;
  Lists lists;       // of `many`
  FewChoice choice;  // of `few`, made by a kernel before the previous one
  const void* shared;  // null: none; otherwise rows' sums have it, too, times `gates` where there are any
  int64_t shared_stride;
  SharedProduct shared_product;  // of `few`, where `shared` is null: rows' sums have this, rounded as if it were stored
  const float* gates;
  float factor;          // of rows' sums
  const void* residual;  // null: none
  int64_t residual_stride;
  void* parts;  // [rows * chosen][columns]
  int64_t parts_stride;
  void* out;
  int64_t out_stride;
};

// All of these refuse by cudaErrorInvalidValue what they do not take, and need Hopper.
cudaError_t route_rows(const RouteArgs&, cudaStream_t);
cudaError_t list_rows(const RouteArgs&, cudaStream_t);  // from their logits
inline constexpr int kFewRows = 8;  // of the step
cudaError_t experts_up_few(const ExpertsUpArgs&, cudaStream_t);
cudaError_t experts_down_few(const ExpertsDownArgs&, cudaStream_t);
cudaError_t experts_up_many(const ExpertsUpArgs&, cudaStream_t);
cudaError_t experts_down_many(const ExpertsDownArgs&, cudaStream_t);  // makes `parts`
cudaError_t experts_sum(const ExpertsDownArgs&, cudaStream_t);        // of `parts`

}  // namespace octavo
