"""The pace of a batch: whether it will meet its window."""

from __future__ import annotations

from collections import deque

_LOOK_BACK_S = 600.0
_LEAST_S = 60.0


class Pace:
    """Lines that ended, by time."""

    def __init__(self, started_at: float) -> None:
        self._ended: deque[tuple[float, int]] = deque([(started_at, 0)])

    def note(self, now: float, ended: int) -> None:
        """So many lines more have ended."""
        self._ended.append((now, self._ended[-1][1] + ended))
        while len(self._ended) > 2 and self._ended[0][0] < now - _LOOK_BACK_S:
            self._ended.popleft()

    def would_miss(self, now: float, left: int, deadline: float) -> bool:
        """True if, at the rate of the last minutes, lines would be left at the deadline."""
        began, before = self._ended[0]
        seconds, ended = now - began, self._ended[-1][1] - before
        if seconds < _LEAST_S or not left:
            return False
        return left * seconds > ended * max(0.0, deadline - now)
