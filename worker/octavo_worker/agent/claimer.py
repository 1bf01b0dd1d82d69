"""When to ask for jobs, and for how many: room is counted in blocks of the KV cache, not in jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from octavo.queue.calls import run
from octavo.queue.connection import Line, answered
from octavo.queue.protocol import Cell, Claims
from octavo_worker.agent.room import Room

log = logging.getLogger(__name__)

_BELL_WAIT_S = 2.0
_RETRY_S = 0.5
_SUSPECT_PATIENCE_S = 10.0


class Claimer:
    """Claims while there is room, sleeps on the bell while there is nothing to claim.

    `digest()` names what is served. `room()` is None while nothing may be claimed; `changed` is set whenever it may
    answer differently. When a suspect has waited too long for an idle worker, this one stops claiming until it is idle,
    or another has taken it.
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
        self._answered_bell = False
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
            await self._line.close()

    async def _run(self) -> None:
        while not self._stopping:
            if self._answered_bell:
                await self._pass_bell_on()
            self._changed.clear()
            room = self._room()
            if room is None:
                await self._changed.wait()
                continue
            claims = await self._claim(room)
            if claims is None:
                continue
            if claims.solo_waiting_s > _SUSPECT_PATIENCE_S:
                await self._drain_for_suspect()
            elif not claims.jobs or self._room() is not None:  # what a claim leaves behind rings the bell
                await self._interruptible(self._bell())
        if self._answered_bell:
            await self._pass_bell_on()

    async def _claim(self, room: Room, *, look_only: bool = False) -> Claims | None:
        """None when stopped before the server answered. Until then the very same call is repeated: it is idempotent,
        and an answer that was lost has handed out jobs."""
        call = self._cell.claim(
            self._model,
            self._worker_id,
            max_jobs=0 if look_only else room.sequences,
            max_tokens=room.tokens,
            lease_ms=self._lease_ms,
            idle=room.idle,
            digest=self._digest(),
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

    async def _bell(self) -> None:
        self._answered_bell = True  # unless it proves otherwise: an interrupted wait may have taken the bell, too
        try:
            async with answered():
                (rung,) = await self._line.exchange([("BLPOP", *self._bells(), _BELL_WAIT_S)])
            if isinstance(rung, Exception):
                raise rung
            self._answered_bell = rung is not None
        except (RedisError, OSError):
            await asyncio.sleep(_RETRY_S)

    async def _pass_bell_on(self) -> None:
        """A worker that took the bell claims or rings it again: the work may be what its own engine dropped."""
        self._answered_bell = False
        if self._stopping or self._room() is None:
            with contextlib.suppress(RedisError, OSError):
                await self._line.exchange([("RPUSH", bell, 1) for bell in self._bells()])

    def _bells(self) -> tuple[str, str]:
        """Bells of the model, and of jobs with tokens, which only workers like this one may go on with."""
        keys, model = self._cell.keys, self._model
        return keys.bell(model), keys.bell_of_equals(model, self._digest())

    async def _interruptible(self, wait: Coroutine[object, object, object]) -> None:
        """Wait, unless stopped meanwhile."""
        if self._stopping:
            wait.close()
            return
        self._sleep = asyncio.create_task(wait)
        try:
            await asyncio.wait([self._sleep])
        finally:
            self._sleep.cancel()
