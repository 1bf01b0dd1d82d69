"""Memory that a process holds on to: for tests that look for leaks."""

from __future__ import annotations

import gc
import subprocess
from dataclasses import dataclass

import psutil
import torch
from waiting import STALL_S

SEGMENT = 20 << 20
"""Bytes that torch's allocator reserves at a time: on a busy machine steps may overlap that did not before."""
NEW_SIZES = 1 << 20
"""Bytes of plans of attention and of graphs that a step of a new size brings, however late it comes. Leaks of thousands
of requests are more."""


@dataclass(frozen=True)
class Holdings:
    """File descriptors, threads, Python objects and resident bytes of this process. On a GPU also what torch has
    allocated, reserved and pinned, and the bytes that the driver reports as used. The driver does not tell processes
    apart, so that figure is None unless this process is alone on the GPU.

    torch caches freed pinned buffers, as many as copies were ever in flight at once, which is a matter of timing. The
    cache is emptied before counting.
    """

    descriptors: int
    threads: int
    objects: int
    resident: int
    device: int = 0
    reserved: int = 0
    pinned: int = 0
    driver: int | None = None

    @classmethod
    def now(cls, *, cuda: bool = False) -> Holdings:
        gc.collect()
        process = psutil.Process()
        here = (process.num_fds(), process.num_threads(), len(gc.get_objects()), process.memory_info().rss)
        if not cuda:
            return cls(*here)
        torch.cuda.synchronize()
        torch._C._host_emptyCache()
        free, total = torch.cuda.mem_get_info()
        pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
        driver = total - free if processes_on_gpus() == 1 else None
        return cls(*here, torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), pinned, driver)

    def assert_no_more_than(self, before: Holdings) -> None:
        """Equal but for a few objects and pages: caches of the interpreter fill slowly."""
        assert self.descriptors <= before.descriptors
        assert self.threads <= before.threads
        assert self.objects <= before.objects + 500
        assert self.resident <= before.resident + (16 << 20)
        assert self.device <= before.device + NEW_SIZES
        assert self.reserved <= before.reserved + SEGMENT
        assert self.pinned <= before.pinned
        if self.driver is not None and before.driver is not None:
            assert self.driver <= before.driver


def processes_on_gpus() -> int:
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return len(subprocess.run(command, capture_output=True, text=True, timeout=STALL_S, check=True).stdout.splitlines())
