"""Benchmarks of the engine alone and of the whole service, with the physical floor beside every figure."""
