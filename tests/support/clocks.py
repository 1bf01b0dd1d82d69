"""Clocks of a test's own: what times choose (drafts, sizes, orders) does not depend on what else the machine does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds, which go on by `tick` whenever they are read, and when a test says so."""

    tick: float = 0.01
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    perf_counter = monotonic = __call__
    """In the place of the module `time`."""
