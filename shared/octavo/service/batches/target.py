"""Where the answers of a batch go: a file that an earlier run may have begun, a pipe, or a device.

A run holds a lock on its target that ends with its process, however that ends. Two runs would write into each other's
lines, and each would forget what the other one has answered.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from octavo.service.batches.files import BatchFileError, kept_answers
from octavo.service.batches.lines import BatchLine
from octavo.service.console import err

_FILE_MODE = 0o666  # less what the user's umask takes


@contextmanager
def open_target(target: Path, lines: Sequence[BatchLine]) -> Iterator[tuple[TextIO, set[str]]]:
    """The target, open for further answers, and the ids of the lines that it has answers to: none of a pipe or a
    device, which cannot be read again. Raises BatchFileError for a target that another run writes to, that is no place
    for lines or holds something else than answers, and OSError."""
    kind = _kind(target)
    if stat.S_ISBLK(kind) or stat.S_ISSOCK(kind):
        raise BatchFileError(f"{target} is a {'disk' if stat.S_ISBLK(kind) else 'socket'}: name a file or a pipe")
    with ExitStack() as held:
        if kind == 0 or stat.S_ISREG(kind) or stat.S_ISDIR(kind):
            path = target.resolve()  # a link stays one when its file is replaced
            descriptor, done = _continued(path, lines, held)
        else:
            descriptor, done = _open_stream(target, held), set()
        with open(os.dup(descriptor), "a", encoding="utf-8") as output:
            yield output, done


def _kind(target: Path) -> int:
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return 0


def _continued(path: Path, lines: Sequence[BatchLine], held: ExitStack) -> tuple[int, set[str]]:
    """A file without what the next run answers again. All or nothing: an interruption loses no answer."""
    descriptor = _open_locked(path, held)
    done, text = kept_answers(path, lines)
    data = text.encode()
    if data != path.read_bytes():
        draft = path.with_name(f"{path.name}.part")
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        draft.unlink(missing_ok=True)
        descriptor = _open_locked(draft, held)
        os.fchmod(descriptor, mode)
        with open(os.dup(descriptor), "wb") as output:
            output.write(data)
        draft.replace(path)
    return descriptor, done & {line.id for line in lines}


def _open_locked(path: Path, held: ExitStack) -> int:
    """A file for appending, with a lock on it until `held` ends. Raises BatchFileError if another run has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, _FILE_MODE)
        held.callback(os.close, descriptor)
        _lock(descriptor, path)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor  # else a run that has just ended had replaced it by another one


def _open_stream(target: Path, held: ExitStack) -> int:
    """A pipe, once it has a reader, or a device."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError:
        if not target.is_fifo():
            raise
        err.print(f"waiting for a reader of {target}")
        descriptor = os.open(target, os.O_WRONLY | os.O_APPEND)
    held.callback(os.close, descriptor)
    os.set_blocking(descriptor, True)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        _lock(descriptor, target)
    return descriptor


def _lock(descriptor: int, target: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BatchFileError(f"another run writes to {target}: wait until it has ended, or name another file") from None
