"""Controls of the workers that `octavo up` owns: a socket in the state folder, for programs of this user alone."""

from __future__ import annotations

import asyncio
import os
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from octavo.terms.errors import OctavoError

_PATIENCE_S = 5.0
_MOST_BYTES = 4096


class ControlRefused(OctavoError):
    """The owner of the workers has not done it."""

    code = "control_refused"


class Owned(msgspec.Struct, frozen=True):
    """A worker of this machine: the name of the child, its process, whether it is stopped."""

    name: str
    pid: int
    paused: bool = False


class Owner(Protocol):
    """The process that has the workers. Its methods raise LookupError for a process that is none of them."""

    def owned(self) -> Sequence[Owned]: ...

    def add_worker(self) -> None: ...

    def kill_worker(self, pid: int) -> None: ...

    def pause_worker(self, pid: int) -> None: ...

    def resume_worker(self, pid: int) -> None: ...


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    action: str
    pid: int | None = None


class _Answer(msgspec.Struct):
    workers: tuple[Owned, ...] = ()
    problem: str = ""


@contextmanager
def controls(path: Path, owner: Owner) -> Iterator[None]:
    """Answer at `path` until the end. Raises OctavoError if there can be no socket."""
    path.unlink(missing_ok=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o177)
        try:
            server = _Server(str(path), _handler(owner))
        finally:
            os.umask(before)
    except OSError as error:
        raise OctavoError(
            f"cannot listen at {path} ({error.strerror or error}): set OCTAVO_STATE_DIR to another folder"
        ) from None
    with server:
        threading.Thread(target=server.serve_forever, name="controls", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            path.unlink(missing_ok=True)


async def ask(path: Path, action: str, pid: int | None = None) -> tuple[Owned, ...]:
    """Have the owner act, or `list` its workers: how they are then. Raises ControlRefused."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(msgspec.json.encode(_Asked(action, pid)) + b"\n")
                answer = msgspec.json.decode(await reader.readline(), type=_Answer)
            finally:
                writer.close()
    except (OSError, TimeoutError, msgspec.MsgspecError):
        raise ControlRefused("the process that owns the workers does not answer: is `octavo up` still there?") from None
    if answer.problem:
        raise ControlRefused(answer.problem)
    return answer.workers


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def _handler(owner: Owner) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        timeout = _PATIENCE_S

        def handle(self) -> None:
            with suppress(OSError):
                self.wfile.write(msgspec.json.encode(_act(owner, self.rfile.readline(_MOST_BYTES))) + b"\n")

    return Handler


def _act(owner: Owner, line: bytes) -> _Answer:
    actions: dict[str, Callable[[int], None]] = {
        "kill": owner.kill_worker,
        "pause": owner.pause_worker,
        "resume": owner.resume_worker,
    }
    try:
        asked = msgspec.json.decode(line, type=_Asked)
        if asked.action == "add":
            owner.add_worker()
        elif asked.action != "list":
            actions[asked.action](asked.pid or 0)
    except (LookupError, msgspec.MsgspecError):
        return _Answer(problem="no such action, or no such worker of this machine: load the page again")
    except OSError as error:
        return _Answer(problem=f"the system refused it: {error.strerror}")
    return _Answer(tuple(owner.owned()))
