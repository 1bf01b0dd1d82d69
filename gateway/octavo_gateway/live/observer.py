"""The one reader of the fleet in a gateway process, however many look."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import msgspec

from octavo import AsyncClient
from octavo.terms.errors import OctavoError
from octavo.terms.fleet import FleetStats
from octavo_gateway.live.block_map import BlockMap, merged
from octavo_gateway.live.patches import patch
from octavo_gateway.live.state import state_of

INTERVAL_S = 0.2
_UNKNOWN_S = 3.0  # until a worker without a map is asked again

_ENCODER = msgspec.json.Encoder()


class Observer:
    """Readings of the fleet that all callers share. While there are viewers, one task reads again and again. Of what it
    has read, the latest state and the latest difference are kept, never one for a viewer."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._reader = client.stats_reader()
        self._reading = asyncio.Lock()
        self._latest: FleetStats | None = None
        self._read_at = 0.0
        self._viewers = 0
        self._watching: asyncio.Task[None] | None = None
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._maps: dict[str, BlockMap] = {}
        self._news: dict[str, Any] = {}  # of maps, since the latest version
        self._state: dict[str, Any] = {}
        self._version = 0
        self._change = b""
        self._snapshot: tuple[int, bytes] | None = None
        self._changed = asyncio.Event()

    async def stats(self) -> FleetStats:
        """The fleet, as it was `INTERVAL_S` ago at the most. Raises ServerUnavailable."""
        async with self._reading:
            if self._latest is None or monotonic() - self._read_at >= INTERVAL_S:
                self._latest = await self._reader.read()
                self._read_at = monotonic()
            return self._latest

    @contextmanager
    def viewer(self) -> Iterator[Viewer]:
        """A viewer, for as long as it looks."""
        self._viewers += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            yield Viewer(self)
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._stop()

    async def event_after(self, version: int) -> tuple[int, bytes]:
        """The latest version beyond `version`, once there is one, and the event that leads to it: a difference from the
        version before, a snapshot from any other."""
        while self._version <= version or not self._version:
            await self._changed.wait()
        if version and version == self._version - 1:
            return self._version, self._change
        if self._snapshot is None or self._snapshot[0] != self._version:
            maps = {worker: known.whole() for worker, known in self._maps.items()}
            self._snapshot = self._version, _event("snapshot", {"stats": self._state, "maps": maps})
        return self._snapshot

    async def _watch(self) -> None:
        while True:
            began = monotonic()
            try:
                stats = await self.stats()
            except OctavoError as error:
                self._advance({**self._state, "problem": error.message})
            else:
                self._ask([worker.id for worker in stats.workers])
                self._advance(state_of(stats))
            await asyncio.sleep(max(0.0, INTERVAL_S - (monotonic() - began)))

    def _advance(self, state: dict[str, Any]) -> None:
        changes, maps = patch(self._state, state), self._news
        if not changes and not maps and self._version:
            return
        self._state, self._news = state, {}
        self._version += 1
        self._change = _event("change", {"stats": changes, "maps": maps})
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _ask(self, workers: list[str]) -> None:
        for worker in self._asking.keys() - set(workers):
            self._asking.pop(worker).cancel()
            if self._maps.pop(worker, None) is not None:
                self._news[worker] = None
        for worker in workers:
            if worker not in self._asking:
                self._asking[worker] = asyncio.create_task(self._follow_map(worker))

    async def _follow_map(self, worker: str) -> None:
        while True:
            began, pause = monotonic(), INTERVAL_S
            try:
                found = await self._client.worker_map(worker)
            except OctavoError:
                pause = _UNKNOWN_S
            else:
                known = self._maps.setdefault(worker, BlockMap())
                if (news := known.take(found)) is not None:
                    before = self._news.get(worker)
                    self._news[worker] = news if before is None else merged(before, news)
            await asyncio.sleep(max(0.0, pause - (monotonic() - began)))

    def _stop(self) -> None:
        for task in (self._watching, *self._asking.values()):
            if task is not None:
                task.cancel()
        self._watching = None
        self._asking, self._maps, self._news = {}, {}, {}
        self._state, self._version, self._change, self._snapshot = {}, 0, b"", None


class Viewer:
    """One that looks, by the version that it has."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._version = 0

    async def next(self) -> bytes:
        """The next event, once there is one."""
        self._version, event = await self._observer.event_after(self._version)
        return event


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _ENCODER.encode(data))
