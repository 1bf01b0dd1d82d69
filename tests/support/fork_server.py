"""Programs of tests as forks of a process that has imported what they need: they start in milliseconds, not seconds.

A fork of the server leaves its loop and runs the program as the interpreter would, with arguments, environment, folder
and descriptors of its own, and with the interpreter's own end. Only starts and imports cannot be tested so. The server
and its forks end with the process that started it.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field

_PR_SET_PDEATHSIG = 1
_MOST_DESCRIPTORS = 16
_MOST_BYTES = 1 << 20


@dataclass
class Program:
    """Work of a fork. `words` are those after `python`: a file or `-m` and a module, and arguments. `places` are
    the numbers that the descriptors have there which travel with the request."""

    words: Sequence[str]
    environment: dict[str, str]
    folder: str
    places: list[int] = field(default_factory=list)
    own_session: bool = False

    def run(self) -> None:
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        if self.own_session:
            os.setsid()
        first, *rest = self.words
        sys.argv = [first, *rest] if first != "-m" else rest
        if first == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(first, run_name="__main__")


def request_fork(address: str, program: Program, descriptors: Sequence[int]) -> tuple[int, int]:
    """Ask the server at `address`. The fork's process id, and a descriptor from which its status can be read, as four
    bytes, once it has ended."""
    status, theirs = os.pipe()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(address)
            rights = array.array("i", [theirs, *descriptors])
            said = json.dumps(asdict(program)).encode()
            connection.sendmsg([len(said).to_bytes(4)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            connection.sendall(said)
            pid = int.from_bytes(connection.recv(4, socket.MSG_WAITALL))
    finally:
        os.close(theirs)
    assert pid, "the fork server is gone"
    return pid, status


class Server:
    """The process that forks. `serve` returns in forks alone."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._statuses: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._awake, wakeup = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(wakeup, False)
        self._pipe = (self._awake, wakeup)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for source in (listener, sys.stdin, self._awake):
            self._selector.register(source, selectors.EVENT_READ)

    def serve(self) -> Program:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:  # nothing is ever written there: its other end is gone
                    self._end()
                elif key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    with connection:
                        if (program := self._fork(connection)) is not None:
                            return program
                else:
                    self._reap()

    def _fork(self, connection: socket.socket) -> Program | None:
        head, received, *_ = socket.recv_fds(connection, 4, _MOST_DESCRIPTORS)
        said = connection.recv(int.from_bytes(head), socket.MSG_WAITALL)
        program = Program(**json.loads(said))
        status, *descriptors = received
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"
        parent = os.getpid()
        if not (pid := os.fork()):
            connection.close()
            os.close(status)
            self._leave(parent, program.places, descriptors)
            return program
        self._statuses[pid] = status
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(pid.to_bytes(4))
        return None

    def _leave(self, parent: int, places: Sequence[int], descriptors: Sequence[int]) -> None:
        """Begins a fork: nothing of the server stays, and what has come with the request is in its places."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        self._listener.close()  # by its object, which would otherwise close what has its number later
        for descriptor in (*self._pipe, *self._statuses.values()):
            os.close(descriptor)
        highest = max([*places, *descriptors]) + 1
        moved = [os.dup2(descriptor, highest + place) for place, descriptor in enumerate(descriptors)]
        for descriptor in descriptors:
            os.close(descriptor)
        for descriptor, place in zip(moved, places, strict=True):
            os.dup2(descriptor, place)
            os.close(descriptor)

    def _reap(self) -> None:
        os.read(self._awake, 1 << 16)
        for pid in list(self._statuses):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                descriptor = self._statuses.pop(pid)
                with suppress(BrokenPipeError):
                    os.write(descriptor, os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))
                os.close(descriptor)

    def _end(self) -> None:
        for pid in self._statuses:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


if __name__ == "__main__":
    _, descriptor, *modules = sys.argv
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is never looked at again is never copied
    program = Server(socket.socket(fileno=int(descriptor))).serve()
    program.run()
