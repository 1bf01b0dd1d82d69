// Prompts of recurrent layers by chunks of their tokens.
#pragma once

#include "recurrent/args.h"

namespace octavo {

// All sequences that are long enough and whose keeps are few enough (`in_chunks`), in pieces for which a.room has the tiles; the
// others are left alone. Refuses rows of float32, and a room that is too small.
cudaError_t chunk_prompts(const DeltaArgs&, cudaStream_t);
cudaError_t chunk_prompts(const SsmArgs&, cudaStream_t);

}  // namespace octavo
