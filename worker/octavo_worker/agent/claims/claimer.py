"""When to ask for jobs, and for how many: room is counted in blocks of the KV cache, not in jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TypeVar, get_args

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from octavo.queue.calls import run
from octavo.queue.connection import Line
from octavo.queue.protocol import Cell, Claims
from octavo.terms.fields import Priority
from octavo_worker.agent.claims.bells import Bells
from octavo_worker.agent.claims.room import Room

log = logging.getLogger(__name__)

PRIORITIES = get_args(Priority)
T = TypeVar("T")

_RETRY_S = 0.5
_SUSPECT_PATIENCE_S = 10.0


class Claimer:
    """Claims while there is room, sleeps on the bell while there is nothing to claim.

    `digest()` names what is served. `room()` is None while nothing may be claimed; `changed` is set whenever it may
    answer differently. When a suspect has waited too long for an idle worker, this one stops claiming until it is idle,
    or another has taken it.

    A worker that is full of one class sleeps on the bell, for the others, and claims when there is room for that one
    again: so bells are heard on a connection of their own.
    """

    def __init__(
        self,
        connection: redis.asyncio.Redis,
        cell: Cell,
        *,
        model: str,
        worker_id: str,
        lease_ms: int,
        digest: Callable[[], str],
        room: Callable[[], Room | None],
        changed: asyncio.Event,
        take: Callable[[Claims], None],
    ) -> None:
        self._line = Line(connection)
        self._cell = cell
        self._model = model
        self._worker_id = worker_id
        self._lease_ms = lease_ms
        self._digest = digest
        self._room = room
        self._changed = changed
        self._take = take
        self._stopping = False
        self._told = ""
        self._bells = Bells(connection)
        self._sleep: asyncio.Task[object] | None = None

    def stop(self) -> None:
        """Claim nothing more. A claim that is under way still comes through: its jobs are ours already."""
        self._stopping = True
        self._changed.set()
        if self._sleep is not None:
            self._sleep.cancel()

    async def run(self) -> None:
        """Returns after `stop`."""
        try:
            await self._run()
        finally:
            await self._bells.close()
            await self._line.close()

    async def _run(self) -> None:
        while not self._stopping:
            self._changed.clear()
            room = self._room()
            if room is None:
                await self._bells.leave()
                await self._changed.wait()
                continue
            claims = await self._claim(room)
            if claims is None:
                continue
            self._bells.heard = False  # what a claim leaves behind rings the bell
            if claims.solo_waiting_s > _SUSPECT_PATIENCE_S:
                await self._bells.leave()
                await self._drain_for_suspect()
            elif not claims.jobs or self._room() is not None:
                await self._wait(claims)
        await self._bells.leave()

    async def _wait(self, claims: Claims) -> None:
        """Until a bell rings, or there is room that was not there after `claims`."""
        before = self._room()
        while not self._stopping and before is not None:
            self._changed.clear()
            if await self._interruptible(self._bells.listen(self._names(before), self._changed)):
                return
            room = self._room()
            if room is None or room.offers(before) or (claims.misfit and room != before):
                return

    def _names(self, room: Room) -> list[str]:
        """The bells of the model, and of jobs with tokens, which only workers like this one may go on with. There is a
        bell for each class besides, which is for those that have room for it."""
        keys, model, digest = self._cell.keys, self._model, self._digest()
        classes = [name for name, part in zip(PRIORITIES, room.classes, strict=False) if part.jobs > 0]
        if len(room.classes) == 1:
            classes = list(PRIORITIES)
        return [
            keys.bell(model),
            keys.bell_of_equals(model, digest),
            *(keys.bell(model, priority=name) for name in classes),
            *(keys.bell_of_equals(model, digest, priority=name) for name in classes),
        ]

    async def _claim(self, room: Room, *, look_only: bool = False) -> Claims | None:
        """None when stopped before the server answered. Until then the very same call is repeated: it is idempotent,
        and an answer that was lost has handed out jobs."""
        call = self._cell.claim(
            self._model,
            self._worker_id,
            max_jobs=0 if look_only else room.classes[0].jobs,
            max_tokens=room.classes[0].tokens,
            lease_ms=self._lease_ms,
            idle=room.idle,
            digest=self._digest(),
            rooms=room.classes if len(room.classes) > 1 and not look_only else (),
        )
        while True:
            try:
                claims = await run(self._line, call)
            except (RedisError, OSError) as error:
                self._complain(error)
                if self._stopping:
                    return None
                await self._interruptible(asyncio.sleep(_RETRY_S))
            else:
                self._take(claims)
                return claims

    def _complain(self, error: Exception) -> None:
        """Logs a refusal, once. A lost server is told of elsewhere."""
        told = str(error)
        if isinstance(error, ResponseError) and told != self._told:
            log.error("the server hands out no jobs (%s): `octavo doctor` says what this worker may not do", told)
        self._told = told

    async def _drain_for_suspect(self) -> None:
        log.info("a suspect job waits for an idle worker: claiming nothing until this one is idle")
        while not self._stopping and (room := self._room()) is not None and not room.idle:
            await self._interruptible(asyncio.sleep(1.0))
            claims = await self._claim(room, look_only=True)
            if claims is None or claims.solo_waiting_s == 0:
                return

    async def _interruptible(self, wait: Coroutine[object, object, T]) -> T | None:
        """Wait, unless stopped meanwhile."""
        if self._stopping:
            wait.close()
            return None
        self._sleep = sleep = asyncio.create_task(wait)
        try:
            await asyncio.wait([sleep])
            return None if sleep.cancelled() else sleep.result()
        finally:
            sleep.cancel()
