"""The work on one batch that this clerk owns, from any state to its end. It may stop at any point: the next owner goes
on."""

from __future__ import annotations

import asyncio
import logging
import math
from time import monotonic

from octavo.dialects.openai.batch.envelope import FileCheck
from octavo.queue.batches.reading import read_load, read_members
from octavo.queue.calls import run_many
from octavo.service.clerk.desk import Desk, Lost, Moved
from octavo.service.clerk.finishing import finish
from octavo.service.clerk.harvest import Harvest, end_of
from octavo.service.clerk.input_file import InputFile
from octavo.service.clerk.pace import Pace
from octavo.service.clerk.submission import Submission
from octavo.service.storage.interface import NotStored
from octavo.service.storage.places import file_name
from octavo.terms.batches import BatchInfo, BatchStatus, LineError
from octavo.terms.errors import (
    OctavoError,
    QueueFull,
    RateLimited,
    ServerUnavailable,
    StorageUnavailable,
    TenantSuspended,
    UnknownModel,
)
from octavo.terms.fields import Priority

log = logging.getLogger(__name__)

_IDLE_S = 0.2
_RECHECK_S = 60.0
_RECHECK_ENDING_S = 2.0  # of a batch whose jobs are to end
_HARVEST_S = (1.0, 60.0)  # between two parts, the longer the batch takes
_PARTS_WANTED = 500
_PATIENCE_S = 2.0  # before what was refused is tried again
_LONGEST_HOLD_S = 30.0  # the limits may be changed
_PROBLEMS = (ServerUnavailable, StorageUnavailable, QueueFull, TenantSuspended, UnknownModel, NotStored, Moved)


