"""A checkpoint streamed into the GPU's memory, several pieces at a time."""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from octavo_worker.model.checkpoint.source import Checkpoint
from octavo_worker.model.errors import CheckpointError

PIECE = 16 << 20  # bytes; at this size a copy over the link is as fast as it gets
THREADS = 8
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in its file: bytes from `begin` to `end`."""

    dtype: torch.dtype | None  # None: one that no weights are loaded as
    shape: tuple[int, ...]
    begin: int
    end: int


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

    `read` returns at once; `finish` returns when all values have arrived. Tensors to convert or to transpose are read
    as on a CPU.
    """

    _places: dict[Path, dict[str, Place]] = field(default_factory=dict)
    _descriptors: dict[Path, int] = field(default_factory=dict)
    _pieces: list[Future[None]] = field(default_factory=list)
    _stagings: list[Staging] = field(default_factory=list)
    _idle: queue.SimpleQueue[Staging] = field(default_factory=queue.SimpleQueue)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="weights")

    def read(self, name: str, target: Tensor, transposed: bool = False) -> None:
        place = self._place(name) if name in self.files else None
        direct = place is not None and place.dtype is target.dtype and place.shape == tuple(target.shape)
        if place is None or not direct or transposed or not target.is_contiguous():
            super().read(name, target, transposed)
            return
        self.unread.discard(name)
        self._prepare(target.device)
        # Work in flight on the current stream may still use or fill the target's memory.
        usable = torch.cuda.current_stream(target.device).record_event()
        file, octets = self._open(self.files[name]), target.view(-1).view(torch.uint8)
        for at in range(0, len(octets), PIECE):
            piece = octets[at : at + PIECE]
            self._pieces.append(self._threads.submit(self._load, file, place.begin + at, piece, usable))

    def wait(self) -> None:
        for piece in self._pieces:
            piece.result()
        self._pieces.clear()
        for staging in self._stagings:  # none is in a thread's hands
            staging.stream.synchronize()

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
        if not self._stagings:
            self._stagings += [Staging(device) for _ in range(2 * THREADS)]
            for staging in self._stagings:
                self._idle.put(staging)

    def _open(self, file: Path) -> int:
        if file not in self._descriptors:
            self._descriptors[file] = os.open(file, os.O_RDONLY)
        return self._descriptors[file]

    def _place(self, name: str) -> Place | None:
        file = self.files[name]
        if file not in self._places:
            self._places[file] = read_header(file)
        return self._places[file].get(name)


def read_header(file: Path) -> dict[str, Place]:
    """The tensors of a safetensors file: eight bytes of length, a JSON header of that length, then the data.
    https://huggingface.co/docs/safetensors. Raises `CheckpointError` for anything else."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        try:
            header = json.loads(opened.read(length)) if length <= file.stat().st_size else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file} is not a safetensors file; download it again.")
    start = 8 + length
    return {
        name: Place(
            DTYPES.get(entry["dtype"]), tuple(entry["shape"]), *(start + offset for offset in entry["data_offsets"])
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }
