"""The further ranks of a model: child processes of the engine, and memory that they share with it.

They begin to load before the engine's own imports are done, so nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from octavo_worker.contract.lifetime import die_with, in_words
from octavo_worker.contract.messages import StartRefused
from octavo_worker.contract.options import ModelOptions

MOST_BYTES = 1 << 16  # of a message
READY, REFUSED, GO = b"ready", b"refused: ", b"go"


class RanksFailed(StartRefused):
    """The ranks of a model do not come together; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A rank and the socket to it, on which messages keep their borders."""

    index: int
    process: subprocess.Popen[bytes]
    sock: socket.socket

    def await_message(self) -> bytes:
        """Raises `RanksFailed` with its reason if it refuses, and if it dies."""
        message = self.sock.recv(MOST_BYTES)
        if not message:
            status = self.process.wait()
            raise RanksFailed(f"rank {self.index} ended while the model was loaded ({in_words(status)}).")
        if message.startswith(REFUSED):
            raise RanksFailed(f"rank {self.index}: {message.removeprefix(REFUSED).decode()}")
        return message

    def await_ready(self) -> None:
        """Raises `RanksFailed` as `await_message` does, and for any other message."""
        message = self.await_message()
        if message != READY:
            raise RanksFailed(f"rank {self.index} said {message[:99]!r} and not that it is ready.")


class Ranks:
    """Ranks 1 and up of this process's model. They die with it, even if it is killed, and when nothing refers to them
    any more."""

    def __init__(self, memory: int, processes: list[RankProcess]) -> None:
        self.memory = memory
        self.processes = processes
        self.abandon: Callable[[], None] | None = None
        """Called when a rank was lost, before anything else: ends what this process's GPU waits for."""
        self._is_closing = False
        self._end = weakref.finalize(self, _end, memory, processes)
        self._end.atexit = False  # then they die by themselves

    @classmethod
    def start(cls, options: ModelOptions) -> Self:
        """Starts `options.tensor_parallel` - 1 processes. Raises `RanksFailed` where there is no memory to share."""
        memory = _shared_memory()
        return cls(memory, [_start(options, index, memory) for index in range(1, options.tensor_parallel)])

    def send(self, message: bytes) -> None:
        """To every rank; one that has died is noticed elsewhere."""
        for each in self.processes:
            with contextlib.suppress(ConnectionError):
                each.sock.send(message)

    def watch(self, lost: Callable[[RankProcess, int], None]) -> None:
        """Calls `lost`, in another thread, as soon as a rank ends, with its exit status."""

        def wait(rank: RankProcess) -> None:
            status = rank.process.wait()
            if self._is_closing:
                return
            if self.abandon is not None:
                self.abandon()
            lost(rank, status)

        for each in self.processes:
            threading.Thread(target=wait, args=(each,), name=f"rank-{each.index}", daemon=True).start()

    def close(self) -> None:
        """Ends all ranks: they hold nothing that is worth keeping."""
        self._is_closing = True
        self._end()


def _end(memory: int, processes: list[RankProcess]) -> None:
    for each in processes:
        each.process.kill()
        each.process.wait()
        each.sock.close()
    os.close(memory)


def die_as(rank: RankProcess, status: int) -> None:
    """Ends this process as its rank ended: the agent tells what was killed from what failed, and shows the last words
    of what failed, which are the rank's."""
    if status < 0:
        print(f"rank {rank.index} was {in_words(status)}: the engine ends, too", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(status or 1)


def reserve(memory: int, size: int) -> None:
    """Gives the shared memory that size; every rank asks for the same. Raises `RanksFailed` if there is not as much."""
    try:
        os.posix_fallocate(memory, 0, size)
    except OSError as error:
        raise RanksFailed(
            f"the ranks need {size >> 20} MiB of shared memory, which the system refuses ({error.strerror}); raise the "
            "memory limit of the container, or leave --tensor-parallel out."
        ) from error


def _shared_memory() -> int:
    """A descriptor. It needs no /dev/shm, which containers have little of, and vanishes with the last process."""
    try:
        return os.memfd_create("octavo-ranks")
    except (AttributeError, OSError) as error:
        raise RanksFailed(
            f"this system gives no memory that processes share (memfd_create: {error}); leave --tensor-parallel out."
        ) from error


def _start(options: ModelOptions, index: int, memory: int) -> RankProcess:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "octavo_worker.assembly.rank_process"),
                *("--rank", str(index), "--fd", str(theirs.fileno()), "--memory", str(memory)),
                *("--options", options.to_json()),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), memory),
            preexec_fn=die_with(os.getpid()),
        )
    return RankProcess(index, process, ours)
