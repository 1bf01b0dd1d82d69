"""A peer as its driver sees it: a process that is given workloads by name and answers with seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[1]


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
    ) -> None:
        """`command` is a script in `benchmarks` and its arguments. The process is killed if an answer takes longer than
        `limit_s`. `path` is one more folder to import from, or several as in PYTHONPATH."""
        self.name = name
        self._limit_s = limit_s
        folders = [str(benchmarks), *([str(path)] if path else []), os.environ.get("PYTHONPATH", "")]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, str(benchmarks / command[0]), *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))},
        )
        self.about = self._answer()
        self.start_s = time.perf_counter() - began

    def run(self, workload: str) -> dict[str, Any]:
        """Its answer to one run, with `seconds`. Raises PeerFailed."""
        try:
            self._process.stdin.write(workload + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"{self.name} ended with status {self._process.wait()}") from None
        return self._answer()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let it end; it is killed if it does not within a minute."""
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        timer = threading.Timer(self._limit_s, self._process.kill) if self._limit_s else None
        if timer:
            timer.start()
        try:
            while line := self._process.stdout.readline():
                if line.startswith("{"):
                    return self._checked(json.loads(line))
        finally:
            if timer:
                timer.cancel()
        raise PeerFailed(f"{self.name} ended with status {self._process.wait()}")

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            self.close()
            raise PeerFailed(f"{self.name}: {answer['error']}")
        return answer
