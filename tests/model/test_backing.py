"""The pages of a pool are backed before they are needed, and backing them changes no value."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from waiting import STALL_S

from octavo_worker.runner.backing import Backing

BLOCK_BYTES = 1 << 20
BLOCKS = 320  # more than twice what is asked for ahead


@pytest.fixture
def pool() -> Iterator[Tensor]:
    yield torch.empty((BLOCKS, BLOCK_BYTES), dtype=torch.uint8)
    _wait()


def _wait() -> None:
    for thread in threading.enumerate():
        if thread.name == "backing":
            thread.join()


def _backed_blocks(pool: Tensor) -> int:
    """Leading blocks whose pages are all in memory."""
    first = -(-pool.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = (pool.data_ptr() + pool.numel() - first) // mmap.PAGESIZE
    found = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(pages * mmap.PAGESIZE), found) == 0
    missing = next((page for page, state in enumerate(found) if not state & 1), pages)
    return (missing + 1) * mmap.PAGESIZE // BLOCK_BYTES


@pytest.mark.full
def test_stays_ahead_of_what_is_in_use_and_takes_no_more(pool: Tensor) -> None:
    backing = Backing(pool)
    _wait()
    ahead = _backed_blocks(pool)
    assert 0 < ahead < BLOCKS // 2

    for block in range(ahead):
        backing.reach(block)
    _wait()
    assert 1.4 * ahead < _backed_blocks(pool) <= 2 * ahead + 1

    backing.reach(BLOCKS - 1)
    _wait()
    assert _backed_blocks(pool) == BLOCKS


@pytest.mark.full
def test_what_a_block_holds_stays(pool: Tensor) -> None:
    pool[:4] = 7
    backing = Backing(pool)
    backing.reach(200)
    pool[200] = 9
    _wait()
    assert (pool[:4] == 7).all()
    assert (pool[200] == 9).all()


def test_a_small_pool_is_backed_at_once_and_no_thread_stays() -> None:
    pool = torch.zeros((3, 10), dtype=torch.int16)
    backing = Backing(pool)
    backing.reach(2)
    _wait()
    assert not [thread for thread in threading.enumerate() if thread.name == "backing"]
    assert not pool.any()


@pytest.mark.full
def test_a_process_ends_without_a_thread_that_still_holds_a_pool() -> None:
    """A thread that lets go of a tensor while the interpreter ends aborts the process."""
    program = f"""
import atexit, threading, torch
from octavo_worker.runner.backing import Backing
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
Backing(torch.empty(({BLOCKS}, {BLOCK_BYTES}), dtype=torch.uint8))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=STALL_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['MainThread']"
