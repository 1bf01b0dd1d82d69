// Products of many rows with experts whose matrices are codes of this kind.
#include "coded_experts/many_kind.cuh"

template struct octavo::ManyExperts<octavo::Codes::int8>;
