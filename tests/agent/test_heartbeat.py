"""For how long a worker trusts its leases, by a clock of the test's own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from octavo.queue.protocol import Cell
from octavo_worker.agent import heartbeat as module
from octavo_worker.agent.heartbeat import Heartbeat

LEASE_S = 4.0  # a beat a second


class Time:
    """A clock, and the event that ends the thread: waiting for it lets time pass."""

    def __init__(self, beats: int) -> None:
        self.now, self._left = 0.0, beats

    def monotonic(self) -> float:
        return self.now

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0

    def wait(self, seconds: float) -> None:
        self.now += seconds


def silences(monkeypatch: pytest.MonkeyPatch, got_through: str) -> list[float]:
    """When the worker stops to trust its leases; each letter is a beat, a point one that fails."""
    time, outcomes, found = Time(len(got_through)), iter(got_through), []
    connect: Any = lambda: nullcontext(None)  # noqa: E731
    beating = Heartbeat(
        connect,
        Cell(),
        "w",
        lease_s=LEASE_S,
        holding=tuple,
        info=bytes,
        answered=lambda held, reply: None,
        silent=lambda: found.append(time.now),
    )
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(beating, "_stopping", time)
    monkeypatch.setattr(beating, "_beat", lambda connection: next(outcomes) != ".")
    beating._run()
    return found


def test_leases_are_trusted_for_most_of_their_time_after_the_latest_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    assert silences(monkeypatch, "b" * 9 + "..." + "b" * 3 + "...") == []
    assert silences(monkeypatch, "b" * 9 + "." * 9 + "b" + "." * 9) == [12.0, 22.0]
