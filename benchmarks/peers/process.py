"""A peer as its driver sees it: a process that is given workloads by name and answers with seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1]
END_S = 60
"""Seconds that a peer has to end by itself."""


class PeerFailed(Exception):
    """The peer ended before it answered; the message says why where the peer did."""


class Peer:
    """One engine's process. `about` is what it says of itself once it has generated a first token, `start_s` the
    seconds until then."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        limit_s: float | None = None,
        path: Path | None = None,
        benchmarks: Path = BENCHMARKS,
        log: Path | None = None,
    ) -> None:
        """`command` is a script in `benchmarks` and its arguments. The process is killed, with all that it started, if
        its start or another answer takes longer than `limit_s`. `path` is one more folder to import from, or several as
        in PYTHONPATH. What it and its processes write stands in `log`, a new file, or where this process writes.

        Raises PeerFailed if it does not start.
        """
        self.name = name
        self._limit_s = limit_s
        self._is_late = False
        if log is not None:
            log.unlink(missing_ok=True)
        self._log = None if log is None else log.open("ab", buffering=0)
        folders = [str(benchmarks), *([str(path)] if path else []), os.environ.get("PYTHONPATH", "")]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, str(benchmarks / command[0]), *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))},
            start_new_session=True,
        )
        try:
            self.about = self._answer()
        except BaseException:
            self.close()
            raise
        self.start_s = time.perf_counter() - began

    def run(self, workload: str) -> dict[str, Any]:
        """Its answer to one run, with `seconds`. Raises PeerFailed."""
        try:
            self._process.stdin.write(workload + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._answer()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let it end; it is killed if it does not within a minute, and so is what it leaves behind."""
        if self._process.stdout.closed:
            return
        with suppress(subprocess.TimeoutExpired):
            self._keep(self._process.communicate(timeout=END_S)[0] or "")
        self._kill()
        self._process.wait()
        self._process.stdout.close()
        if self._log is not None:
            self._log.close()

    def _answer(self) -> dict[str, Any]:
        timer = threading.Timer(self._limit_s, self._kill_late) if self._limit_s else None
        if timer:
            timer.start()
        try:
            while line := self._process.stdout.readline():
                if line.startswith("{"):
                    return self._checked(json.loads(line))
                self._keep(line)
        finally:
            if timer:
                timer.cancel()
        raise self._failure()

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            self.close()
            raise PeerFailed(f"{self.name}: {answer['error']}")
        return answer

    def _keep(self, text: str) -> None:
        if self._log is not None:
            self._log.write(text.encode())

    def _failure(self) -> PeerFailed:
        status = self._process.wait()
        if self._is_late:
            return PeerFailed(f"{self.name} did not answer within {self._limit_s:g} s")
        return PeerFailed(f"{self.name} ended with status {status}")

    def _kill_late(self) -> None:
        self._is_late = True
        self._kill()

    def _kill(self) -> None:
        """Its whole session: the engine's own processes hold its standard output, and a GPU's memory."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
