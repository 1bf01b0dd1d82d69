"""Whole workers as processes of their own: the real agent on the fake engine, or all of it real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from forked import Forked, heavy_server, light_server
from waiting import STALL_S

from octavo.queue import wire
from octavo.queue.connection import connect_sync
from octavo.queue.keys import Keys
from octavo.terms.workers import WorkerInfo

_SUPPORT = Path(__file__).parent
KNOWN_SPEEDS = _SUPPORT / "engine_of_known_speeds.py"
"""An engine whose speeds, and so its drafts, do not depend on what else the machine does."""


class WorkerProcess:
    """`python -m octavo_worker`, or with `fake` (settings of `fake_engine`) the same agent on the fake engine.

    Agent and engine are forks of servers that have imported them. With `own_start` they start as in production, where
    the kernel ends an engine whose agent has ended. `engine` is a program in the place of the real engine's, `imports`
    are modules that forks of it have from the beginning.

    Flags are settings of the worker. Leaving the context kills the worker; `log` is its stderr so far. An assertion
    that failed in the worker or its engines fails the test, even if another worker made up for it.
    """

    def __init__(
        self,
        redis_url: str,
        log: Path,
        *,
        fake: str | None = None,
        own_start: bool = False,
        engine: Path | None = None,
        imports: tuple[str, ...] = (),
        **flags: object,
    ) -> None:
        program = ["-m", "octavo_worker"] if fake is None else [str(_SUPPORT / "agent_on_fake_engine.py"), fake]
        named = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
        arguments = [name if value is True else f"{name}={value}" for name, value in named.items()]
        words = [*program, f"--redis-url={redis_url}", *arguments]
        if not own_start or engine is not None:
            address = "-" if own_start else (heavy_server(*imports) if fake is None else light_server()).address
            words = [str(_SUPPORT / "forked_engines.py"), address, str(engine or "-"), *words]
        self._log = log
        self._redis_url = redis_url
        self.process: Forked | subprocess.Popen[bytes]
        with log.open("ab") as stderr:
            if own_start:
                self.process = subprocess.Popen([sys.executable, *words], stderr=stderr, cwd=_SUPPORT)
            else:
                self.process = Forked(light_server().address, words, err=stderr.fileno(), folder=_SUPPORT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        assert error is not None or "AssertionError" not in self.log, self.log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def id(self) -> str:
        return self._known().id

    @property
    def engine_pid(self) -> int:
        return int(self._known().stats.engine_pid)

    def info(self) -> WorkerInfo | None:
        """Its latest heartbeat."""
        keys = Keys()
        with connect_sync(self._redis_url) as connection:
            for worker_id in connection.zrange(keys.workers, 0, -1):
                data = connection.get(keys.worker(worker_id.decode()))
                if data is not None and (info := wire.decode_worker(data)).pid == self.pid:
                    return info
        return None

    def _known(self) -> WorkerInfo:
        info = self.info()
        assert info is not None, self.log
        return info

    def wait_ready(self) -> Self:
        """Until it serves, as its heartbeat says."""
        deadline = time.monotonic() + STALL_S
        while self.info() is None:
            assert self.process.poll() is None, f"the worker ended at its start: {self.log}"
            assert time.monotonic() < deadline, f"the worker did not start: {self.log}"
            time.sleep(0.02)
        return self

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = STALL_S) -> int:
        """Its exit status."""
        return self.process.wait(timeout)
