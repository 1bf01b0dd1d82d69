"""A courier: takes deliveries that are due, tries each once, and says what became of it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from octavo.client.webhooks import WebhookClient
from octavo.queue.calls import Call
from octavo.queue.webhooks.calls import Try
from octavo.service.webhooks.messages import event_body, signed_headers
from octavo.service.webhooks.metrics import CourierMetrics
from octavo.service.webhooks.outgoing import WHOLE_S, Answer, Outgoing
from octavo.terms.errors import OctavoError
from octavo.terms.tracing import conventions as names
from octavo.terms.tracing.context import HEADER, TraceContext
from octavo.terms.tracing.spans import SpanFacts, Value
from octavo.terms.webhooks import EVENT_TYPES, Outcome, WebhookSecrets

if TYPE_CHECKING:
    from octavo.service.tracing.tracing import Tracing

log = logging.getLogger(__name__)

PAUSES_S = (5, 30, 120, 600, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 72_000)
"""Seconds after each try but the last: twelve tries in 72 hours."""

_JITTER = 0.1
_MOST_TRIES = 256  # at once
_LEASE_MS = round(WHOLE_S * 2000)
_LOOK_S = 0.2
_PATIENCE_S = 2.0
_PARTING_S = 5.0
_GONE = 410


class Courier:
    """One a clerk process. Tries are independent of each other, so that a receiver that hangs holds up none but its
    own."""

    def __init__(
        self,
        client: WebhookClient,
        outgoing: Outgoing,
        secrets: WebhookSecrets,
        metrics: CourierMetrics,
        *,
        tracing: Tracing | None = None,
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        self._client = client
        self._outgoing = outgoing
        self._secrets = secrets
        self._metrics = metrics
        self._tracing = tracing
        self._pauses_s = pauses_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None] | None] = set()  # those of them that have no answer yet
        self._has_room = asyncio.Event()
        self._now = 0.0

    async def run(self) -> None:
        """Until cancelled. Then what it was about to deliver is any courier's at once."""
        is_away = False
        try:
            while True:
                try:
                    is_more = await self._take()
                    is_away = False
                except OctavoError as error:
                    if not is_away:
                        log.warning("%s; trying again", error.message)
                    is_away, is_more = True, False
                    await asyncio.sleep(_PATIENCE_S)
                if not is_more:
                    self._has_room.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await self._has_room.wait()
        finally:
            await self._give_back()

    async def _take(self) -> bool:
        """Begin tries of what is due. True if there may be more."""
        room = min(64, _MOST_TRIES - len(self._tasks))
        if room <= 0:
            return False
        found = await self._client.run(self._client.cell.claim(lease_ms=_LEASE_MS, most=room))
        self._now = found.now
        for tried in found.due:
            task = asyncio.create_task(self._deliver(tried))
            self._tasks.add(task)
            task.add_done_callback(self._done)
        return len(found.due) == room

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._has_room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a try of a delivery ended: its lease runs out, then it is tried again", exc_info=error)

    async def _deliver(self, tried: Try) -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        self._sending.add(task)
        try:
            answer = await self._send(tried)
        except asyncio.CancelledError:
            with suppress(OctavoError, TimeoutError):
                async with asyncio.timeout(_PARTING_S):
                    await self._client.run(self._client.cell.commit(tried, "back"))
            raise
        finally:
            self._sending.discard(task)
        outcome = self._outcome(tried, answer)
        pause_s = self._pause_s(tried, answer) if outcome == "again" else 0.0
        call = self._client.cell.commit(tried, outcome, pause_ms=round(pause_s * 1000), answer=str(answer))
        if not await self._told(call):
            return
        self._metrics.tries.labels(outcome).inc()
        if outcome == "gone":
            log.warning("%s answered 410: it is switched off", tried.endpoint_id)
        elif outcome == "failed":
            log.warning("%s has not taken %s (%s): given up", tried.endpoint_id, tried.event_id, answer)

    async def _told(self, call: Call[bool]) -> bool:
        """Say what a try came to, for as long as its lease lasts. False if it is another courier's by now."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEASE_MS / 1000 - WHOLE_S):
                while True:
                    with suppress(OctavoError):
                        return await self._client.run(call)
                    await asyncio.sleep(_PATIENCE_S / 4)
        return False

    async def _send(self, tried: Try) -> Answer:
        if tried.event_type not in EVENT_TYPES:
            return Answer(0, "damaged")
        body = event_body(tried.event_id, tried.event_type, tried.of, tried.created_at)
        secrets = self._secrets.signing(tried.endpoint_id, tried.version, with_old=self._now < tried.old_until)
        headers = signed_headers(tried.event_id, body, secrets)
        trace = TraceContext.read(tried.trace)
        if trace is None:
            return await self._outgoing.post(tried.url, body.encode(), headers)
        own = trace if self._tracing is None else trace.derived(tried.endpoint_id, tried.event_id, tried.tries)
        began = time.time()
        answer = await self._outgoing.post(tried.url, body.encode(), {**headers, HEADER: str(own)})
        if self._tracing is not None:
            self._tracing.tell(_span(tried, own, trace, began, answer))
        return answer

    def _outcome(self, tried: Try, answer: Answer) -> Outcome:
        if answer.is_taken:
            return "ok"
        if answer.status == _GONE:
            return "gone"
        is_last = tried.tries >= len(self._pauses_s)
        return "failed" if is_last or answer.problem == "damaged" else "again"

    def _pause_s(self, tried: Try, answer: Answer) -> float:
        """No two endpoints in step, and never earlier than the receiver wants to be asked again."""
        pause_s = self._pauses_s[tried.tries] * random.uniform(1 - _JITTER, 1 + _JITTER)
        return max(pause_s, min(answer.retry_after_s, PAUSES_S[-1]))

    async def _give_back(self) -> None:
        """An answer that has come is still told; a try without one is no try."""
        tasks = list(self._tasks)
        for task in tasks:
            if task in self._sending:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_PARTING_S)
        for task in self._tasks:
            task.cancel()


def _span(tried: Try, own: TraceContext, trace: TraceContext, began: float, answer: Answer) -> SpanFacts:
    """The span of a try. The address may hold a secret and is no part of it."""
    attributes: dict[str, Value] = {
        names.HTTP_METHOD: "POST",
        names.EVENT: tried.event_type,
        names.MESSAGING_MESSAGE: tried.event_id,
        names.TENANT: tried.tenant,
        names.ATTEMPT: tried.tries + 1,
    }
    if answer.status:
        attributes[names.HTTP_STATUS] = answer.status
    error = None if answer.is_taken else str(answer)
    if error is not None:
        attributes[names.ERROR_TYPE] = error
    return SpanFacts("POST webhook", own, trace, began, time.time(), "client", attributes, error=error)
