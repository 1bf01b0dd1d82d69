"""What `octavo top` makes of the workers' counts."""

from __future__ import annotations

import asyncio
from typing import cast

from octavo.cli.top import Reader
from octavo.client import AsyncClient
from octavo.models import WorkerInfo


class Counts:
    """A client whose workers have made so many tokens at each reading."""

    def __init__(self, *readings: dict[str, int]) -> None:
        self._readings = iter(readings)

    async def queue_depths(self) -> dict[str, int]:
        return {}

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
