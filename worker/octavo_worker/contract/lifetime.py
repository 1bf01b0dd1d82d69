"""How a worker's processes end: with the one that started them, what their exit status and /proc say."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> Callable[[], None] | None:
    """The hook that a child runs before exec. PDEATHSIG follows the thread that forks: start children from the main
    thread."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded here: between fork and exec only plain calls are safe

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)

    return prepare


def ignore_signals() -> None:
    """Leave the end to the agent: a Ctrl-C or a SIGTERM to the whole group must not cut short its orderly release of
    jobs. The engine goes when its socket closes, so it cannot outlive the agent, nor can its ranks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def in_words(status: int) -> str:
    """An exit status, negative for the signal that killed the process."""
    return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


def state_of(pid: int) -> str:
    """The letter that /proc has for the state of a process. Raises `OSError` if there is none."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
