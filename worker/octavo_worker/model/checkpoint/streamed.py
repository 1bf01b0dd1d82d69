"""A checkpoint streamed into the GPU's memory, several pieces at a time."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
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

    file: int
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
        self.stream = torch.cuda.Stream(device)

    def fill(self, load: Sequence[Piece], usable: torch.cuda.Event) -> None:
        """Reads pieces and starts their copies, which wait for the event `usable`."""
        self.stream.synchronize()  # the copies before these
        sizes = [piece.size for piece in load]
        parts = list(zip(load, self.buffer[: sum(sizes)].split(sizes), strict=True))
        for piece, part in parts:
            read_bytes(piece.file, piece.begin, part.numpy().data)
        self.stream.wait_event(usable)
        with torch.cuda.stream(self.stream):
            for piece, part in parts:  # the copy of a part of pinned rows would wait for the device
                piece.take(part.to(piece.target.device, non_blocking=True) if piece.row_bytes else part)


@dataclass
class StreamedCheckpoint(Checkpoint):
    """A checkpoint that threads read through pinned buffers, straight into tensors on a GPU: at nearly the speed of the
    link or of the disk, whichever is slower, and with no copy in pageable memory.

    `read` returns at once; `wait` and `finish` return when all values have arrived. Tensors to convert or to transpose
    are read as on a CPU.
    """

    _descriptors: dict[Path, int] = field(default_factory=dict)
    _asked: list[Callable[[int], Iterator[Piece]]] = field(default_factory=list)
    _bytes: int = 0  # of what was asked for
    _loads: list[Future[None]] = field(default_factory=list)
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
        self._asked.append(partial(pieces_of, self._open(self.files[name]), place, target, cut))
        self._bytes += target.nbytes
        if self._bytes >= THREADS * PIECE:
            self._start()

    def wait(self) -> None:
        self._start()
        for load in self._loads:
            load.result()
        self._loads.clear()
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

    def _start(self) -> None:
        """Shares out among the threads what was asked for, small tensors by many at a time: a thread that has read
        waits for the interpreter."""
        if not self._asked:
            return
        # Work in flight on the current stream may still use or fill the targets' memory.
        usable = torch.cuda.current_stream(self._buffers[0].stream.device).record_event()
        size = min(PIECE, max(LEAST, -(-self._bytes // THREADS)))
        for load in loads_of(chain.from_iterable(pieces(size) for pieces in self._asked), size):
            self._loads.append(self._threads.submit(self._load, load, usable))
        self._asked.clear()
        self._bytes = 0

    def _load(self, load: Sequence[Piece], usable: torch.cuda.Event) -> None:
        staging = self._idle.get()
        try:
            staging.fill(load, usable)
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


def pieces_of(file: int, place: Place, target: Tensor, cut: Cut | None, size: int) -> Iterator[Piece]:
    """Pieces of a tensor, or of what a `cut` leaves of it, for a contiguous `target`: of up to `size` bytes, or of a
    row, all of which is read for a part of it."""
    octets = target.view(-1).view(torch.uint8)
    cut = cut or Cut((len(octets),), [range(len(octets))])
    row_bytes, held = (place.end - place.begin) // cut.shape[0], len(octets) // sum(map(len, cut.rows))
    for rows, stretch in zip(cut.rows, octets.split([held * len(each) for each in cut.rows]), strict=True):
        begin, unit, first = place.begin + rows.start * row_bytes, 0, 0
        if not cut.has_whole_rows:
            stretch, unit, first = stretch.view(len(rows), -1), row_bytes, cut.columns.start * target.itemsize
        step = max(1, size // max(1, unit))
        for at in range(0, len(stretch), step):
            yield Piece(file, begin + at * max(1, unit), stretch[at : at + step], unit, first)


def loads_of(pieces: Iterable[Piece], size: int) -> Iterator[list[Piece]]:
    """Pieces in their order, those together that have up to `size` bytes."""
    load: list[Piece] = []
    room = size
    for piece in pieces:
        if load and piece.size > room:
            yield load
            load, room = [], size
        load.append(piece)
        room -= piece.size
    if load:
        yield load
