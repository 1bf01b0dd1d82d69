"""Spans of the attempts at a job, made when they are over from times that were noted anyway.

A worker tells of each attempt that it saw over, and of those right before whose workers went silent, which can tell
nothing themselves. So each is told once. All ids are hashes of the trace, the job and the attempt: a span can link to
one that another worker tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from octavo.queue.protocol import Claim, Parting
from octavo.service.tracing.wanted import open_tracing
from octavo.terms.messages import JobStatus, Terminal
from octavo.terms.models import Attempt
from octavo.terms.tracing import conventions as names
from octavo.terms.tracing.context import TraceContext
from octavo.terms.tracing.spans import SpanFacts, Value
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.telemetry.attributes import asked, content, outcome, told
from octavo_worker.agent.telemetry.watch import JobWatch
from octavo_worker.contract.options import WorkerOptions

if TYPE_CHECKING:
    from octavo.service.tracing.tracing import Tracing
    from octavo_worker.agent.agent import Agent


class Traces(JobWatch):
    """Tells `tell` of the spans of jobs that have a trace and whose caller wants it recorded, with `shows_content` what
    was asked and answered, too."""

    def __init__(self, tell: Callable[[SpanFacts], None], *, model: str, worker_id: str, shows_content: bool) -> None:
        self._tell = tell
        self._model, self._worker_id, self._shows_content = model, worker_id, shows_content

    def left(self, jobs: Sequence[ActiveJob], why: Parting) -> None:
        for job in jobs:
            self._over(job, why, {}, None if why == "back" else why)

    def ended(self, job: ActiveJob, terminal: Terminal) -> None:
        error = terminal.error.code if terminal.error is not None else None
        is_good = terminal.status in (JobStatus.COMPLETED, JobStatus.CANCELLED)
        self._over(job, terminal.status.value, outcome(job, terminal), None if is_good else error or "failed")

    def _over(self, job: ActiveJob, why: str, ending: dict[str, Value], error: str | None) -> None:
        claim = job.claim
        if claim.trace is None or not claim.trace.is_sampled:
            return
        now, ticks = time.time(), time.monotonic()
        first = None if job.computed_at is None else now - (ticks - job.computed_at)
        here = Attempt(
            worker=self._worker_id,
            started_at=now - (ticks - job.claimed_at),
            tokens_before=claim.offset,
            ended_at=now,
            tokens=max(claim.offset, job.stored),
            why=why,
        )
        for number, attempt, since in _untold(claim, here):
            is_own = attempt is here
            attributes = {**asked(claim, self._model), **told(number, attempt)}
            if is_own:
                attributes |= ending
                if self._shows_content:
                    attributes |= content(job)
            firsts = first if is_own else claim.first_token_at
            for span in _spans(claim, number, attempt, since, firsts, attributes, error if is_own else "lapsed"):
                self._tell(span)
        if job.called_at is not None and first is not None:
            begin = max(first, now - (ticks - job.called_at))
            process = claim.trace.derived(claim.job_id, claim.attempt)
            self._tell(_part("tool calls", claim, claim.attempt, process, begin, now))


def _untold(claim: Claim, here: Attempt) -> Iterator[tuple[int, Attempt, float]]:
    """Attempts that no other worker tells of, each with its number and the time from which the job waited for it."""
    attempts = [*claim.history, here]
    first = len(attempts) - 1
    while first > 0 and attempts[first - 1].why == "lapsed" and claim.attempt - (len(attempts) - first) >= 1:
        first -= 1
    for place in range(first, len(attempts)):
        number = claim.attempt - (len(attempts) - 1 - place)
        before = attempts[place - 1].ended_at if place else None
        if before is None:
            before = claim.waits_since
        yield number, attempts[place], before


def _spans(
    claim: Claim,
    number: int,
    attempt: Attempt,
    since: float,
    first: float | None,
    attributes: dict[str, Value],
    error: str | None,
) -> Iterator[SpanFacts]:
    parent, end = claim.trace, attempt.ended_at
    if parent is None or end is None:
        return
    start = since if attempt.started_at is None else attempt.started_at
    process = SpanFacts(
        f"{names.PROCESS} {attributes[names.REQUEST_MODEL]}",
        parent.derived(claim.job_id, number),
        parent,
        start,
        end,
        "consumer",
        attributes if error is None else {**attributes, names.ERROR_TYPE: error},
        [parent.derived(claim.job_id, number - 1)] if number > 1 else (),
        error,
    )
    yield _part("wait", claim, number, parent, min(since, start), start)
    yield process
    if first is not None and start <= first <= end:
        yield _part("prefill", claim, number, process.context, start, first)
        yield _part("decode", claim, number, process.context, first, end)


def _part(name: str, claim: Claim, number: int, of: TraceContext, begin: float, until: float) -> SpanFacts:
    """A span below another, whose id is of job, attempt and name."""
    own = of.derived(claim.job_id, number, name)
    attributes: dict[str, Value] = {names.MESSAGING_MESSAGE: claim.job_id, names.ATTEMPT: number}
    return SpanFacts(name, own, of, begin, until, attributes=attributes)


def trace_jobs(options: WorkerOptions, model: str, worker_id: str, agent: Agent) -> Tracing | None:
    """Tell of jobs' spans from now on, if the variables of OpenTelemetry name a collector."""
    tracing = open_tracing("octavo-worker", worker_id)
    if tracing is not None:
        agent.watch.add(Traces(tracing.tell, model=model, worker_id=worker_id, shows_content=options.trace_content))
    return tracing
