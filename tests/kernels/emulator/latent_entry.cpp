// Latent attention around its scores as functions of a shared library.
#include "device/common.cuh"
#include "latent/args.h"

using namespace octavo;

extern "C" {

void set_up(int processors, unsigned seed) { multiprocessors = processors, emulator::random_source.seed(seed); }
int products(const ByHeadArgs* a) { return by_head(*a, nullptr); }
int queries(const LatentRowsArgs* a, const ByHeadArgs* products) { return latent_queries(*a, *products, nullptr); }
}
