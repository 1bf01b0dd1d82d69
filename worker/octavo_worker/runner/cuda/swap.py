"""Copies of whole blocks between the device and the host's pinned memory, overlapped with computation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_worker.model.causal_model import in_pools


class SwapStreams:
    """One stream a direction.

    Copies out wait for the computation before them. So do copies in, as their targets may just have been freed; they
    also wait for the copies out, as a sequence that the previous step swapped out may return at once. Copies in are
    waited for by the computation after `wait_in`, and by copies out of the blocks that they fill.
    Host blocks have the ids from `first_host_block` on.
    """

    def __init__(self, device_pool: Tensor, host_pool: Tensor, first_host_block: int) -> None:
        self._device_pool, self._host_pool = device_pool, host_pool
        self._first_host_block = first_host_block
        self._out = torch.cuda.Stream(device_pool.device)
        self._in = torch.cuda.Stream(device_pool.device)
        self._arrival: torch.cuda.Event | None = None
        self._arriving: frozenset[int] = frozenset()  # device blocks, of the last copies in

    def bring(self, pairs: Sequence[tuple[int, int]]) -> torch.cuda.Event:
        """Starts to copy (host block, device block). The event fires when they are there."""
        self._in.wait_stream(torch.cuda.current_stream())
        self._in.wait_stream(self._out)
        self._arrival = self._copy(self._in, self._host_pool, self._device_pool, pairs)
        self._arriving = frozenset(block for _, block in pairs)
        return self._arrival

    def send(self, pairs: Sequence[tuple[int, int]]) -> torch.cuda.Event:
        """Starts to copy (device block, host block). The event fires when they have left."""
        self._out.wait_stream(torch.cuda.current_stream())
        if self._arrival is not None and not self._arriving.isdisjoint(block for block, _ in pairs):
            self._out.wait_event(self._arrival)
        return self._copy(self._out, self._device_pool, self._host_pool, pairs)

    def _copy(
        self, stream: torch.cuda.Stream, source: Tensor, target: Tensor, pairs: Sequence[tuple[int, int]]
    ) -> torch.cuda.Event:
        ids = in_pools(pairs, self._first_host_block)
        with torch.cuda.stream(stream):
            ops.swap_blocks(source, target, ids)
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
