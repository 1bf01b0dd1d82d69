// The fields of a matrix of codes, in the order of the tuple that it comes as.
#pragma once

#include <tuple>

#include "coded/args.h"

namespace octavo {

inline auto fields(CodedMatrix& x) {
  return std::tie(x.kind, x.group, x.codes, x.scales, x.zeros, x.columns, x.depth);
}

}  // namespace octavo
