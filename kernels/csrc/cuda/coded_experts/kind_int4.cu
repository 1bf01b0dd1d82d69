// Products of experts whose matrices are codes of this kind.
#include "coded_experts/kind.cuh"

template struct octavo::CodedExperts<octavo::Codes::int4>;
