"""A clerk: takes batches that are due, works on several at a time, renews their leases, and gives them back at its
end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable

from octavo.client.batches import new_token
from octavo.service.clerk.desk import Desk
from octavo.service.clerk.sweep import fold_usage, remove_expired, remove_unnamed
from octavo.service.clerk.work import Work
from octavo.service.storage.mark import check_mark
from octavo.terms.errors import OctavoError

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_MOST_BATCHES = 64
_EXPIRED_S, _UNNAMED_S, _FOLD_S = 30.0, 3600.0, 30.0
_PATIENCE_S = 2.0
_PARTING_S = 5.0


class Clerk:
    """One process's clerk. `lease_s`: so long after its last word another clerk takes its batches over."""

    def __init__(self, desk: Desk, lease_s: float) -> None:
        self._desk = desk
        self._lease_ms = round(lease_s * 1000)
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self._works: dict[str, Work] = {}  # by token
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_away = False
        self._is_checked = False

    async def run(self) -> None:
        """Until cancelled. Then its batches are any clerk's at once."""
        try:
            async with asyncio.TaskGroup() as group:
                for work, pause_s in (
                    (self._take, _LOOK_S), (self._renew, self._lease_ms / 5000), (self._remove_expired, _EXPIRED_S),
                    (self._remove_unnamed, _UNNAMED_S), (self._fold_usage, _FOLD_S),
                ):  # fmt: skip
                    group.create_task(self._regularly(work, pause_s))
        finally:
            await self._give_back()

    async def _regularly(self, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while True:
            try:
                await work()
                self._is_away = False
            except OctavoError as error:
                if not self._is_away:
                    log.warning("%s; trying again", error.message)
                self._is_away = True
                await asyncio.sleep(_PATIENCE_S)
            await asyncio.sleep(pause_s)

    async def _take(self) -> None:
        client = self._desk.client
        while len(self._works) < _MOST_BATCHES:
            await self._check_storage()
            token = new_token()
            batch_id = await client.run(client.cell.claim(self._name, token, lease_ms=self._lease_ms))
            if not batch_id:
                return
            work = Work(self._desk, batch_id, token)
            self._works[token] = work
            self._tasks[token] = task = asyncio.create_task(self._work(work))
            task.add_done_callback(lambda _, token=token: self._forget(token))  # type: ignore[misc]
            self._desk.metrics.owned.set(len(self._works))

    async def _work(self, work: Work) -> None:
        try:
            await work.run()
        except Exception:  # a fault of ours must hold up no other batch
            log.exception("the work on %s ended; it is tried again", work.batch_id)
            self._desk.metrics.problems.labels("internal_error").inc()
            await asyncio.sleep(_PATIENCE_S)
            await self._desk.client.run(self._desk.client.cell.release(work.batch_id, work.token))

    def _forget(self, token: str) -> None:
        self._works.pop(token, None)
        self._tasks.pop(token, None)
        self._desk.metrics.owned.set(len(self._works))

    async def _renew(self) -> None:
        works = list(self._works.values())
        client = self._desk.client
        pairs = [(work.batch_id, work.token) for work in works]
        now, states = await client.run(client.cell.renew(pairs, lease_ms=self._lease_ms))
        self._desk.offset_s = now - time.time()
        for work, state in zip(works, states, strict=True):
            if not state and (task := self._tasks.get(work.token)) is not None:
                task.cancel()

    async def _check_storage(self) -> None:
        """Raises StorageUnavailable: a clerk with other files than the gateways' would fail every batch."""
        if not self._is_checked:
            await check_mark(self._desk.storage, self._desk.client)
            self._is_checked = True

    async def _remove_expired(self) -> None:
        await remove_expired(self._desk)

    async def _fold_usage(self) -> None:
        await fold_usage(self._desk)

    async def _remove_unnamed(self) -> None:
        await self._check_storage()
        await remove_unnamed(self._desk)

    async def _give_back(self) -> None:
        works, tasks = list(self._works.values()), list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for work in works:
            try:
                async with asyncio.timeout(_PARTING_S):
                    await self._desk.client.run(self._desk.client.cell.release(work.batch_id, work.token))
            except (OctavoError, TimeoutError):
                return  # its lease runs out
