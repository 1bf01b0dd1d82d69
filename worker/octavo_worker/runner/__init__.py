"""Computation of a step: runners of CPUs and GPUs, the sampler, passes that draft, the leader of ranks. No weights are
read here, and no request is known."""
