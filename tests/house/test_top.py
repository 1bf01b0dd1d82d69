"""`octavo top`: figures from the workers' counts."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from rich.console import Console

from octavo.cli.top import _screen
from octavo.client.asynchronous import AsyncClient
from octavo.service.fleet import Reader, Snapshot
from octavo.terms.fleet import FleetStats
from octavo.terms.workers import WorkerInfo


class Counts:
    """A client whose workers have made so many tokens at each reading."""

    def __init__(self, *readings: dict[str, int]) -> None:
        self._readings = iter(readings)

    async def queue_depths(self) -> dict[str, int]:
        return {}

    def stats_reader(self) -> Counts:
        return self

    async def read(self) -> FleetStats:
        return FleetStats(at=0.0, queued=0, running=0, tokens_per_s=0.0)

    async def workers(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(id=name, model="demo", host="", pid=1, started_at=0, stats={"generated_tokens": made})
            for name, made in next(self._readings).items()
        ]


async def rates(*readings: dict[str, int]) -> list[dict[str, float]]:
    reader = Reader(cast(AsyncClient, Counts(*readings)), "", memory=False)
    return [{load.id: load.tokens_per_s for load in (await reader.read()).workers} for _ in readings]


def test_only_tokens_between_two_readings_count() -> None:
    first, second, third, fourth = asyncio.run(
        rates({"a": 5000, "b": 10}, {"a": 5010}, {"a": 5020, "b": 900}, {"a": 5020, "b": 910})
    )
    assert first == {"a": 0, "b": 0}
    assert second["a"] > 0
    assert third["a"] > 0
    assert third["b"] == 0, "its beginning is unknown"
    assert fourth["a"] == 0
    assert fourth["b"] > 0


def test_a_wide_terminal_shows_how_many_drafts_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"drafted_tokens": 400, "accepted_tokens": 300}

    class Drafting(Counts):
        async def workers(self) -> list[WorkerInfo]:
            return [WorkerInfo(id="a", model="demo", host="", pid=1, started_at=0, stats=stats)]

    snapshot = asyncio.run(Reader(cast(AsyncClient, Drafting()), "", memory=False).read())
    assert (snapshot.workers[0].drafted_tokens, snapshot.workers[0].accepted_tokens) == (400, 300)
    assert isinstance(snapshot, Snapshot)
    for width, shown in ((150, True), (80, False)):
        console = Console(width=width)
        with console.capture() as captured:
            monkeypatch.setattr("octavo.cli.top.out", console)
            console.print(_screen(snapshot))
        assert ("75% right" in captured.get()) == shown
