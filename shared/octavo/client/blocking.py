"""The client for code that is not asynchronous: the same client, run by one thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from octavo.client.asynchronous import DEFAULT_TENANT, AsyncClient
from octavo.client.handles import AsyncJob
from octavo.client.requests import Prompt, RequestFields
from octavo.queue.jobs import Keeping, Listed
from octavo.terms.access.read_tokens import DEFAULT_S
from octavo.terms.access.secret import Secret
from octavo.terms.errors import OctavoError
from octavo.terms.fields import Priority
from octavo.terms.fleet import PausedLane
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import JobStatus, TokenizerAnswer
from octavo.terms.models import DeadLetter, Event, JobInfo, JobRequest, Result
from octavo.terms.workers import ModelCard, PinnedPrefix, PrefixPin, WorkerInfo, WorkerMemory

T = TypeVar("T")
C = TypeVar("C", bound=type)


def _documented_by(twin: type) -> Callable[[C], C]:
    """Methods without a docstring have that of the asynchronous method of the same name."""

    def document(kind: C) -> C:
        for name, method in vars(kind).items():
            if callable(method) and not name.startswith("_") and method.__doc__ is None:
                method.__doc__ = getattr(twin, name).__doc__
        return kind

    return document


@_documented_by(AsyncClient)
class Client:
    """A service's door to the queue; `AsyncClient` tells what each method does and raises.

    Safe to share between threads. May be made before a fork: a child gets a thread and connections of its own at
    its first call. Streams that were open at the fork stay with the parent.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        limits: Limits | None = None,
        retention: Retention | None = None,
        secret: Secret | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "url": url, "tenant": tenant, "limits": limits, "retention": retention, "secret": secret,
        }  # fmt: skip
        self._lock = threading.Lock()
        self._engine: _Engine | None = None
        self._left: weakref.finalize[..., Client] | None = None  # of a client that was never closed
        self._inherited: list[_Engine] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. Jobs go on; a later call connects again."""
        with self._lock:
            engine, self._engine = self._engine, None
            if self._left is not None:
                self._left.detach()
        if engine is not None and engine.pid == os.getpid():
            engine.close()

    def submit(
        self,
        prompt: Prompt | JobRequest | None = None,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        follow: bool = False,
        attachment: bytes = b"",
        **fields: Unpack[RequestFields],
    ) -> Job:
        submit = self._ready().client.submit
        options: dict[str, Any] = {"idempotency_key": idempotency_key, "follow": follow, "attachment": attachment}
        return Job(self, self._wait(submit(prompt, tenant=tenant, **options, **fields)))

    def submit_many(
        self,
        requests: Sequence[JobRequest],
        *,
        tenant: str | None = None,
        idempotency_keys: Sequence[str] | None = None,
        follow: bool = False,
    ) -> list[Job | OctavoError]:
        submit_many = self._ready().client.submit_many
        answers = self._wait(submit_many(requests, tenant=tenant, idempotency_keys=idempotency_keys, follow=follow))
        return [Job(self, answer) if isinstance(answer, AsyncJob) else answer for answer in answers]

    def job(self, job_id: str) -> Job:
        return Job(self, self._ready().client.job(job_id))

    def events(self, job_id: str, after: int | str = 0) -> Iterator[Event]:
        return self._iterate(self._ready().client.events(job_id, after))

    def result(self, job_id: str, timeout: float | None = None) -> Result:
        return self._wait(self._ready().client.result(job_id, timeout))

    def info(self, job_id: str) -> JobInfo:
        return self._wait(self._ready().client.info(job_id))

    def keeping(self, job_id: str) -> tuple[JobInfo, Keeping]:
        return self._wait(self._ready().client.keeping(job_id))

    def read_token(self, job_id: str, seconds: int = DEFAULT_S) -> str:
        return self._wait(self._ready().client.read_token(job_id, seconds))

    def attachment(self, job_id: str) -> tuple[JobInfo, bytes | None]:
        return self._wait(self._ready().client.attachment(job_id))

    def erase(self, job_id: str) -> JobStatus:
        return self._wait(self._ready().client.erase(job_id))

    def cancel(self, job_id: str) -> JobStatus:
        return self._wait(self._ready().client.cancel(job_id))

    def jobs(self, **asked: Unpack[Listed]) -> list[JobInfo]:
        return self._wait(self._ready().client.jobs(**asked))

    def dead_letters(
        self, limit: int = 100, *, model: str | None = None, tenant: str | None = None, reason: str | None = None
    ) -> list[DeadLetter]:
        return self._wait(self._ready().client.dead_letters(limit, model=model, tenant=tenant, reason=reason))

    def requeue_all(
        self, *, model: str | None = None, tenant: str | None = None, reason: str | None = None
    ) -> tuple[dict[str, str], dict[str, OctavoError]]:
        return self._wait(self._ready().client.requeue_all(model=model, tenant=tenant, reason=reason))

    def purge(self, *, model: str | None = None, tenant: str | None = None, reason: str | None = None) -> int:
        return self._wait(self._ready().client.purge(model=model, tenant=tenant, reason=reason))

    def pause(self, model: str, priority: Priority | None = None) -> int:
        return self._wait(self._ready().client.pause(model, priority))

    def resume(self, model: str, priority: Priority | None = None) -> int:
        return self._wait(self._ready().client.resume(model, priority))

    def paused_lanes(self) -> list[PausedLane]:
        return self._wait(self._ready().client.paused_lanes())

    def requeue(self, job_id: str) -> Job:
        return Job(self, self._wait(self._ready().client.requeue(job_id)))

    def models(self) -> list[ModelCard]:
        return self._wait(self._ready().client.models())

    def workers(self) -> list[WorkerInfo]:
        return self._wait(self._ready().client.workers())

    def worker_memory(self, worker_id: str) -> WorkerMemory:
        return self._wait(self._ready().client.worker_memory(worker_id))

    def pin_prefix(
        self,
        name: str,
        *,
        model: str,
        system: str | None = None,
        prompt: Prompt | None = None,
        tenant: str | None = None,
    ) -> PrefixPin:
        pin_prefix = self._ready().client.pin_prefix
        return self._wait(pin_prefix(name, model=model, system=system, prompt=prompt, tenant=tenant))

    def unpin_prefix(self, name: str, *, model: str, tenant: str | None = None) -> bool:
        return self._wait(self._ready().client.unpin_prefix(name, model=model, tenant=tenant))

    def pins(self, model: str | None = None) -> list[PinnedPrefix]:
        return self._wait(self._ready().client.pins(model))

    def tokenize(self, request: JobRequest) -> TokenizerAnswer:
        return self._wait(self._ready().client.tokenize(request))

    def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        return self._wait(self._ready().client.detokenize(model, token_ids))

    def queue_depths(self) -> dict[str, int]:
        return self._wait(self._ready().client.queue_depths())

    def _ready(self) -> _Engine:
        with self._lock:
            engine = self._engine
            if engine is not None and engine.pid == os.getpid():
                return engine
            if engine is not None:
                self._inherited.append(engine)  # never to be touched: its sockets and its epoll are the parent's
            self._engine = _Engine(self._options)
            self._left = weakref.finalize(self, self._engine.leave)
            self._left.atexit = False
            return self._engine

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._ready().wait(work)

    def _iterate(self, events: AsyncGenerator[Event, None]) -> Iterator[Event]:
        engine = self._ready()
        try:
            while (event := engine.wait(anext(events, None))) is not None:
                yield event
        finally:
            engine.leave_stream(events)


@_documented_by(AsyncJob)
class Job:
    """A handle on one job. `created` is False if the idempotency key named a job that existed."""

    def __init__(self, client: Client, job: AsyncJob) -> None:
        self.id = job.id
        self.created = job.created
        self._client = client

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def events(self, after: int | str = 0) -> Iterator[Event]:
        return self._client.events(self.id, after)

    def stream(self, after: int | str = 0) -> Iterator[Event]:
        return self._client._iterate(self._async().stream(after))

    def result(self, timeout: float | None = None) -> Result:
        return self._client._wait(self._async().result(timeout))

    def info(self) -> JobInfo:
        return self._client.info(self.id)

    def read_token(self, seconds: int = DEFAULT_S) -> str:
        return self._client.read_token(self.id, seconds)

    def cancel(self) -> JobStatus:
        return self._client.cancel(self.id)

    def _async(self) -> AsyncJob:
        return self._client._ready().client.job(self.id)


class _Engine:
    """An event loop in a thread, and the client that lives on it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="octavo-client", daemon=True)
        self._thread.start()
        self.client = self.wait(_make(options))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C in the waiting thread: the work is not wanted any more
            future.cancel()
            raise

    def leave_stream(self, events: AsyncGenerator[Event, None]) -> None:
        """Close a stream that was dropped."""
        self._start(events.aclose)

    def leave(self) -> None:
        """Close all, of a client that was dropped."""
        self._start(self._end)

    def close(self) -> None:
        self.wait(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Without waiting. The caller may be a forked child, an interpreter that ends, or the garbage collector in the
        loop's own thread."""
        if self.pid == os.getpid() and not self._loop.is_closed():
            with suppress(RuntimeError):  # it was closed meanwhile
                self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(work(), loop=self._loop))

    async def _end(self) -> None:
        try:
            await self.client.close()
        finally:
            self._loop.stop()


async def _make(options: dict[str, Any]) -> AsyncClient:
    return AsyncClient(**options)
