// The second launch of recurrent layers whose heads share too much for one.
#pragma once

#include "recurrent/args.h"

namespace octavo {

// Gate and norm of a.y to a.step.out, and the convolution's columns.
cudaError_t finish_rows(const SsmArgs&, cudaStream_t);

}  // namespace octavo
