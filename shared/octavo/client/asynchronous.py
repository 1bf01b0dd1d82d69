"""The asynchronous client: submit, follow, collect, cancel."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from octavo.client.dead_letters import DeadLetterDesk
from octavo.client.handles import AsyncJob
from octavo.client.read_tokens import read_token, secret_for
from octavo.client.requests import Asked, Prompt, RequestFields, build_request, checked_tenant, write_down
from octavo.client.submissions import Submissions
from octavo.client.subscriber import Subscriber
from octavo.client.tenants import Tenants
from octavo.client.tracing import sending
from octavo.queue.calls import Call, Watch, run, run_all, run_many
from octavo.queue.chats import read_chat, store_chat
from octavo.queue.connection import connect, connect_listener, default_url
from octavo.queue.jobs import (
    Keeping,
    Listed,
    Submission,
    has_job,
    info_query,
    list_jobs,
    not_found,
    read_attachment,
    read_info,
    read_keeping,
    read_outcome,
)
from octavo.queue.keys import Keys
from octavo.queue.pages import Page, read_job_page, read_tail
from octavo.queue.protocol import Cell, Enqueued
from octavo.queue.questions import Questions
from octavo.terms.access.read_tokens import DEFAULT_S, ReadTokens
from octavo.terms.access.secret import Secret
from octavo.terms.errors import OctavoError, ServerUnavailable
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import JobStatus
from octavo.terms.models import Event, JobInfo, JobRequest, Result
from octavo.terms.positions import Position

DEFAULT_TENANT = "default"
_BATCH = 64
T = TypeVar("T")
_Answers = list[AsyncJob | OctavoError]


class AsyncClient(DeadLetterDesk):
    """A service's door to the queue. One object serves any number of jobs and streams over a constant number of
    connections; it belongs to one event loop. Nothing is sent before the first call.

    Without `url`: `REDIS_URL`, else the service that runs on this machine, else `redis://localhost:6379`.
    `secret` signs read tokens; without it, that of the environment or of the service that runs on this machine does.
    `watch` is told of every call of a script. `tracer` is OpenTelemetry's for spans of submissions, by default the
    application's. Every method raises ServerUnavailable when the server cannot be reached.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        limits: Limits | None = None,
        retention: Retention | None = None,
        secret: Secret | None = None,
        watch: Watch | None = None,
        tracer: Any | None = None,
    ) -> None:
        self._url = url or default_url()
        self._tenant = tenant
        self._limits = limits or Limits()
        self._retention = retention or Retention()
        self._secret = secret
        self._tracer = tracer
        self._keys = Keys()
        self._cell = Cell(self._keys, watch)
        self._redis = connect(self._url)
        self._listener = connect_listener(self._redis)
        self._submissions = Submissions(self._redis, self._listener, self._cell, self._retention.result_s)
        self.tenants = Tenants(self._redis, self._keys, watch, self._errors)
        self._questions = Questions(self._redis, self._listener, self._keys)
        self._subscriber = Subscriber(self._redis, self._listener, self._cell, self._submissions, errors=self._errors)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. Jobs go on."""
        await self._subscriber.close()
        await self._submissions.close()
        await self._listener.aclose()
        await self._redis.aclose()

    async def submit(
        self,
        prompt: Prompt | JobRequest | None = None,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        follow: bool = False,
        attachment: bytes = b"",
        fingerprint: bytes = b"",
        background: bool = False,
        key_id: str = "",
        trace: str = "",
        **fields: Unpack[RequestFields],
    ) -> AsyncJob:
        """Put a job into the queue: a prompt (text or token ids) or `messages`, a `model`, and any other field of
        `JobRequest` and `SamplingParams`; or a complete `JobRequest`. With an `idempotency_key` a repeated call gives
        the same job; `fingerprint` stands for what is to be repeated where that is more than the job. `follow` says
        that its events are read next, which then costs no round trip. `attachment` is kept with the job for as long as
        it is known, and no worker gets it. `background`: webhooks hear of its end as that of a response. `key_id` is
        the id of the API key that asks, `trace` the `traceparent` of a caller without a current span. Raises
        InvalidRequest, UnknownModel, QueueFull, RateLimited, TenantSuspended, IdempotencyConflict."""
        job = Asked(build_request(prompt, **fields), idempotency_key, attachment, fingerprint, background)
        (answer,) = await self._submit_batch([job], tenant, follow, key_id, trace)
        if isinstance(answer, OctavoError):
            raise answer
        return answer

    async def submit_many(
        self,
        requests: Sequence[JobRequest],
        *,
        tenant: str | None = None,
        idempotency_keys: Sequence[str] | None = None,
        follow: bool = False,
        fingerprint: bytes = b"",
        key_id: str = "",
        trace: str = "",
    ) -> list[AsyncJob | OctavoError]:
        """Put many jobs into the queue in few round trips. A refused request has its error in its place, and so have
        the remaining ones when the server goes away after it has accepted others. `follow`, `fingerprint`,
        `key_id`, `trace`: see `submit`; all jobs have the same."""
        if idempotency_keys is not None and len(idempotency_keys) != len(requests):
            raise ValueError(f"{len(idempotency_keys)} idempotency keys for {len(requests)} requests")
        keys: Sequence[str | None] = idempotency_keys or [None] * len(requests)
        jobs = [Asked(one, key, fingerprint=fingerprint) for one, key in zip(requests, keys, strict=True)]
        answers: list[AsyncJob | OctavoError] = []
        for start in range(0, len(jobs), _BATCH):
            try:
                answers += await self._submit_batch(jobs[start : start + _BATCH], tenant, follow, key_id, trace)
            except ServerUnavailable as error:
                if not answers:
                    raise
                return answers + [error] * (len(requests) - start)
        return answers

    async def _submit_batch(
        self, batch: Sequence[Asked], tenant: str | None, follow: bool, key_id: str, trace: str
    ) -> _Answers:
        ids = [self._keys.new_job_id() for _ in batch]
        accepted: set[str] = set()
        if follow:
            for job_id in ids:
                self._subscriber.expect(job_id)
        try:
            model, sender = batch[0].request.model, tenant or self._tenant
            with sending(self._tracer, trace, model=model, tenant=sender, jobs=len(batch)) as context:
                calls = await write_down(partial(self._enqueue, tenant, follow, key_id, context), ids, batch)
                answers = await self._enqueue_all(calls)
            accepted = {answer.id for answer in answers if isinstance(answer, AsyncJob)}
        finally:
            for job_id in ids:
                if job_id not in accepted:
                    self._subscriber.forget(job_id)
        return answers

    def _enqueue(
        self, tenant: str | None, follow: bool, key_id: str, trace: str, job_id: str, job: Asked
    ) -> Call[Enqueued] | OctavoError:
        seed = job.request.sampling.seed
        try:
            return self._cell.enqueue(
                job_id,
                job.request,
                seed=secrets.randbits(63) if seed is None else seed,
                tenant=checked_tenant(tenant or self._tenant),
                idempotency_key=job.idempotency_key,
                limits=self._limits,
                retention=self._retention,
                subscriber_id=self._subscriber.id if follow else "",
                attachment=job.attachment,
                fingerprint=job.fingerprint,
                background=job.background,
                key_id=key_id,
                trace=trace,
            )
        except OctavoError as error:
            return error

    async def _enqueue_all(self, calls: Sequence[Call[Enqueued] | OctavoError]) -> list[AsyncJob | OctavoError]:
        self._submissions.begin()
        with self._errors():
            sent: list[Call[Enqueued]] = [call for call in calls if isinstance(call, Call)]
            outcomes = await run_many(self._redis, sent)
        replies = iter(outcomes)
        answers: list[AsyncJob | OctavoError] = []
        for call in calls:
            answer = next(replies) if isinstance(call, Call) else call
            try:
                with self._errors():
                    if isinstance(answer, Exception):
                        raise answer
                    if answer.accepted is not None and isinstance(call, Call):
                        self._submissions.keep(answer.job_id, self._cell.settled(call, answer))
                    answers.append(AsyncJob(self, answer.job_id, answer.accepted, answer.rates))
            except OctavoError as error:
                answers.append(error)
        return answers

    def job(self, job_id: str) -> AsyncJob:
        """A handle on a job, submitted by any client. Whether it exists shows at its first use."""
        return AsyncJob(self, job_id)

    def events(self, job_id: str, after: int | str = 0) -> AsyncGenerator[Event, None]:
        """Every event of a job beyond `after`, the offset or the position of an event, as it comes. The last has `end`
        set, however the job ended. Raises ValueError for what is no position, JobNotFound."""
        return self._subscriber.events(job_id, Position.of(after))

    async def result(self, job_id: str, timeout: float | None = None) -> Result:  # noqa: ASYNC109
        """A job's result once it has ended, however it ended. Raises JobNotFound, and TimeoutError after `timeout`
        seconds; the job goes on then."""
        try:
            async with asyncio.timeout(timeout):
                return await self._await_result(job_id)
        except TimeoutError:
            raise TimeoutError(f"job {job_id} has not ended within {timeout} s; it goes on, ask again") from None

    async def _await_result(self, job_id: str) -> Result:
        _, result = await self.outcome(job_id)
        if result is None:
            _, tail = await self.tail(job_id)
            async with aclosing(self.events(job_id, str(tail))) as events:
                async for _ in events:
                    pass
            _, result = await self.outcome(job_id)
        assert result is not None, "a stream ends after its job"
        return result

    async def outcome(self, job_id: str) -> tuple[JobInfo, Result | None]:
        """Where a job stands, and its result if it has ended, in one round trip. Raises JobNotFound."""
        async with self._asking():
            return await self._submissions.found(job_id, lambda: read_outcome(self._redis, job_id))

    async def info(self, job_id: str) -> JobInfo:
        """Where a job stands. Raises JobNotFound."""
        async with self._asking():
            return await self._submissions.found(job_id, lambda: read_info(self._redis, job_id))

    async def attachment(self, job_id: str) -> tuple[JobInfo, bytes | None]:
        """Where a job stands, and what was attached to it, in one round trip. Raises JobNotFound."""
        async with self._asking():
            return await self._submissions.found(job_id, lambda: read_attachment(self._redis, job_id))

    async def keeping(self, job_id: str) -> tuple[JobInfo, Keeping]:
        """Where a job stands, and how long it is kept, in one round trip. Raises JobNotFound."""
        async with self._asking():
            return await self._submissions.found(job_id, lambda: read_keeping(self._redis, job_id))

    async def read_token(self, job_id: str, seconds: int = DEFAULT_S) -> str:
        """A token for `/stream` and `/log` of this job: a browser reads it at any gateway of the same secret, without a
        key. It is good for so many seconds, and not longer than the job is kept. Raises InvalidRequest, JobNotFound,
        and NoSecret where neither this client nor its environment has one."""
        tokens = ReadTokens(self._secret or secret_for(self._url))
        return read_token(tokens, *await self.keeping(job_id), seconds)[0]

    async def page(self, job_id: str, after: int | str = 0) -> Page:
        """Where a job stands, and what is stored of it beyond an offset or a position. Raises JobNotFound."""
        place = Position.of(after)
        async with self._asking():
            return await self._submissions.found(job_id, lambda: read_job_page(self._redis, job_id, place))

    async def tail(self, job_id: str) -> tuple[JobInfo, Position]:
        """Where a job stands, and the position behind all that is stored of it. Raises JobNotFound."""
        async with self._asking():
            return await self._submissions.found(job_id, lambda: read_tail(self._redis, job_id))

    async def cancel(self, job_id: str) -> JobStatus:
        """Ask for a job's end. A queued one is over at once (CANCELLED), a running one (RUNNING) within a step or
        two, one that has ended stays as it is. Raises JobNotFound."""
        return (await self.cancel_own(job_id, tenant=""))[0]

    async def cancel_own(self, job_id: str, *, tenant: str, erase: bool = False) -> tuple[JobStatus, JobInfo]:
        """`cancel` for one tenant (`""` for any), and where the job stands then, in one round trip. With `erase` the
        job loses its attachment at once, and what it generated with it or a minute after its end. Raises JobNotFound,
        also for the job of another tenant."""
        call = (self._cell.erase if erase else self._cell.cancel)(job_id, tenant=tenant)
        self._submissions.begin()
        with self._errors():
            status, info = await self._submissions.found(
                job_id, lambda: run_all(self._redis, [call, info_query(job_id)])
            )
        if status is None:
            raise not_found(job_id)
        # A server may forget an erasure, whatever the job was.
        self._submissions.cancelled(job_id, call, JobStatus.CANCELLED if erase else status)
        return status, info

    async def erase(self, job_id: str) -> JobStatus:
        """Take back what came with a job and what it generated; `cancel` one that has not ended. Raises JobNotFound."""
        return (await self.cancel_own(job_id, tenant="", erase=True))[0]

    async def jobs(self, **asked: Unpack[Listed]) -> list[JobInfo]:
        """Jobs, newest first, as many as `limit` (100), of one `status` or `tenant`; `after` is the last id of the
        previous page. Those of batches are left out, or with `of_batches` all others."""
        async with self._asking():
            return await list_jobs(self._redis, self._keys, **asked)

    async def is_repeat(self, idempotency_key: str, *, tenant: str) -> bool:
        """True if a submission with this key would give a job that there is already, or conflict with it."""
        async with self._asking():
            return await has_job(self._redis, self._keys, tenant, idempotency_key)

    async def note_chat(self, chat_id: str, job_id: str, *, tenant: str) -> None:
        """Make a job the one that `chat_job` gives, for as long as its result is kept."""
        async with self._asking():
            await store_chat(self._redis, self._keys, tenant, chat_id, job_id, self._retention.result_s)

    async def chat_job(self, chat_id: str, *, tenant: str) -> str | None:
        """The latest job of a tenant's chat."""
        async with self._asking():
            return await read_chat(self._redis, self._keys, tenant, chat_id)

    async def _submit_again(self, job_id: str, given_up: Submission) -> AsyncJob:
        sampling = given_up.request.sampling.model_copy(update={"seed": given_up.seed})
        return await self.submit(
            given_up.request.model_copy(update={"sampling": sampling}),
            tenant=given_up.tenant,
            idempotency_key=f"requeue:{job_id}",
            key_id=given_up.key_id,
            trace=given_up.trace,
        )

    async def check_writable(self) -> None:
        """Raises QueueFull or ServerUnavailable where the server would refuse a job: it is full, a replica, or does not
        allow this user to write."""
        await self._run(self._cell.probe())

    async def reap(self) -> int:
        """Free what dead workers hold and end what is late. Every gateway does it about once a second."""
        return (await self._run(self._cell.reap())).jobs

    async def _run(self, call: Call[T]) -> T:
        with self._errors():
            return await run(self._redis, call)
