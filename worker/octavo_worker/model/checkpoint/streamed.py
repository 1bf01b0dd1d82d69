"""A checkpoint streamed into the GPU's memory, several pieces at a time."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.source import Checkpoint, Cut
from octavo_worker.model.errors import CheckpointError

PIECE = 16 << 20  # bytes; at this size a copy over the link is as fast as it gets
LEAST = 1 << 20  # bytes; what is larger is shared among the threads, since a quantised matrix is waited for
THREADS = 8


class Staging:
    """A pinned buffer and the stream that copies from it."""

    def __init__(self, device: torch.device) -> None:
        self.buffer = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
        self.bytes = self.buffer.numpy().data
        self.stream = torch.cuda.Stream(device)

    def fill(self, file: int, begin: int, target: Tensor, usable: torch.cuda.Event) -> None:
        """Reads the bytes of `target[n]` (uint8) from the file at `begin` and starts their copy, which waits for the
        event `usable`."""
        self.stream.synchronize()  # the copy before this one
        view, done = self.bytes[: len(target)], 0
        while done < len(target):
            read = os.preadv(file, [view[done:]], begin + done)
            if read == 0:
                raise CheckpointError("a weights file is shorter than its header says; download it again.")
            done += read
        self.stream.wait_event(usable)
        with torch.cuda.stream(self.stream):
            target.copy_(self.buffer[: len(target)], non_blocking=True)


@dataclass
class StreamedCheckpoint(Checkpoint):
    """A checkpoint that threads read through pinned buffers, straight into tensors on a GPU: at nearly the speed of the
    link or of the disk, whichever is slower, and with no copy in pageable memory.

    `read` returns at once; `wait` and `finish` return when all values have arrived. Tensors to convert or to transpose,
    and parts of rows, are read as on a CPU.
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
        scattered = transposed or not target.is_contiguous() or not (cut is None or cut.has_whole_rows)
        if place.dtype is not target.dtype or scattered:
            super().read(name, target, transposed, cut)
            return
        self.unread.discard(name)
        self._prepare(target.device)
        # Work in flight on the current stream may still use or fill the target's memory.
        usable = torch.cuda.current_stream(target.device).record_event()
        file, octets = self._open(self.files[name]), target.view(-1).view(torch.uint8)
        row_bytes = 0 if cut is None else (place.end - place.begin) // cut.shape[0]
        stretches = [(0, len(octets))] if cut is None else [(r.start * row_bytes, len(r) * row_bytes) for r in cut.rows]
        for (begin, _), part in zip(stretches, octets.split([length for _, length in stretches]), strict=True):
            self._submit(file, place.begin + begin, part, usable)

    def _submit(self, file: int, begin: int, octets: Tensor, usable: torch.cuda.Event) -> None:
        size = min(PIECE, max(LEAST, -(-len(octets) // THREADS)))
        for at in range(0, len(octets), size):
            piece = octets[at : at + size]
            self._pieces.append(self._threads.submit(self._load, file, begin + at, piece, usable))

    def wait(self) -> None:
        for piece in self._pieces:
            piece.result()
        self._pieces.clear()
        for buffer in self._buffers:
            buffer.stream.synchronize()

    def finish(self, ignored: Iterable[str]) -> None:
        try:
            self.wait()
        finally:
            self._threads.shutdown(cancel_futures=True)
            for descriptor in self._descriptors.values():
                os.close(descriptor)
        super().finish(ignored)

    def _load(self, file: int, begin: int, target: Tensor, usable: torch.cuda.Event) -> None:
        staging = self._idle.get()
        try:
            staging.fill(file, begin, target, usable)
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
