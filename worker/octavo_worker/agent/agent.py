"""The jobs of one worker: from their claim, through the engine, into their streams."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from octavo.queue.calls import Call, run
from octavo.queue.connection import is_final
from octavo.queue.keys import submitted_at
from octavo.queue.protocol import Cell, Claims, HeartbeatReply, Parting, Unreadable
from octavo.queue.streams import read_stream
from octavo.terms.errors import MalformedMessage
from octavo.terms.messages import JobError, JobStatus
from octavo.terms.models import Event
from octavo.terms.sampling import SamplingDefaults
from octavo_worker.agent.child import EngineProcess
from octavo_worker.agent.claims.memory import Memory
from octavo_worker.agent.claims.room import Room, room_for
from octavo_worker.agent.ends import Ends
from octavo_worker.agent.failures import PARTINGS, expired, public_code, unreadable
from octavo_worker.agent.heartbeat import Holding
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.progress import ProgressReports
from octavo_worker.agent.prompts.tokens import PromptRejected, Prompts, check_ids
from octavo_worker.agent.publisher import Publisher
from octavo_worker.agent.sampling import resolve_sampling
from octavo_worker.agent.telemetry.watch import Watches
from octavo_worker.contract.messages import (
    Abort,
    EngineStats,
    Ready,
    RequestFailed,
    StepOutput,
    TokenOutput,
)

log = logging.getLogger(__name__)


class _Named(Protocol):
    id: str


M = TypeVar("M", bound=_Named)
T = TypeVar("T")

_LONG_TEXT = 4000  # characters from which tokenising goes to a thread: below, the hop costs more than the work
_RETRY_S = 0.2
_PAUSE_S = 1.0  # of a job that this machine was too busy for: the same worker may claim it again
_READERS = 8  # streams read at once when many jobs are taken over: each costs a connection


class Agent:
    """Owns every job of this worker between claim and end. Only the event loop's thread may call it, `holding` apart.

    An engine is lent with `attach` and taken away with `detach`. `changed` is called whenever there may be more room.
    `defaults` are the model's, for jobs that say nothing of how their tokens are chosen.
    """

    def __init__(
        self, connection: redis.asyncio.Redis, cell: Cell, prompts: Prompts, *, changed: Callable[[], None]
    ) -> None:
        self.defaults = SamplingDefaults()
        self.watch = Watches()
        self.stats = EngineStats()
        self.progress = ProgressReports(connection, cell)
        self.ends = Ends(connection, cell)
        self.publisher = Publisher(connection, cell, stop=self._stop, gone=self._gone, ended=self.ends.keep)
        self._connection = connection
        self._cell = cell
        self._prompts = prompts
        self._changed = changed
        self._jobs: dict[str, ActiveJob] = {}
        self._computed: dict[str, ActiveJob] = {}  # by the ids of the engine's requests
        self._reading = asyncio.Semaphore(_READERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._engine: EngineProcess | None = None
        self.limits: Ready | None = None
        self._fenced = False
        self._heard_at = 0.0

    # Jobs

    def holding(self) -> Holding:
        """Every job with its claim token. Safe from any thread: the interpreter copies a dict's values in one step."""
        return tuple((job.claim.job_id, job.claim.token) for job in list(self._jobs.values()))

    def why_not_ready(self) -> str | None:
        """A reason for which no job is claimed at all. Safe from any thread."""
        if self._engine is None:
            return "the engine is not loaded"
        return "no heartbeat gets through to the server" if self._fenced else None

    def room(self) -> Room | None:
        """Room for claims now; None for none."""
        if self._engine is None or self.limits is None or self._fenced:
            return None
        if any(job.claim.solo for job in self._jobs.values()):
            return None
        return room_for(self._jobs.values(), self.limits, self.stats)

    def preempted(self) -> list[ActiveJob]:
        """Unfinished jobs for which the engine has no memory."""
        if self._fenced:
            return []
        return [job for job in self._jobs.values() if job.preempted_at is not None and not job.is_over]

    async def give_back(self, jobs: Sequence[ActiveJob]) -> None:
        """Let other workers go on with unfinished jobs."""
        for job in jobs:
            self._forget(job)
        await self._give_back(jobs)

    def take(self, claims: Claims) -> None:
        """Start what was claimed."""
        clock_offset = time.time() - claims.server_time
        claimed = {claim.job_id for claim in claims.jobs}
        for job in list(self._jobs.values()):
            if job.claim.job_id in claimed:  # a server that forgets hands out what is ours: only the new claim counts
                self._gone(job, "fenced")
        for claim in claims.jobs:
            again = f" again, attempt {claim.attempt}, from token {claim.offset}" if claim.attempt > 1 else ""
            log.info("job %s claimed%s", claim.job_id, again)
            job = ActiveJob(claim)
            self._jobs[job.request_id] = self._computed[job.request_id] = job
            self._empty.clear()
            self.watch.claimed(job)
            self._spawn(self._prepare(job, clock_offset))
        for broken in claims.unreadable:
            self._spawn(self._refuse_unreadable(broken))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._tasks.discard)

    async def ended(self) -> None:
        """Wait until no job is left."""
        await self._empty.wait()

    async def release(self, why: Parting = "back") -> None:
        """Give every unfinished job back to the queue. The engine's death is that of the jobs in it only."""
        back = [job for job in self._jobs.values() if not job.is_over]
        for job in back:
            self._forget(job)
        in_engine = [job for job in back if job.in_engine]
        elsewhere = [job for job in back if not job.in_engine]
        await asyncio.gather(self._give_back(in_engine, why), self._give_back(elsewhere))

    # The engine

    def attach(self, engine: EngineProcess, limits: Ready) -> None:
        """From now on `engine` does the work."""
        self._engine, self.limits = engine, limits
        whole = Memory(limits).all
        self.stats = EngineStats(free_blocks=whole.blocks, free_windows=whole.windows)
        self._changed()

    async def detach(self, *, crashed: bool) -> None:
        """The engine is gone: its jobs go on elsewhere at once. Jobs that only have to be stored stay. `crashed`: it
        died of what it computed."""
        self._engine = None
        self.stats = EngineStats()
        await self.release("crashed" if crashed else "killed")

    def on_step(self, output: StepOutput) -> None:
        """Take the engine's news, a step's worth at a time."""
        self._heard_at = time.monotonic()
        self.stats = output.stats
        for job, started in self._about(output.started):
            job.started(started)
            if job.is_over:
                self.publisher.add(job)
        for job, resumed in self._about(output.resumed):
            job.resumed(resumed)
        for request_id in output.preempted:
            if (gone := self._computed.get(request_id)) is not None:
                gone.preempted()
        for job, promoted in self._about(output.promoted):
            job.promoted(promoted)
        for job, verified in self._about(output.verified):
            job.verified(verified)
        for job, token in self._about(output.tokens):
            if job.accept(token):
                self._leave(job, token)
            self.publisher.add(job)
        for job, progress in self._about(output.progress):
            job.progressed(progress)
            self.progress.add(job, progress)
        for job, failure in self._about(output.failed):
            self._fail(job, failure)
        self._changed()

    def _about(self, messages: Iterable[M]) -> Iterator[tuple[ActiveJob, M]]:
        """The messages about jobs that are here, each with its job."""
        for message in messages:
            if (job := self._computed.get(message.id)) is not None:
                yield job, message

    def _leave(self, job: ActiveJob, last: TokenOutput) -> None:
        """A sequence ends here, or goes on behind tokens that the engine did not choose."""
        if self._engine is None:
            return
        self._engine.send(Abort(last.id, last.index))
        if job.sequences[last.index].finish_reason is None:
            request = job.detour(last.index)
            self._computed[request.id] = job
            self._engine.send(request)

    def silence(self) -> float:
        """Seconds since the engine last said something although it has work; 0 if it has none."""
        has_work = any(job.in_engine and not job.is_over for job in self._jobs.values())
        return time.monotonic() - self._heard_at if has_work else 0.0

    # Leases

    def on_heartbeat(self, held: Holding, reply: HeartbeatReply) -> None:
        """The leases of `held` are renewed, except for what `reply` says."""
        if self._fenced:
            self._fenced = False
            self.publisher.resume()
            self._changed()
        tokens = dict(held)
        lost, stop = set(reply.lost), dict(reply.stop)
        if not lost and not stop:
            return
        for job in list(self._jobs.values()):
            job_id = job.claim.job_id
            if tokens.get(job_id) != job.claim.token:
                continue
            if job_id in lost:
                if not job.is_over:  # its end may have been stored since: the reply to that says whose it is
                    self._gone(job, "fenced")
            elif job_id in stop:
                self._stop(job, stop[job_id])

    def on_silence(self) -> None:
        """No heartbeat got through: keep computing, but write and claim nothing until one does."""
        self._fenced = True
        self.publisher.hold()

    # Preparing a job

    async def _prepare(self, job: ActiveJob, clock_offset: float) -> None:
        try:
            await self._encode(job)
            if job.claim.offset:
                job.restore([event.chunk for event in await self._published(job) if event.chunk is not None])
        except PromptRejected as rejected:
            self._end(job, JobStatus.FAILED, rejected.error)
        except MalformedMessage as error:
            message = f"what was generated before cannot be continued by this version: {error.message}"
            self._end(job, JobStatus.FAILED, JobError(code="malformed_stream", message=message))
        except Exception as error:  # a fault of ours must end this job, not hold its lease for ever
            log.error("job %s cannot be prepared: %s", job.claim.job_id, type(error).__name__)  # the text may quote it
            self._end(job, JobStatus.FAILED, JobError("internal_error", "the worker could not read the job"))
        else:
            self._start(job, clock_offset)

    async def _encode(self, job: ActiveJob) -> None:
        request, limits = job.claim.request, self.limits
        assert limits is not None
        encode = partial(self._prompts.encode, request, at=submitted_at(job.claim.job_id))
        prompt = await asyncio.to_thread(encode) if sum(map(len, request.prompt_texts)) > _LONG_TEXT else encode()
        check_ids(prompt.ids, request=request, max_model_len=limits.max_model_len, vocab_size=limits.vocab_size)
        job.begin(
            prompt,
            tokenizer=self._prompts.tokenizer,
            token_bytes=self._prompts.token_bytes,
            longest=limits.max_model_len - len(prompt.ids),
        )

    async def _published(self, job: ActiveJob) -> list[Event]:
        while True:
            try:
                async with self._reading:
                    return await read_stream(self._connection, job.claim.job_id)
            except (RedisError, OSError) as error:
                if is_final(error):
                    raise MalformedMessage(f"its stream cannot be read: {error}") from error
                await asyncio.sleep(_RETRY_S)

    def _start(self, job: ActiveJob, clock_offset: float) -> None:
        if job.request_id not in self._jobs:
            return  # lost or released meanwhile
        if not job.is_over:
            job.pay_all()
        if job.is_over:
            self.publisher.add(job)
            return
        engine, limits, claim = self._engine, self.limits, job.claim
        if engine is None or limits is None:  # it died between the claim and now
            self._forget(job)
            self._spawn(self._give_back([job]))
            return
        sampling = resolve_sampling(
            claim.request.sampling,
            seed=claim.seed,
            eos_token_ids=self._prompts.end_ids,
            max_model_len=limits.max_model_len,
            defaults=self.defaults,
        )
        deadline = None if claim.deadline is None else claim.deadline + clock_offset
        if self.silence() == 0.0:
            self._heard_at = time.monotonic()
        job.in_engine = True
        engine.send(job.engine_request(sampling, deadline=deadline))

    async def _refuse_unreadable(self, broken: Unreadable) -> None:
        call = self._cell.finish(broken.job_id, broken.token, unreadable(broken), b"")
        await self._persist(call)

    # Ending a job

    def _fail(self, job: ActiveJob, failure: RequestFailed) -> None:
        job.in_engine = False
        if failure.code == "busy":
            log.warning("job %s goes back to the queue: %s", job.claim.job_id, failure.message)
            self._forget(job)
            self._spawn(self._give_back([job], after_s=_PAUSE_S))
        elif failure.code == "deadline":
            self._end(job, JobStatus.EXPIRED, expired())
        else:
            is_of_tools = failure.param == "grammar" and job.claim.request.grammar is None
            param = "tools" if is_of_tools else failure.param
            self._end(job, JobStatus.FAILED, JobError(public_code(failure.code), failure.message, param))

    def _stop(self, job: ActiveJob, reason: str) -> None:
        self._abort(job)
        if reason == JobStatus.EXPIRED:
            self._end(job, JobStatus.EXPIRED, expired())
        else:
            self._end(job, JobStatus.CANCELLED)

    def _end(self, job: ActiveJob, status: JobStatus, error: JobError | None = None) -> None:
        if job.request_id in self._jobs and not job.is_over:
            job.end(status, error)
            self.publisher.add(job)
            self._changed()

    def _gone(self, job: ActiveJob, state: str) -> None:
        if job.request_id not in self._jobs:
            return
        if state == "fenced":
            log.warning("job %s belongs to another worker by now, or was ended: dropped", job.claim.job_id)
            self._abort(job)
        elif state == "refused":
            self._spawn(self._give_back([job], "refused"))
        else:
            terminal = job.terminal()
            self.watch.ended(job, terminal)
            log.info("job %s %s, %d tokens", job.claim.job_id, terminal.status.value, terminal.usage.completion_tokens)
        self._forget(job)

    def _forget(self, job: ActiveJob) -> None:
        self._jobs.pop(job.request_id, None)
        for request_id in job.engine_ids:
            self._computed.pop(request_id, None)
        self.publisher.discard(job)
        self.progress.discard(job)
        if not self._jobs:
            self._empty.set()
        self._changed()

    def _abort(self, job: ActiveJob) -> None:
        if job.in_engine and self._engine is not None:
            for request_id in job.engine_ids:
                self._engine.send(Abort(request_id))

    async def _give_back(self, jobs: Sequence[ActiveJob], why: Parting = "back", *, after_s: float = 0.0) -> None:
        if not jobs:
            return
        if after_s:
            await asyncio.sleep(after_s)
        for job in jobs:
            self._abort(job)
        pairs = [(job.claim.job_id, job.claim.token) for job in jobs]
        if await self._persist(self._cell.release(pairs, why=why)) == len(jobs):
            self.watch.left(jobs, why)
        log.info("%d jobs given back%s", len(jobs), PARTINGS[why])

    async def _persist(self, call: Call[T]) -> T | None:
        """Until it is through; if that takes longer than a lease, the reaper has done the same: None."""
        for _ in range(round(5 / _RETRY_S)):
            try:
                return await run(self._connection, call)
            except (RedisError, OSError):
                await asyncio.sleep(_RETRY_S)
        return None
