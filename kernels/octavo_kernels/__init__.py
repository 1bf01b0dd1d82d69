"""Attention, sampling and small fused operations over a paged KV cache. See `octavo_kernels.ops`."""