class Work:
    """One batch."""

    def __init__(self, desk: Desk, batch_id: str, token: str) -> None:
        self.batch_id = batch_id
        self.token = token
        self._desk = desk
        self._source: InputFile | None = None
        self._submission: Submission | None = None
        self._pace = Pace(desk.now())
        self._is_urgent = False
        self._is_ending = False
        self._rechecked_at = monotonic()
        self._harvested_at = monotonic()
        self._held_until = -math.inf
        self._problem = ""

    async def run(self) -> None:
        """Until the batch has ended, or is another owner's."""
        while True:
            try:
                batch = await self._desk.client.batch(self.batch_id)
                if batch is None or batch.status.is_terminal:
                    return
                if not await self._step(batch):
                    await asyncio.sleep(_IDLE_S)
                self._problem = ""
            except Lost:
                log.info("%s is another clerk's now", self.batch_id)
                return
            except _PROBLEMS as problem:
                self._say(problem)
                if isinstance(problem, Moved):
                    self._rechecked_at = -math.inf
                await asyncio.sleep(_PATIENCE_S)

    def _say(self, problem: OctavoError) -> None:
        self._desk.metrics.problems.labels(problem.code).inc()
        if problem.code != self._problem:
            log.warning("%s waits: %s", self.batch_id, problem.message)
        self._problem = problem.code

    async def _step(self, batch: BatchInfo) -> bool:
        """Whatever can be done now. False if there was nothing."""
        match batch.status:
            case BatchStatus.VALIDATING:
                await self._validate(batch)
                return True
            case BatchStatus.FINALIZING:
                await finish(self._desk, batch, self.token)
                return True
            case BatchStatus.CANCELLING if not batch.total:
                await finish(self._desk, batch, self.token)
                return True
            case _:
                return await self._go_on(batch)

    async def _validate(self, batch: BatchInfo) -> None:
        """Check the structure of the file, all of it, before anything runs."""
        client = self._desk.client
        try:
            source, check = await self._read_input(batch)
            errors = list(check.errors)
        except NotStored:
            source, errors = None, [LineError("file_not_found", "the input file is gone", None, "input_file_id")]
        if source is not None and not errors:
            assert check.model is not None
            if await self._desk.knows(check.model):
                state = await client.run(client.cell.begin(batch.id, self.token, total=check.total, model=check.model))
                if not state:
                    raise Lost
                self._source = source
                log.info("%s: %d lines", batch.id, check.total)
                return
            message = "no worker has ever served the model of this file"
            errors = [LineError("model_not_found", message, None, "body.model")]
        if await client.run(client.cell.finish(batch.id, self.token, BatchStatus.FAILED, errors=errors)) == "fenced":
            raise Lost
        self._desk.metrics.ended.labels("failed").inc()
        log.info("%s failed: %d faults in its file", batch.id, len(errors))

    async def _go_on(self, batch: BatchInfo) -> bool:
        desk, client = self._desk, self._desk.client
        source = await self._input(batch)
        if self._submission is None:
            self._submission = Submission(desk, batch, self.token, source)
        harvest = Harvest(desk, batch, self.token, source, self._submission)
        with client.errors():
            is_open, ended, parts = await read_load(client.redis, client.keys, batch.id)
        end = end_of(batch, desk.now())
        await self._look_after_open_jobs(batch, is_open, end, idle=not is_open and not ended)
        if end is not None and batch.cursor < batch.total:
            await harvest.leave_out(batch.cursor, parts, end)
            return True
        if await self._harvest_when_due(harvest, batch, is_open, ended, parts, end):
            return True
        if batch.cursor < batch.total:
            return await self._submit(batch, self._submission, is_open + ended)
        return not is_open and not ended and await self._close(batch)

    async def _submit(self, batch: BatchInfo, submission: Submission, in_hand: int) -> bool:
        """Submit lines, unless the tenant's bucket is waited for: what has ended is harvested meanwhile."""
        if monotonic() < self._held_until:
            return False
        room = await self._desk.window(batch.model or "") - in_hand
        try:
            return await submission.submit(batch.cursor, room, self._class_of(batch)) > batch.cursor
        except RateLimited as refused:
            self._desk.metrics.problems.labels(refused.code).inc()
            self._held_until = monotonic() + min(refused.retry_after_s, _LONGEST_HOLD_S)
            return False

    async def _input(self, batch: BatchInfo) -> InputFile:
        """The index of the input, made anew by an owner that takes over. Raises NotStored."""
        if self._source is None:
            self._source, _ = await self._read_input(batch)
        return self._source

    async def _read_input(self, batch: BatchInfo) -> tuple[InputFile, FileCheck]:
        return await InputFile.read(self._desk.storage, file_name(batch.input_file_id), batch.endpoint)

    async def _harvest_when_due(
        self, harvest: Harvest, batch: BatchInfo, is_open: int, ended: int, parts: int, end: str | None
    ) -> bool:
        """Parts are few: each is synced, and all are put together in the end."""
        if not ended:
            return False
        started_at = batch.reached.get(BatchStatus.IN_PROGRESS, batch.created_at)
        least, most = _HARVEST_S
        pause_s = min(most, max(least, (self._desk.now() - started_at) / _PARTS_WANTED))
        is_last = not is_open and batch.cursor >= batch.total
        is_due = monotonic() - self._harvested_at >= pause_s
        if not (is_due or is_last) and ended * 4 < await self._desk.window(batch.model or ""):
            return False
        done = await harvest.harvest(batch.cursor, parts, end)
        self._harvested_at = monotonic()
        self._pace.note(self._desk.now(), done)
        return done > 0

    async def _look_after_open_jobs(self, batch: BatchInfo, is_open: int, end: str | None, *, idle: bool) -> None:
        """Now and then: an older version may have ended them, or the server has lost them. Those of a batch that is
        being cancelled are cancelled."""
        pause_s = _RECHECK_S if end is None else _RECHECK_ENDING_S
        if end is not None and not self._is_ending:
            self._is_ending, pause_s = True, 0.0
        if idle or monotonic() - self._rechecked_at < pause_s:
            return
        client = self._desk.client
        await client.run(client.cell.recheck(batch.id, self.token, ()))
        with client.errors():
            members = await read_members(client.redis, client.keys.open_jobs(batch.id), max(1, is_open))
        for start in range(0, len(members), 64):
            some = members[start : start + 64]
            if end == "cancelled":
                with client.errors():
                    await run_many(client.redis, [self._desk.cell.cancel(member.job_id) for member in some])
            if await client.run(client.cell.recheck(batch.id, self.token, some)) < 0:
                raise Lost
        self._rechecked_at = monotonic()

    def _class_of(self, batch: BatchInfo) -> Priority:
        """The class of what is submitted now: normal, once the batch would miss its window as filler."""
        left = batch.total - batch.completed - batch.failed
        if not self._is_urgent and self._pace.would_miss(self._desk.now(), left, batch.expires_at):
            self._is_urgent = True
            self._desk.metrics.urgent.inc()
            log.warning("%s would miss its window: its other %d lines are of class normal", batch.id, left)
        return "normal" if self._is_urgent else "batch"

    async def _close(self, batch: BatchInfo) -> bool:
        """Every line is in a part."""
        if batch.status is BatchStatus.CANCELLING:
            await finish(self._desk, batch, self.token)
            return True
        state = await self._desk.client.run(self._desk.client.cell.close(batch.id, self.token))
        if not state:
            raise Lost
        return state != "open"
