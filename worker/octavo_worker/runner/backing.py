"""Pages of the CPU's pool, backed ahead of their first touch."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading

from torch import Tensor

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: back these pages, whatever is in them (Linux 5.14)
_NICE = 10
_AHEAD_BYTES = 128 << 20
_AT_ONCE_BYTES = 1 << 20  # other first touches wait for no more than this


class Backing:
    """Keeps more blocks of a CPU pool backed than are in use, so that no prompt waits for pages.

    The first touch of a page takes a microsecond, and ten on a virtual machine whose host has to back it, too: a prompt
    of 128 tokens waited 10 ms for a thousand pages. Unused blocks are allocated in ascending order, so the highest
    block in use tells which come next. On systems without the request, the first touch backs a page.
    """

    def __init__(self, pool: Tensor) -> None:
        """`pool[blocks, ...]` is contiguous."""
        self._pool = pool
        self._block_bytes = pool[0].numel() * pool.element_size()
        self._end = len(pool) * self._block_bytes
        self._asked = 0
        self.reach(0)

    def reach(self, block: int) -> None:
        """Blocks up to this one are in use."""
        wanted = min((block + 1) * self._block_bytes + _AHEAD_BYTES, self._end)
        if self._asked == self._end or wanted < min(self._asked + _AHEAD_BYTES // 2, self._end):
            return
        # Not a daemon: one that releases the pool, inside torch, while the interpreter ends would abort the process.
        threading.Thread(target=_populate, args=(self._pool, self._asked, wanted), name="backing").start()
        self._asked = wanted


def _populate(pool: Tensor, begin: int, end: int) -> None:
    """Backs bytes `begin` to `end` of `pool`, in a thread of low priority that ends with the main one."""
    if sys.platform != "linux":
        return
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    system, base = ctypes.CDLL(None), pool.data_ptr()
    for start in range(base + begin, base + end, _AT_ONCE_BYTES):
        if not threading.main_thread().is_alive():
            return
        first, last = start // mmap.PAGESIZE * mmap.PAGESIZE, min(start + _AT_ONCE_BYTES, base + end)
        if system.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _POPULATE_WRITE):
            return
