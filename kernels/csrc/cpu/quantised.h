// The entry points of quantised_kernel.h, after any specialisations.
#pragma once

#include "products.h"

namespace octavo {
namespace {

template <class F>
inline void with_product(const QuantisedArgs& a, F&& f) {
  with_dtype(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    if (a.integers) return f(typename IntegerProduct<T, W>::type{});
    switch (a.codes) {
      case WeightCodes::int4:
        if (a.zeros) return f(typename GivenProduct<T, WeightCodes::int4, true>::type{});
        return f(typename GivenProduct<T, WeightCodes::int4, false>::type{});
      case WeightCodes::int8:
        if (a.zeros) return f(typename GivenProduct<T, WeightCodes::int8, true>::type{});
        return f(typename GivenProduct<T, WeightCodes::int8, false>::type{});
      case WeightCodes::fp4: return f(typename GivenProduct<T, WeightCodes::fp4, false>::type{});
      case WeightCodes::fp8: return f(typename GivenProduct<T, WeightCodes::fp8, false>::type{});
    }
  });
}

LinearPlan quantised_plan(const QuantisedArgs& a) {
  LinearPlan plan = {};
  with_product(a, [&](auto product) { plan = product.plan(a); });
  return plan;
}
void quantised_pack(const QuantisedArgs& a, void* packed, int64_t begin, int64_t end, float* scratch) {
  with_product(a, [&](auto product) { product.pack(a, packed, begin, end, scratch); });
}
void quantised(const QuantisedArgs& a, const LinearBlock& b, void* scratch) {
  with_product(a, [&](auto product) { product.run(a, b, scratch); });
}

}  // namespace
}  // namespace octavo
