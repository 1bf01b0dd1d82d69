"""Seconds that a process or a thread has computed, as others see them. A busy machine does not make them run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

_SCHEDULER = 2  # the kernel's clock of what the scheduler gave, in the lowest three bits of a clock's id


def clock_of_process(pid: int) -> Callable[[], float]:
    """Clock of all threads of a process that lives."""
    return _Clock(~pid << 3 | _SCHEDULER)


def clock_of_this_thread() -> Callable[[], float]:
    """Clock of the thread that asks for it, for others to read."""
    return _Clock(time.pthread_getcpuclockid(threading.get_ident()))


class _Clock:
    def __init__(self, clock_id: int) -> None:
        self._id = clock_id
        self._seconds = 0.0

    def __call__(self) -> float:
        """The time it showed last, if there is nothing any more that computes."""
        with suppress(OSError):
            self._seconds = time.clock_gettime(self._id)
        return self._seconds
