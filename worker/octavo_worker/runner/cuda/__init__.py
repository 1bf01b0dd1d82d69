"""The model runner for NVIDIA GPUs: what it sends, what it captures, what it copies."""
