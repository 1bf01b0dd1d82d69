"""The memory experiments of the PagedAttention paper (Kwon et al., SOSP 2023) on this engine's own memory manager."""
