"""The events of a response as its job gets on: for a client that waits, and for one that reads along."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from octavo import AsyncClient
from octavo.dialects.events import json_line
from octavo.dialects.openai.responses.events import Event, ResponseLog
from octavo.terms.errors import OctavoError
from octavo.terms.messages import Chunk, JobStatus, Terminal
from octavo_gateway.errors import ApiError, of_exception, of_job
from octavo_gateway.http.streams import Mailbox
from octavo_gateway.openai.frames import DONE
from octavo_gateway.state import Gateway
from octavo_gateway.status.metrics import TokenClock


class Timed:
    """Counts and times the tokens of a response that this gateway has accepted."""

    def __init__(self, gateway: Gateway, model: str) -> None:
        self._metrics = gateway.metrics
        self._model = model
        self._clock = TokenClock(gateway.metrics, model, 1, gateway.exemplar())

    def chunk(self, chunk: Chunk) -> None:
        self._clock.tokens(len(chunk.token_ids))
        if chunk.finish_reason is not None:
            self._metrics.requests_finished.labels(self._model, chunk.finish_reason).inc()

    def end(self) -> None:
        self._clock.end()


async def told(
    client: AsyncClient, log: ResponseLog, job_id: str, timed: Timed | None = None, *, refusable: bool = False
) -> AsyncGenerator[list[Event], None]:
    """The events of a job from its beginning to its end, as they come; `log` leaves out those that are not wanted.

    `refusable`: nothing is told before the job has begun, and one that a worker refuses raises ApiError.
    """
    if not refusable:
        yield log.begin()
    async with aclosing(client.events(job_id)) as events:
        async for event in events:
            if refusable:
                check(event.end)
                yield log.begin()
                refusable = False
            if event.chunk is not None:
                if timed is not None:
                    timed.chunk(event.chunk)
                yield log.add(event.chunk)
            if event.end is not None:
                if timed is not None and event.end.status is JobStatus.COMPLETED:
                    timed.end()
                info = await client.info(job_id)
                yield log.end(event.end, info.finished_at)


async def write(
    mailbox: Mailbox, log: ResponseLog, batches: AsyncGenerator[list[Event], None], *, refusable: bool = False
) -> None:
    """Put all events into a mailbox. An error is the last event; of one that is `refusable` it is raised where nothing
    was told yet."""
    try:
        async with aclosing(batches):
            async for batch in batches:
                if batch:
                    await mailbox.put(b"".join(map(frame, batch)))
    except (ApiError, OctavoError) as error:
        if refusable and not mailbox.used:
            raise
        await mailbox.put(frame(_error_event(log, of_exception(error))))
        return
    await mailbox.put(DONE)


def check(end: Terminal | None) -> None:
    """Raises ApiError for the end of a job that failed."""
    if end is not None and end.status in (JobStatus.FAILED, JobStatus.EXPIRED):
        raise of_job(end.status, end.error)


@asynccontextmanager
async def tied(gateway: Gateway, log: ResponseLog, job_id: str, *, kept: bool) -> AsyncIterator[None]:
    """A job whose client waits for it: leaving early, by an error or by cancellation, cancels it, unless it is `kept`
    for a client that asks again."""
    try:
        yield
    finally:
        if log.ended is None and not kept:
            await gateway.door.leave([job_id])


def frame(event: Event) -> bytes:
    """One server-sent event."""
    return f"event: {event['type']}\ndata: {json_line(event)}\n\n".encode()


def _error_event(log: ResponseLog, error: ApiError) -> Event:
    """In both shapes: OpenAI's, and that of Open Responses, which has the same fields one level deeper."""
    fields: dict[str, Any] = error.body()["error"]
    flat = {name: fields[name] for name in ("code", "message", "param")}
    return {"type": "error", "sequence_number": log.next_number, **flat, "error": fields}
