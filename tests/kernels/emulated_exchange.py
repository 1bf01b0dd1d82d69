"""Sums and gathers over GPUs as functions on the CPU: their own source, compiled for the host (emulator/). Each GPU
is a thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from octavo_kernels.exchange.gpus import MOST_RANKS, Way
from octavo_kernels.operands import DTYPES, RmsNorm, address

from .emulated import aligned, build

T = TypeVar("T")


class Ranks(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("rank", "ranks", "blocks")), ("slot_bytes", ctypes.c_int64),
        ("memory", ctypes.c_void_p * MOST_RANKS), ("watch", ctypes.c_void_p),
    )  # fmt: skip


class Sum(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int), ("columns", ctypes.c_int), ("rows", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("addend", "residual", "weight", "out", "normed")),
        ("eps", ctypes.c_float), ("offset", ctypes.c_float),
    )  # fmt: skip


def library(folder: Path) -> ctypes.CDLL:
    built = build(folder, "exchange", "exchange_entry.cpp", "-DEMULATED_GPUS=1")
    built.prepare.restype = ctypes.c_int64
    built.prepare.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
    built.gather.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int]
    return built


class EmulatedGpus:
    """`blocks` of 1,024 threads run at once on each. `seed` decides in which order threads take their turns."""

    def __init__(
        self, built: ctypes.CDLL, ranks: int, slot_bytes: int, part_bytes: int, blocks: int = 2, seed: int = 0
    ) -> None:
        self._library, self.ranks, self._seed = built, ranks, seed
        self._part_at = built.prepare(None, ranks, slot_bytes)
        self._memory = [aligned(torch.zeros(self._part_at + part_bytes, dtype=torch.uint8)) for _ in range(ranks)]
        self._watches = [torch.zeros(2, dtype=torch.int32) for _ in range(ranks)]
        addresses = (ctypes.c_void_p * MOST_RANKS)(*(memory.data_ptr() for memory in self._memory))
        for memory in self._memory:
            built.prepare(memory.data_ptr(), ranks, slot_bytes)
        self._views = [
            Ranks(rank, ranks, blocks, slot_bytes, addresses, watch.data_ptr())
            for rank, watch in enumerate(self._watches)
        ]
        self._threads = ThreadPoolExecutor(ranks)

    def each(self, call: Callable[[int], T]) -> list[T]:
        """Results of `call` for each rank, all at once."""
        return list(self._threads.map(call, range(self.ranks)))

    def addend(self, rank: int, like: Tensor) -> Tensor:
        """`like` where other ranks read it."""
        part = self._memory[rank][self._part_at : self._part_at + like.nbytes]
        return part.view(like.dtype).view(like.shape).copy_(like)

    def add(
        self, rank: int, way: Way, addend: Tensor, residual: Tensor | None, norm: RmsNorm | None
    ) -> tuple[Tensor, Tensor | None]:
        """`out` and `normed`; a residual is overwritten by the sum."""
        out = aligned(torch.full_like(addend, float("nan"))) if residual is None else residual
        normed = None if norm is None else aligned(torch.full_like(addend, float("nan")))
        weight, eps, offset = (None, 0.0, 0.0) if norm is None else (norm.weight, norm.eps, norm.offset)
        operands = Sum(
            DTYPES[addend.dtype], addend.shape[1], addend.shape[0], addend.data_ptr(), address(residual),
            address(weight), out.data_ptr(), address(normed), eps, offset,
        )  # fmt: skip
        self._call(rank, "add", ctypes.byref(operands), int(way))
        return out, normed

    def gather(self, rank: int, way: Way, mine: Tensor) -> Tensor:
        out = aligned(torch.zeros((self.ranks, *mine.shape), dtype=mine.dtype))
        part = self._memory[rank].data_ptr() + self._part_at
        self._call(rank, "gather", mine.data_ptr(), part, out.data_ptr(), mine.nbytes, int(way))
        return out

    def abort(self, rank: int) -> None:
        self._watches[rank][0] = 1

    def lost(self, rank: int) -> bool:
        return bool(self._watches[rank][1])

    def pass_time(self, seconds: float) -> None:
        self._library.pass_time(ctypes.c_uint64(int(seconds * 1e9)))

    def _call(self, rank: int, name: str, *arguments: object) -> None:
        self._seed += 1
        self._library.seed(self._seed * MOST_RANKS + rank)
        error = getattr(self._library, name)(ctypes.byref(self._views[rank]), *arguments)
        if error:
            raise ValueError(f"{name}: error {error}")
