"""Outcomes of the jobs of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.client.batches import BatchClient
from octavo.dialects.openai.answers import CompletedJob
from octavo.queue import wire
from octavo.queue.connection import answered
from octavo.queue.jobs import locate
from octavo.queue.keys import JobHash
from octavo.queue.streams import read_stream
from octavo.terms.errors import JobFailed, JobNotFound, MalformedMessage, OctavoError
from octavo.terms.messages import Chunk, JobStatus, Terminal

AT_ONCE = 16
"""Results that are read together: each may have a megabyte."""

_LOST = "what this request generated was lost on the server: send it again"


@dataclass(frozen=True)
class Outcome:
    """An ended job: what it generated, and when it was accepted; or why it has no answer."""

    created: int = 0
    completed: CompletedJob | None = None
    error: OctavoError | None = None
    status: JobStatus = JobStatus.FAILED


async def read_outcomes(client: BatchClient, ids: Sequence[str]) -> dict[str, Outcome]:
    """The outcome of each job. One that is damaged, erased or gone has an error, too."""
    found: dict[str, Outcome] = {}
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        rows = await _read(client, some)
        for place, job_id in enumerate(some):
            found[job_id] = await _outcome(client, job_id, rows[2 * place], rows[2 * place + 1])
    return found


async def _read(client: BatchClient, ids: Sequence[str]) -> list[Any]:
    pipeline = client.redis.pipeline(transaction=False)
    for job_id in ids:
        keys = locate(job_id)
        pipeline.hmget(keys.job(job_id), (JobHash.STATUS, JobHash.ERROR, JobHash.CREATED_MS))
        pipeline.get(keys.result(job_id))
    with client.errors():
        async with answered():
            rows: list[Any] = await pipeline.execute(raise_on_error=False)
    return rows


async def _outcome(client: BatchClient, job_id: str, row: Any, data: Any) -> Outcome:
    try:
        status, error, created = row
        state, at = JobStatus(status.decode()), int(created) // 1000
        if state is not JobStatus.COMPLETED:
            problem = wire.decode_error(error) if error else None
            message = problem.message if problem else f"the job ended as {state.value}"
            code = problem.code if problem else state.value
            failure = JobFailed(message, state.value, code, problem.param if problem else None)
            return Outcome(at, error=failure, status=state)
        terminal, chunks = wire.decode_result(data) if data else await _of_stream(client, job_id)
        return Outcome(at, CompletedJob(job_id, chunks, terminal), status=state)
    except (AttributeError, TypeError, ValueError, MalformedMessage, JobNotFound):
        return Outcome(error=JobFailed(_LOST, code="job_lost"))


async def _of_stream(client: BatchClient, job_id: str) -> tuple[Terminal, Sequence[Chunk]]:
    """A result beyond the limit of messages is in the stream alone. Raises JobNotFound."""
    with client.errors():
        events = await read_stream(client.redis, job_id)
    if not events or events[-1].end is None:
        raise JobNotFound("its stream is gone")
    return events[-1].end, [event.chunk for event in events if event.chunk is not None]
