"""Whole blocks between the device and pinned memory of the host, beside the computation."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_kernels import ops


class SwapStreams:
    """One stream for each direction. Copies out wait for what was computed before and hold up nothing; copies in wait
    for it, too (their targets may just have been freed) and for the copies out (whoever the step before it sent to the
    host may come back at once). For their end waits `wait_in`."""

    def __init__(self, device_pool: Tensor, host_pool: Tensor) -> None:
        self._device_pool, self._host_pool = device_pool, host_pool
        self._out = torch.cuda.Stream(device_pool.device)
        self._in = torch.cuda.Stream(device_pool.device)

    def move(self, swap_out: list[tuple[int, int]], swap_in: list[tuple[int, int]]) -> list[torch.cuda.Event]:
        """Starts both. The events fire when all is done."""
        compute = torch.cuda.current_stream()
        events = []
        if swap_out:
            self._out.wait_stream(compute)
            with torch.cuda.stream(self._out):
                ops.swap_blocks(self._device_pool, self._host_pool, torch.tensor(swap_out, dtype=torch.int64))
                events.append(self._out.record_event())
        if swap_in:
            self._in.wait_stream(compute)
            self._in.wait_stream(self._out)
            with torch.cuda.stream(self._in):
                ops.swap_blocks(self._host_pool, self._device_pool, torch.tensor(swap_in, dtype=torch.int64))
                events.append(self._in.record_event())
        return events

    def wait_in(self) -> None:
        """The current stream reads what was copied in."""
        torch.cuda.current_stream().wait_stream(self._in)

    def wait_out(self) -> None:
        """The current stream reads what was copied out."""
        torch.cuda.current_stream().wait_stream(self._out)
