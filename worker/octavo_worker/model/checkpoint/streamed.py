"""A checkpoint streamed into the GPU's memory, several pieces at a time."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.header import Place
from octavo_worker.model.checkpoint.source import Checkpoint, Cut
from octavo_worker.model.errors import CheckpointError

PIECE = 16 << 20  # bytes; at this size a copy over the link is as fast as it gets
LEAST = 1 << 20  # bytes; what is larger is shared among the threads, since a quantised matrix is waited for
THREADS = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file from `begin` on, for `target[n]` (uint8). With `row_bytes` they are rows of so many bytes, of
    which those from `first` on fill the rows of `target[n, width]`."""

    begin: int
    target: Tensor
    row_bytes: int = 0
    first: int = 0

    @property
    def size(self) -> int:
        """Bytes that are read."""
        return len(self.target) * max(self.row_bytes, 1)

    def take(self, read: Tensor) -> None:
        if self.row_bytes:
            read = read.view(-1, self.row_bytes)[:, self.first : self.first + self.target.shape[1]]
        self.target.copy_(read, non_blocking=True)


def read_bytes(file: int, begin: int, into: memoryview) -> None:
    """Fills `into` from a file, from byte `begin` on. Raises `CheckpointError` for a file that is too short."""
    done = 0
    while done < len(into):
        read = os.preadv(file, [into[done:]], begin + done)
        if read == 0:
            raise CheckpointError("a weights file is shorter than its header says; download it again.")
        done += read


class Staging:
    """A pinned buffer and the stream that copies from it."""

    def __init__(self, device: torch.device) -> None:
        self.buffer = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
        self.bytes = self.buffer.numpy().data
        self.stream = torch.cuda.Stream(device)

    def fill(self, file: int, piece: Piece, usable: torch.cuda.Event) -> None:
        """Reads a piece and starts its copy, which waits for the event `usable`."""
        self.stream.synchronize()  # the copy before this one
        read_bytes(file, piece.begin, self.bytes[: piece.size])
        self.stream.wait_event(usable)
        with torch.cuda.stream(self.stream):
            read = self.buffer[: piece.size]
            if piece.row_bytes:  # the copy of a part of pinned rows would wait for the device
                read = read.to(piece.target.device, non_blocking=True)
            piece.take(read)


@dataclass
class StreamedCheckpoint(Checkpoint):
    """A checkpoint that threads read through pinned buffers, straight into tensors on a GPU: at nearly the speed of the
    link or of the disk, whichever is slower, and with no copy in pageable memory.

    `read` returns at once; `wait` and `finish` return when all values have arrived. Tensors to convert or to transpose
    are read as on a CPU.
    """

    _descriptors: dict[Path, int] = field(default_factory=dict)
    _pieces: list[Future[None]] = field(default_factory=list)
    _buffers: list[Staging] = field(default_factory=list)
    _idle: queue.SimpleQueue[Staging] = field(default_factory=queue.SimpleQueue)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="weights")

    def read(self, name: str, target: Tensor, transposed: bool = False, cut: Cut | None = None) -> None:
        self._check(name, target, transposed, cut)
        place = self.places[name]
        is_turned = transposed or name in self.turned
        if place.dtype is not target.dtype or is_turned or not target.is_contiguous() or not target.numel():
            super().read(name, target, transposed, cut)
            return
        self.unread.discard(name)
        self._prepare(target.device)
        # Work in flight on the current stream may still use or fill the target's memory.
        usable = torch.cuda.current_stream(target.device).record_event()
        file = self._open(self.files[name])
        for piece in pieces_of(place, target, cut):
            self._pieces.append(self._threads.submit(self._load, file, piece, usable))

    def wait(self) -> None:
        for piece in self._pieces:
            piece.result()
        self._pieces.clear()
        for buffer in self._buffers:
            buffer.stream.synchronize()

    def finish(self, has_no_use: Callable[[str], bool]) -> None:
        try:
            self.wait()
        finally:
            self._threads.shutdown(cancel_futures=True)
            for descriptor in self._descriptors.values():
                os.close(descriptor)
        super().finish(has_no_use)

    def _load(self, file: int, piece: Piece, usable: torch.cuda.Event) -> None:
        staging = self._idle.get()
        try:
            staging.fill(file, piece, usable)
        finally:
            self._idle.put(staging)

    def _prepare(self, device: torch.device) -> None:
        """Allocates two buffers a thread on first use: one is filled while the other is copied."""
        if not self._buffers:
            self._buffers = [Staging(device) for _ in range(2 * THREADS)]
            for buffer in self._buffers:
                self._idle.put(buffer)

    def _open(self, file: Path) -> int:
        if file not in self._descriptors:
            self._descriptors[file] = os.open(file, os.O_RDONLY)
        return self._descriptors[file]


def pieces_of(place: Place, target: Tensor, cut: Cut | None) -> Iterator[Piece]:
    """Pieces of a tensor, or of what a `cut` leaves of it, for a contiguous `target`. Of parts of rows whole ones are
    read."""
    octets = target.view(-1).view(torch.uint8)
    if cut is None:
        yield from _pieces(place.begin, octets)
        return
    row_bytes = (place.end - place.begin) // cut.shape[0]
    stretches = octets.split([octets.numel() // len(target) * len(rows) for rows in cut.rows])
    for rows, stretch in zip(cut.rows, stretches, strict=True):
        begin = place.begin + rows.start * row_bytes
        if cut.has_whole_rows:
            yield from _pieces(begin, stretch)
        else:
            yield from _pieces(begin, stretch.view(len(rows), -1), row_bytes, cut.columns.start * target.itemsize)


def _pieces(begin: int, target: Tensor, row_bytes: int = 0, first: int = 0) -> Iterator[Piece]:
    step = max(row_bytes, 1)
    size = max(1, min(PIECE, max(LEAST, -(-len(target) * step // THREADS))) // step)
    for at in range(0, len(target), size):
        yield Piece(begin + at * step, target[at : at + size], row_bytes, first)
