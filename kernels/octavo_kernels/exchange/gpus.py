"""Sums and gathers over the GPUs of one host: memory on each of them that the kernels of all ranks write and read.

A rank is a process, and its GPU reaches those of the others over NVLink. What is small is pushed: each rank writes its
part into the memory of all others, and a word that is there is its own flag. What is larger is pulled: ranks meet, then
read each other's parts. A sum begins with +0, takes the ranks in their order and then the residual, in float32, and is
rounded once: its bits are the same by either way, on all ranks, for any number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import torch
from torch import Tensor

from octavo_kernels import cuda
from octavo_kernels.call import check, check_devices, float_type, rows_of
from octavo_kernels.operands import RmsNorm, norm_at, rows_at

MOST_RANKS = 8
PUSHED = 1 << 20
"""Bytes that a rank gets from the others by push in one call, at most. More of them keep NVLink busy for longer than
ranks take to meet twice."""
PATTERNS = (4096, 3 << 20)
"""Bytes that `Exchange.check` gathers: by push, by pull."""
APART = "the ranks' GPUs do not reach each other's memory: give one rank (--tensor-parallel 1), or GPUs with NVLink"


class ExchangeError(RuntimeError):
    """Ranks do not come together on their GPUs; the message says why and what to do."""


class Way(IntEnum):
    """How parts get to the other ranks. The numbers are those of exchange/args.h."""

    PUSH = 0
    PULL = 1
    SHARED_PULL = 2


def slot_bytes(ranks: int) -> int:
    """The largest message that is pushed."""
    return PUSHED // max(1, ranks - 1) // 16 * 16


def way_to_add(ranks: int, rows: int, row_bytes: int, blocks: int) -> Way:
    """For a sum of `rows` of `row_bytes`; `blocks`: so many rows are summed at once. Of more than two ranks each sums a
    share of what is not pushed, and writes it to the others."""
    if rows * row_bytes <= slot_bytes(ranks) and rows <= blocks:
        return Way.PUSH
    return Way.SHARED_PULL if ranks > 2 else Way.PULL


def way_to_gather(ranks: int, nbytes: int) -> Way:
    """Three words of four are data: the fourth says which of them look like words that have not come."""
    return Way.PUSH if nbytes <= slot_bytes(ranks) // 16 * 12 else Way.PULL


class Exchange:
    """Memory of this rank's GPU that the kernels of all ranks write and read (CUDA IPC), and those kernels. The
    others connect to `handle`, which is bytes.

    All ranks make the same calls in the same order, on one stream each, with tensors of the same shapes and types. They
    are launched on the current stream and can be captured in CUDA graphs, which all ranks replay in the same order.
    Nothing waits on the host. A kernel waits for the other ranks until they have come, `abort` is called, or about ten
    seconds have passed; `lost` tells of the latter two.
    """

    def __init__(self, rank: int, ranks: int, device: torch.device, part_bytes: int) -> None:
        """Rank `rank` of `ranks`, on the GPU `device`, with room for messages of `part_bytes` beyond those that are
        pushed. Raises `ExchangeError`."""
        if not hasattr(cuda.compiled, "Exchange"):
            raise ExchangeError(
                f"this build of octavo-kernels has no kernels that join GPUs: {cuda.BUILD_STEP}, or give one rank"
            )
        if not 0 <= rank < ranks <= MOST_RANKS:
            raise ExchangeError(f"there is no rank {rank} of {ranks}: give 1 to {MOST_RANKS} ranks, counted from 0")
        self.rank, self.ranks = rank, ranks
        self._part_bytes = -(-part_bytes // 16) * 16
        with _as_exchange_error("this GPU's memory cannot be shared"), torch.cuda.device(device):
            self.device = torch.device("cuda", torch.cuda.current_device())
            self._memory = cuda.compiled.Exchange(rank, ranks, self.device.index, slot_bytes(ranks), self._part_bytes)
            self.handle: bytes = self._memory.handle()
        self._part = cuda.foreign_memory(self._memory, self._memory.part, self._part_bytes, self.device)

    def connect(self, handles: Sequence[bytes]) -> None:
        """Opens the memory of all ranks, whose handles come in their order. Raises `ExchangeError`."""
        with _as_exchange_error(APART), torch.cuda.device(self.device):
            self._memory.connect(list(handles))

    def check(self) -> None:
        """Sends a pattern to every rank and compares what comes from each: drivers have said that GPUs reach each other
        where they did not. All ranks call it at once; it waits for the device. Raises `ExchangeError`."""
        for nbytes in PATTERNS:
            nbytes = min(nbytes, self._part_bytes)
            sent = [_pattern(rank, nbytes) for rank in range(self.ranks)]
            mine = sent[self.rank].to(self.device)
            got = torch.zeros((self.ranks, nbytes // 4), dtype=torch.int32, device=self.device)
            self.gather(mine, got)
            received = got.cpu()
            if self.lost():
                raise ExchangeError(f"another rank did not come, or {APART}")
            wrong = [rank for rank in range(self.ranks) if not torch.equal(received[rank], sent[rank])]
            if wrong:
                raise ExchangeError(f"rank {self.rank} got other bytes than rank {wrong[0]} sent, so {APART}")

    def addend(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Memory for this rank's part of the next sum: `[rows, columns]`, or fewer rows where there is no room for all,
        the same number on each rank. Always at the same address; float32, bfloat16 or float16."""
        room = self._part_bytes // (columns * dtype.itemsize)
        rows = min(rows, room)
        return self._part[: rows * columns * dtype.itemsize].view(dtype).view(rows, columns)

    def add(
        self,
        addend: Tensor,
        out: Tensor,
        residual: Tensor | None = None,
        norm: RmsNorm | None = None,
        normed: Tensor | None = None,
        way: Way | None = None,
    ) -> None:
        """`out[T, H]` = the addends `[T, H]` of all ranks, in their order, plus `residual[T, H]`, which may be `out`.
        With a norm, `normed[T, H]` has the bits of `ops.rms_norm` of `out`. `way`: None is the fastest.

        A row has a multiple of 16 bytes, 32 KiB at most. What is not pushed lies in `addend()`, and a sum may be left
        in its place; `out` and `normed` never lie there. The norm's weight is read before the stream's previous kernel
        has ended: it must be older than that.
        Raises TypeError or ValueError for what no kernel computes.
        """
        dtype = float_type("addend", addend)
        rows, columns = rows_of("addend", addend)
        check("out", out, addend.dtype, (rows, columns))
        if residual is not None:
            check("residual", residual, addend.dtype, (rows, columns))
        if (norm is None) != (normed is None):
            raise ValueError("norm and normed are given together, or neither is")
        if norm is not None and normed is not None:
            check("norm.weight", norm.weight, addend.dtype, (columns,))
            check("normed", normed, addend.dtype, (rows, columns))
        weight = None if norm is None else norm.weight
        given = {"addend": addend, "out": out, "residual": residual, "norm.weight": weight, "normed": normed}
        check_devices(given)
        row_bytes = columns * addend.itemsize
        if way is None:
            way = way_to_add(self.ranks, rows, row_bytes, self._memory.blocks(row_bytes))
        if way is not Way.PUSH and not (self._begins(addend) and addend.is_contiguous()):
            raise ValueError(f"addends of {rows} rows must be what addend() gives, for the other ranks read them")
        if self._holds(out) or (normed is not None and self._holds(normed)):
            raise ValueError("out and normed must not lie in what addend() gives: the other ranks may still read it")
        cuda.run(
            "exchange_add", self.device, self._memory, int(way), dtype, rows_at(addend), rows_at(residual),
            rows_at(out), norm_at(norm), rows_at(normed), rows, columns,
        )  # fmt: skip

    def gather(self, mine: Tensor, out: Tensor) -> None:
        """`out[ranks, *mine.shape]`: what each rank has, of any type, both dense. A multiple of 4 bytes; what is not
        pushed must fit into `part_bytes` and overwrites what `addend()` gave. Raises TypeError or ValueError."""
        if out.dtype != mine.dtype:
            raise TypeError(f"out must be {mine.dtype}, not {out.dtype}")
        if out.shape != (self.ranks, *mine.shape):
            raise ValueError(f"out must have shape {[self.ranks, *mine.shape]}, not {list(out.shape)}")
        if not mine.is_contiguous() or not out.is_contiguous():
            raise ValueError("mine and out must be contiguous")
        check_devices({"mine": mine, "out": out})
        way = way_to_gather(self.ranks, mine.nbytes)
        if way is not Way.PUSH and mine.nbytes > self._part_bytes:
            raise ValueError(f"mine has {mine.nbytes} bytes and there is room for {self._part_bytes}: gather in pieces")
        if self._holds(out) or (self._holds(mine) and not self._begins(mine)):
            raise ValueError("out must not lie in what addend() gives, and mine only at its beginning")
        cuda.run(
            "exchange_gather", self.device, self._memory, int(way), mine.data_ptr(), out.data_ptr(), mine.nbytes
        )  # fmt: skip

    def abort(self) -> None:
        """Ends all waits of this rank's kernels, now and from now on. From any thread."""
        self._memory.abort()

    def lost(self) -> bool:
        """True if a wait has ended by `abort` or by its time: results since then are garbage, and so is what the
        other ranks have of them. Does not wait for the device."""
        return bool(self._memory.lost())

    def close(self) -> None:
        """Waits for the device and gives the memory back, with every tensor of `addend`. No call follows. The other
        ranks must have no call under way that reads or writes it."""
        del self._part
        self._memory.close()

    def _begins(self, tensor: Tensor) -> bool:
        return bool(tensor.data_ptr() == self._memory.part)

    def _holds(self, tensor: Tensor) -> bool:
        begin: int = self._memory.part
        return begin <= tensor.data_ptr() < begin + self._part_bytes


def _pattern(rank: int, nbytes: int) -> Tensor:
    """Every bit of a word differs somewhere; the word of what has not come occurs, too."""
    words = torch.arange(nbytes // 4, dtype=torch.int64) * 2654435761 + (rank + 1) * 40503
    words[::7] = 1 << 31
    return words.to(torch.int32)


@contextmanager
def _as_exchange_error(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ExchangeError(f"{what} ({error})") from error
