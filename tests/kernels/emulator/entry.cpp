// The kernels for weights of codes as functions of a shared library.
#include "coded/args.h"
#include "device/common.cuh"

using namespace octavo;

extern "C" {

struct Operands {
  int dtype, kind, group, columns, depth, rows, gated, activation;
  const void *codes, *scales, *zeros, *x, *bias, *residual, *norm;
  void* out;
  int64_t x_stride, residual_stride, out_stride;
  float eps, offset;
  void* parts;
  int* arrivals;
};

static CodedArgs args_of(const Operands& o) {
  CodedArgs a{};
  a.dtype = Dtype(o.dtype), a.columns = o.columns, a.depth = o.depth, a.rows = o.rows;
  a.gated = o.gated, a.activation = Activation(o.activation);
  a.x = o.x, a.x_stride = o.x_stride, a.bias = o.bias, a.residual = o.residual, a.residual_stride = o.residual_stride;
  a.out = o.out, a.out_stride = o.out_stride, a.norm = o.norm, a.eps = o.eps, a.offset = o.offset;
  a.matrix = {Codes(o.kind), o.group, o.codes, static_cast<const float*>(o.scales), static_cast<const uint8_t*>(o.zeros),
              o.columns, o.depth};
  a.meetings = {o.parts, o.arrivals};
  return a;
}

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }
int few(const Operands* o) { return coded_few(args_of(*o), nullptr); }
int tiles(const Operands* o, int tokens, int cluster) { return coded_tiles(args_of(*o), {tokens, cluster}, nullptr); }
int wide(const Operands* o, int consumers, int tokens, int shares) {
  emulator::side_by_side = true;
  const int error = coded_wide(args_of(*o), {consumers, tokens, shares}, nullptr);
  emulator::side_by_side = false;
  return error;
}
int matrix(const Operands* o) {
  const CodedArgs a = args_of(*o);
  return dequantise({a.dtype, a.matrix, a.out, a.out_stride}, nullptr);
}
}
