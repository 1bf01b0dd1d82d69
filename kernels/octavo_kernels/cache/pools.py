"""The blocks of the KV cache: a pool on the device, and one in CPU memory, which kernels can often reach, too."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels import cuda


@dataclass(frozen=True, slots=True)
class Pools:
    """`device[num_blocks, elements]` and `host[num_host_blocks, elements]`: blocks of all layers, a row each.

    `blocks` is what operations take as the cache. Where they read the host's blocks at their place, it covers both
    pools, and host block b is its block `first_host_block + b`; elsewhere it is `device`, and `first_host_block` None.
    On a GPU `host` then passes for one of its tensors, and the CPU cannot read it.
    """

    blocks: Tensor
    device: Tensor
    host: Tensor
    first_host_block: int | None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of both pools behind one another, each a multiple of what can be mapped, and where the host's begins."""

    device_bytes: int
    host_bytes: int
    first_host_block: int

    @classmethod
    def of(cls, num_blocks: int, num_host_blocks: int, block_bytes: int, granularity: int) -> Stretch:
        device_bytes = -(-num_blocks * block_bytes // granularity) * granularity
        first = -(-device_bytes // block_bytes)
        end = -(-(first + num_host_blocks) * block_bytes // granularity) * granularity
        return cls(device_bytes, end - device_bytes, first)


def reads_host(device: torch.device) -> bool:
    """True if operations on `device` read blocks in CPU memory at their place."""
    return device.type == "cpu" or cuda.mapping_granularity(device) is not None


def empty_pools(
    num_blocks: int,
    num_host_blocks: int,
    block_bytes: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Pools:
    """Uninitialised pools `[blocks, block_bytes / itemsize]` of `dtype`; blocks may have no bytes. CPU memory
    beside a GPU is pinned. Raises `RuntimeError` if there is not as much memory."""
    elements = block_bytes // dtype.itemsize
    if device.type == "cpu":
        both = torch.empty((num_blocks + num_host_blocks, elements), dtype=dtype)
        return Pools(both, both[:num_blocks], both[num_blocks:], num_blocks)
    granularity = cuda.mapping_granularity(device) if num_host_blocks and elements else None
    if granularity is None:
        pool = torch.empty((num_blocks, elements), dtype=dtype, device=device)
        host = torch.empty((num_host_blocks, elements), dtype=dtype, pin_memory=num_host_blocks * elements > 0)
        return Pools(pool, pool, host, None)
    stretch = Stretch.of(num_blocks, num_host_blocks, block_bytes, granularity)
    end = stretch.first_host_block + num_host_blocks
    memory = cuda.mapped_memory(device, stretch.device_bytes, stretch.host_bytes)[: end * block_bytes]
    blocks = memory.view(dtype).view(end, elements)
    return Pools(blocks, blocks[:num_blocks], blocks[stretch.first_host_block :], stretch.first_host_block)
