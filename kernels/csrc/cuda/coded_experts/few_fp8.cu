// Products of a few rows with experts whose matrices are codes of this kind.
#include "coded_experts/few_kind.cuh"

template struct octavo::FewExperts<octavo::Codes::fp8>;
