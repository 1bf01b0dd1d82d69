"""A process beside every process of pytest: it ends what that leaves behind, and a test that no exception reaches.

Processes that a test starts inherit a variable with a value of its own, whatever sessions and parents they choose. Once
pytest has ended, by itself or by any signal, those that have it are killed.

A test that waits where the exception of its time limit does not arrive (a join of a thread, a loop in C, a fixture that
is taken down) is ended with its whole process, which writes down where its threads are.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

VARIABLE = "TESTS_THAT_STARTED_THIS"
HUNG = "HUNG "
"""Begins the line that says which test was ended."""
_LAST_WORDS_S = 5.0
_GLANCE_S = 0.5


class Guardian:
    """Guardian of this process, which it ends `grace_s` seconds after the limit that it was told last."""

    def __init__(self, *, grace_s: float) -> None:
        os.environ[VARIABLE] = mark = uuid.uuid4().hex
        self._grace_s = grace_s
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", __file__, str(os.getpid()), mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
        )

    def expect(self, limit_s: float, what: str = "its end") -> None:
        """Seconds from now to the next call or to the end of this process. 0: any number."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + limit_s + self._grace_s if limit_s else float("inf")
        with suppress(OSError):
            os.write(self._process.stdin.fileno(), f"{deadline} {what}\n".encode())


def watch(pid: int, mark: str) -> None:
    deadline, what = float("inf"), b""
    while os.getppid() == pid:
        if select.select([0], [], [], _GLANCE_S)[0]:
            if not (told := os.read(0, 1 << 20)):
                time.sleep(_GLANCE_S)  # it closes all it has before it ends
            elif told.endswith(b"\n"):
                limit, _, what = told.splitlines()[-1].partition(b" ")
                deadline = float(limit)
        if time.monotonic() > deadline:
            print(f"\n{HUNG}{what.decode()}", file=sys.stderr, flush=True)
            deadline = float("inf")
            end(pid)
    while left := [other for other in processes() if is_marked(other, mark)]:
        for other in left:
            with suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
        time.sleep(0.01)


def end(pid: int) -> None:
    """SIGABRT makes Python's faulthandler, which pytest enables, write down where each thread is."""
    for number in (signal.SIGABRT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        over = time.monotonic() + _LAST_WORDS_S
        while os.getppid() == pid and time.monotonic() < over:
            time.sleep(0.05)


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def is_marked(pid: int, mark: str) -> bool:
    """A process that has ended and whose parent does not ask has no variables any more."""
    with suppress(OSError):
        return f"{VARIABLE}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
