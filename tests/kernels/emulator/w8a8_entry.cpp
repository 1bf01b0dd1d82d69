// Products of one row with codes of eight bits, and rows as such codes, as functions of a shared library.
#include "device/common.cuh"
#include "w8a8/w8a8.h"

using namespace octavo;

extern "C" {

struct Codes {
  void* codes;
  int64_t stride;
  float* scales;
  int64_t scales_stride;
};
struct Operands {
  int dtype, cells, in_blocks, rows, columns, depth, gated, activation;
  const void *x, *norm, *bias, *residual;
  void* out;
  Codes codes;  // of the weight, or the rows' results
  float eps, offset;
};

static CodedRows rows_of(const Codes& c) { return {c.codes, c.stride, c.scales, c.scales_stride}; }

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }
int row(const Operands* o) {
  const W8A8RowArgs a{Dtype(o->dtype), Cells(o->cells), o->in_blocks != 0, o->x, o->norm, o->eps, o->offset,
                      rows_of(o->codes), o->columns, o->depth, o->gated != 0, Activation(o->activation), o->bias,
                      o->residual, o->out};
  return w8a8_row(a, nullptr);
}
int quantise(const Operands* o) {
  const QuantiseArgs a{Dtype(o->dtype), Cells(o->cells), o->in_blocks != 0, o->x, o->depth, o->norm, o->eps, o->offset,
                       rows_of(o->codes), o->rows, o->depth};
  return quantise_rows(a, nullptr);
}
}
