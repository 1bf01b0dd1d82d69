"""Workers without processes: the real scripts, the agent's room and jobs, and the scheduler on the fake model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine_driver import Driver
from queue_client import MODEL, VOCABULARY, Queue
from sync_streams import read_stream_sync

from octavo.queue import wire
from octavo.queue.calls import run_sync
from octavo.queue.protocol import Claim
from octavo_worker.agent.claims.room import Room, room_for
from octavo_worker.agent.jobs import ActiveJob
from octavo_worker.agent.prompts.answer_form import EncodedPrompt
from octavo_worker.agent.sampling import resolve_sampling
from octavo_worker.contract.messages import Ready, StepOutput
from octavo_worker.engine.sequence import Request, State

BLOCK = 4


@dataclass
class Member:
    """One worker of the fleet: what its agent knows, and its engine."""

    name: str
    queue: Queue
    rows: int
    blocks: int
    now: Any  # seconds, of the engine's clock
    memory: dict[str, int] = field(default_factory=dict)  # of layers with a window
    jobs: dict[str, ActiveJob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.driver = Driver.create(
            self.blocks + 1,
            BLOCK,
            max_running=self.rows,
            token_budget=64,
            runner={"num_host_blocks": 200, "vocab_size": VOCABULARY, "max_model_len": 512, **self.memory},
            clock=self.now,
            aging_s=30.0,
        )
        scheduler = self.driver.scheduler
        self.stats = scheduler.stats()
        self.limits = Ready(
            max_model_len=512,
            vocab_size=VOCABULARY,
            num_blocks=self.blocks + 1,
            block_size=BLOCK,
            kv_dtype="float32",
            max_running=self.rows,
            enough_blocks=scheduler.kv.enough_blocks,
            load_seconds=0.0,
            gives_way=scheduler.gives_way,
            windows=scheduler.kv.window_limits,
        )

    # Agent

    def room(self) -> Room | None:
        return room_for(self.jobs.values(), self.limits, self.stats)

    def claim(self) -> list[Claim]:
        """Take on what there is room for."""
        if (room := self.room()) is None:
            return []
        high = room.classes[0]
        call = self.queue.cell.claim(
            MODEL, self.name, max_jobs=high.jobs, max_tokens=high.tokens, lease_ms=60_000, idle=room.idle,
            digest="d", rooms=room.classes,
        )  # fmt: skip
        claims = run_sync(self.queue.connection, call).jobs
        for claim in claims:
            self._begin(claim)
        return list(claims)

    def _begin(self, claim: Claim) -> None:
        job = ActiveJob(claim)
        prompt = list(claim.request.prompt or ())
        job.begin(EncodedPrompt(prompt), tokenizer=None, token_bytes=lambda token: b"", longest=512 - len(prompt))
        if claim.offset:
            events = read_stream_sync(self.queue.connection, claim.job_id)
            job.restore([event.chunk for event in events if event.chunk is not None])
        self.jobs[job.request_id] = job
        if not job.is_over:
            sampling = resolve_sampling(claim.request.sampling, seed=claim.seed, eos_token_ids=(), max_model_len=512)
            self.driver.add(job.engine_request(sampling, deadline=None))
        self._publish(job)

    def release(self) -> None:
        """All goes back, and another engine begins."""
        held = [(job.claim.job_id, job.claim.token) for job in self.jobs.values()]
        run_sync(self.queue.connection, self.queue.cell.release(held, why="back"))
        self.jobs.clear()
        self.__post_init__()

    # Engine

    def step(self) -> None:
        self._hear(self.driver.step())
        for job in list(self.jobs.values()):
            self._publish(job)

    def _hear(self, output: StepOutput) -> None:
        self.stats = output.stats
        assert not output.failed
        for message in output.started:
            self.jobs[message.id].started(message)
        for back in output.resumed:
            self.jobs[back.id].resumed(back)
        for request_id in output.preempted:
            self.jobs[request_id].preempted()
        for risen in output.promoted:
            self.jobs[risen.id].promoted(risen)
        for token in output.tokens:
            self.jobs[token.id].accept(token)
        for progress in output.progress:
            self.jobs[progress.id].progressed(progress)

    def _publish(self, job: ActiveJob) -> None:
        cell, connection = self.queue.cell, self.queue.connection
        if items := job.unsent():
            for reply in run_sync(connection, cell.append(items)):
                assert reply.state == "ok"
                job.stored = reply.offset
        if job.is_over:
            terminal = job.terminal()
            result = wire.encode_result(terminal, job.result_chunks())
            assert run_sync(connection, cell.finish(job.claim.job_id, job.claim.token, terminal, result))
            del self.jobs[job.request_id]

    # What is to be seen

    def requests(self, state: State) -> list[Request]:
        batch = self.driver.scheduler._batch
        found = batch.running if state is State.RUNNING else batch.waiting
        return list(dict.fromkeys(sequence.request for sequence in found))

    def lowest(self) -> int:
        """The lowest class of what runs and could give way; above all classes if there is none."""
        return max((r.priority for r in self.requests(State.RUNNING) if not r.has_risen), default=-1)

    def could_hold(self, priority: int, blocks: int) -> bool:
        """True if a job of a class and so many blocks would fit if all below it gave way."""
        staying = [r for r in self.requests(State.RUNNING) if r.priority <= priority]
        held = {block for r in staying for s in r.members(State.RUNNING) for block in s.table.held}
        waiting = [r for r in self.requests(State.WAITING) if r.priority <= priority]
        rows = sum(r.rows for r in (*staying, *waiting))
        return rows < self.rows and not waiting and self.blocks - len(held) >= 2 * blocks + 6 * (rows + 1)

    def could_seat(self, priority: int, tenant: str, blocks: int) -> bool:
        """True if a job of so many blocks would fit if the tenant that runs most of the class gave way, and be due."""
        running, rows = self.requests(State.RUNNING), self.driver.scheduler._batch.running.tenants[priority]
        richest = max(rows, key=rows.__getitem__, default=b"")
        if rows[richest] < rows[tenant.encode()] + 4:
            return False
        staying = [r for r in running if r.priority <= priority and (r.priority < priority or r.salt != richest)]
        held = {block for r in staying for s in r.members(State.RUNNING) for block in s.table.held}
        waits = any(r.priority <= priority for r in self.requests(State.WAITING))
        return not waits and self.blocks - len(held) >= 2 * blocks + 6 * (len(staying) + 4)
