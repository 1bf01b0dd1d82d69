"""Copies of whole blocks and slots of states between the device and the host's pinned memory, overlapped with
computation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_worker.model.causal_model import in_pools

Pairs = Sequence[tuple[int, int]]


class SwapPool(NamedTuple):
    """Blocks, or slots, of `device[count, elements]` and of `host`, whose ids begin with `first_host`."""

    device: Tensor
    host: Tensor
    first_host: int


class SwapStreams:
    """One stream a direction, for all pools: a step's pairs come in the order of the pools.

    Copies out wait for the computation before them. So do copies in, as their targets may just have been freed; they
    also wait for the copies out, as a sequence that the previous step swapped out may return at once. Copies in are
    waited for by the computation after `wait_in`, and by copies out of the blocks and slots that they fill.
    """

    def __init__(self, *pools: SwapPool) -> None:
        self._pools = pools
        device = pools[0].device.device
        self._out, self._in = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._arrival: torch.cuda.Event | None = None
        self._arriving = [frozenset[int]() for _ in pools]  # on the device, of the last copies in

    def bring(self, *pairs: Pairs) -> torch.cuda.Event:
        """Starts to copy (host, device) of each pool. The event fires when all are there."""
        self._in.wait_stream(torch.cuda.current_stream())
        self._in.wait_stream(self._out)
        self._arrival = self._copy(self._in, ((pool.host, pool.device) for pool in self._pools), pairs)
        self._arriving = [frozenset(target for _, target in each) for each in pairs]
        return self._arrival

    def send(self, *pairs: Pairs) -> torch.cuda.Event:
        """Starts to copy (device, host) of each pool. The event fires when all have left."""
        self._out.wait_stream(torch.cuda.current_stream())
        if self._arrival is not None and any(map(_meet, self._arriving, pairs)):
            self._out.wait_event(self._arrival)
        return self._copy(self._out, ((pool.device, pool.host) for pool in self._pools), pairs)

    def _copy(
        self, stream: torch.cuda.Stream, memories: Iterable[tuple[Tensor, Tensor]], pairs: Sequence[Pairs]
    ) -> torch.cuda.Event:
        with torch.cuda.stream(stream):
            for (source, target), pool, each in zip(memories, self._pools, pairs, strict=True):
                if each:
                    ops.swap_blocks(source, target, in_pools(each, pool.first_host))
            copied: torch.cuda.Event = stream.record_event()
            return copied

    def wait_in(self) -> None:
        """The current stream reads what was copied in."""
        if self._arrival is not None:
            torch.cuda.current_stream().wait_event(self._arrival)
            self._arrival = None

    def wait_out(self) -> None:
        """The current stream reads what was copied out."""
        torch.cuda.current_stream().wait_stream(self._out)


def _meet(arriving: frozenset[int], pairs: Pairs) -> bool:
    return not arriving.isdisjoint(source for source, _ in pairs)
