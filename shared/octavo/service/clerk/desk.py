"""The desk that a clerk's work on all batches shares: connections, storage, and what it knows of the fleet."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.client.batches import BatchClient
from octavo.queue.fleet import known_models, live_workers, models_of
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell
from octavo.service.batches.grammars import LineGrammars
from octavo.service.clerk.metrics import ClerkMetrics
from octavo.service.storage.interface import Storage
from octavo.terms.errors import OctavoError
from octavo.terms.limits import Limits, Retention
from octavo.terms.workers import WorkerInfo

if TYPE_CHECKING:
    from octavo.dialects.openai.batch.requests import LineRequest

LEAST_WINDOW, MOST_WINDOW = 256, 10_000
_AHEAD = 4  # times what live workers run
_FLEET_S = 2.0


class Lost(Exception):
    """The batch is another owner's by now: nothing of it may be touched any more."""


class Moved(OctavoError):
    """The server holds something else of the batch than this owner has read: it has forgotten some, or something has
    changed it."""

    code = "batch_moved"


@dataclass
class Desk:
    """One a clerk process. `offset_s`: what the server's clock is ahead of this machine's."""

    client: BatchClient
    storage: Storage
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)
    metrics: ClerkMetrics = field(default_factory=ClerkMetrics)
    cell: Cell = field(default_factory=Cell)
    keys: Keys = field(default_factory=Keys)
    offset_s: float = 0.0
    grammars: LineGrammars = field(default_factory=LineGrammars)
    _workers: list[WorkerInfo] = field(default_factory=list)
    _asked_at: float = -_FLEET_S

    def now(self) -> float:
        """The server's time, in seconds since the epoch."""
        return time.time() + self.offset_s

    async def window(self, model: str) -> int:
        """Jobs of a batch that are in the queue at most."""
        with self.client.errors():
            if time.monotonic() - self._asked_at >= _FLEET_S:
                self._workers = await live_workers(self.client.redis, self.keys)
                self._asked_at = time.monotonic()
            (name,) = await models_of(self.client.redis, self.keys, [model])
        return window_for(self._workers, name)

    async def knows(self, model: str) -> bool:
        """True if jobs for the model are accepted."""
        with self.client.errors():
            cards = await known_models(self.client.redis, self.keys)
        return any(model in card.names for card in cards)

    async def try_grammars(self, request: LineRequest, tenant: str) -> None:
        """Raises GrammarError for a line that no worker could follow."""
        for job in request.jobs[:1]:  # all jobs of a line have the same
            await self.grammars.check(job, request.grammar_field, tenant=tenant)


def window_for(workers: Iterable[WorkerInfo], model: str) -> int:
    """Four times what the live workers of a model run: enough for none to wait, and far less than a batch."""
    rows = sum(worker.stats.max_running for worker in workers if worker.model == model)
    return max(LEAST_WINDOW, min(_AHEAD * rows, MOST_WINDOW))
