// The entry points of linear_kernel.h, after any specialisations.
#pragma once

#include "linear_kernel.h"

namespace octavo {
namespace {

PackedRow linear_packed_row(const LinearArgs& a) {
  PackedRow row = {0, a.x_stride};
  with_dtype(a.dtype, [&](auto tag) { row = Linear<decltype(tag)>::packed_row(a); });
  return row;
}
void linear_pack(const LinearArgs& a, void* packed, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { Linear<decltype(tag)>::pack(a, packed, begin, end); });
}
void linear(const LinearArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { Linear<decltype(tag)>::run(a, begin, end); });
}

}  // namespace
}  // namespace octavo
