"""Processes of tests that are forks of a server, with the methods of `subprocess.Popen` that tests use."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from fork_server import Program, request_fork

from octavo.cli.listed import LISTED

_SERVER = Path(__file__).parent / "fork_server.py"
_COMMANDS = tuple(command.module for command in LISTED.values() if command.module)
_LIGHT = (
    *("octavo.cli.app", *_COMMANDS),
    *("octavo_gateway.app", "octavo_worker.agent.supervisor", "octavo_worker.engine.process"),
)
_HEAVY = (
    *("torch", "octavo_worker.assembly.engine_process", "octavo_worker.assembly.loading"),
    "octavo_worker.model.library",  # of families whose config.json does not state all
)


class ForkServer:
    """A server that has imported `modules`. It ends with this process."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.address = f"{tempfile.mkdtemp(prefix='octavo-forks-')}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), str(listener.fileno()), *modules],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                start_new_session=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy would start threads, which cannot be forked
            )


@cache
def light_server() -> ForkServer:
    """It knows all but models."""
    return ForkServer(_LIGHT)


@cache
def heavy_server(*more: str) -> ForkServer:
    """It knows models, and what else is named."""
    return ForkServer((*_HEAVY, *more))


class Forked:
    """`python WORDS...`, a fork of the server at `address`. Its standard streams are descriptors."""

    def __init__(
        self,
        address: str,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | str = ".",
        out: int | None = None,
        err: int | None = None,
        others: Sequence[int] = (),
        own_session: bool = False,
    ) -> None:
        """Descriptors of `others` have their numbers in the fork too."""
        self.returncode: int | None = None
        environment = dict(os.environ if environment is None else environment)
        with ExitStack() as stack:
            nothing = os.open(os.devnull, os.O_RDWR)
            stack.callback(os.close, nothing)
            streams = [nothing, nothing if out is None else out, nothing if err is None else err]
            program = Program(list(words), environment, str(Path(folder).resolve()), [0, 1, 2, *others], own_session)
            self.pid, self.status = request_fork(address, program, [*streams, *others])

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self.status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            said = os.read(self.status, 4)
            os.close(self.status)
            self.returncode = int.from_bytes(said, signed=True) if said else -signal.SIGKILL  # the server has ended
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
