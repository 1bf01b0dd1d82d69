"""Two pools behind one another: on the CPU always, on a GPU where the driver maps memory of the host."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo_kernels.pools import Stretch, empty_pools, reads_host

MIB = 1 << 20


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 60_000), st.sampled_from([64 << 10, 2 * MIB]))
def test_both_parts_can_be_mapped_and_hold_their_blocks(blocks: int, hosts: int, lines: int, granularity: int) -> None:
    size = 64 * lines
    stretch = Stretch.of(blocks, hosts, size, granularity)
    assert stretch.device_bytes % granularity == stretch.host_bytes % granularity == 0
    first = stretch.first_host_block * size
    assert blocks * size <= stretch.device_bytes <= first
    assert first + hosts * size <= stretch.device_bytes + stretch.host_bytes
    assert stretch.device_bytes < blocks * size + granularity, "device memory is wasted"
    assert stretch.host_bytes < (hosts + 1) * size + granularity, "host memory is wasted"


def test_on_the_cpu_one_cache_covers_both() -> None:
    assert reads_host(torch.device("cpu"))
    pools = empty_pools(3, 2, 4096, torch.float32, torch.device("cpu"))
    pools.host[1].fill_(7.0)
    assert pools.first_host_block == len(pools.device) == 3
    assert (pools.blocks[4] == 7.0).all()
    assert pools.blocks[0].nbytes == 4096
