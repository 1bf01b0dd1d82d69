// The entry points of linear_kernel.h, after any specialisations.
#pragma once

#include "linear_kernel.h"

namespace octavo {
namespace {

LinearPlan linear_plan(const LinearArgs& a) {
  LinearPlan plan = {};
  with_dtype(a.dtype, [&](auto tag) { plan = Linear<decltype(tag)>::plan(a); });
  return plan;
}
void linear_pack(const LinearArgs& a, void* packed, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&](auto tag) { Linear<decltype(tag)>::pack(a, packed, begin, end); });
}
void linear(const LinearArgs& a, const LinearBlock& b, void* scratch) {
  with_dtype(a.dtype, [&](auto tag) { Linear<decltype(tag)>::run(a, b, scratch); });
}

}  // namespace
}  // namespace octavo
