"""Whatever comes, of whichever class and tenant, and whatever is taken over: no higher job waits while a lower one runs
that could give way, nothing starves, and every job ends once with the right tokens."""

from __future__ import annotations

from collections import Counter

import redis
from class_fleet import BLOCK, Member
from engine_driver import expected_beams, make_request
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from queue_client import VOCABULARY, Queue, expected, known_queue
from tiers import many_examples

from octavo.terms.messages import JobStatus
from octavo_worker.contract.messages import BeamOptions
from octavo_worker.engine.sequence import State

CLASSES = ("high", "normal", "batch")
PATIENCE = 8  # steps that a job may wait for others, of its class or above, to take their places


class Fleet(RuleBasedStateMachine):
    """Jobs and the workers that run them. A step takes a second of the engines' clock."""

    connection: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.connection.flushall()
        self.queue: Queue = known_queue(self.connection)
        self.members: list[Member] = []
        self.asked: dict[str, tuple[list[int], int, int, bool]] = {}  # prompt, tokens, n, beams, by job
        self.class_of: dict[str, str] = {}
        self.tenant_of: dict[str, str] = {}
        self.passed_by: Counter[tuple[str, str]] = Counter()  # steps, by worker and what waits for it
        self.now = 0.0

    @initialize(sizes=st.lists(st.tuples(st.integers(2, 8), st.integers(80, 160)), min_size=1, max_size=2))
    def begin(self, sizes: list[tuple[int, int]]) -> None:
        for number, (rows, blocks) in enumerate(sizes):
            self.members.append(Member(f"w{number}", self.queue, rows, blocks, lambda: self.now))

    @rule(
        priority=st.sampled_from(CLASSES),
        tenant=st.sampled_from("ab"),
        count=st.sampled_from([1, 2, 6]),
        length=st.integers(1, 24),
        tokens=st.sampled_from([1, 5, 20, 60]),
        n=st.sampled_from([1, 1, 1, 2]),
        beams=st.sampled_from([False, False, False, True]),
    )
    def submit(self, priority: str, tenant: str, count: int, length: int, tokens: int, n: int, beams: bool) -> None:
        for _ in range(count):
            number = len(self.asked)
            prompt = [number % 40 * 20 + place for place in range(length)]
            sampling = {"max_tokens": tokens, "n": n, **({"beam_width": 2} if beams else {})}
            job = self.queue.submit(prompt, seed=number, tenant=tenant, priority=priority, sampling=sampling)
            self.asked[job] = prompt, tokens, n, beams
            self.class_of[job], self.tenant_of[job] = priority, tenant

    @rule(count=st.sampled_from([1, 3, 20]))
    def work(self, count: int) -> None:
        for _ in range(count):
            self.now += 1.0
            for member in self.members:
                member.claim()
                member.step()
                self._check_engine(member)
                self._check_queue(member)

    @rule(which=st.integers(0, 1))
    def take_over(self, which: int) -> None:
        self.members[which % len(self.members)].release()
        self.passed_by.clear()

    def teardown(self) -> None:
        for _ in range(3000):
            if all(self.queue.status(job).is_terminal for job in self.asked):
                break
            self.work(1)
        for job, (prompt, tokens, n, beams) in self.asked.items():
            result = self.queue.wait(job)
            assert result.status is JobStatus.COMPLETED
            assert [list(s.token_ids) for s in result.sequences] == self._tokens(job, prompt, tokens, n, beams)

    def _tokens(self, job: str, prompt: list[int], tokens: int, n: int, beams: bool) -> list[list[int]]:
        seed = list(self.asked).index(job)
        if not beams:
            return [expected(prompt, tokens, seed=seed, index=index) for index in range(n)]
        request = make_request("beams", prompt, n=n, max_tokens=tokens, seed=seed, beam=BeamOptions(2), temperature=0.0)
        return expected_beams(request, vocab_size=VOCABULARY, max_model_len=512)

    def _check_engine(self, member: Member) -> None:
        waiting = [r for r in member.requests(State.WAITING) if not r.has_risen]
        head = waiting[0] if waiting else None
        self._note(member, "head", head is not None and head.priority < member.lowest(), head and head.id)

    def _check_queue(self, member: Member) -> None:
        lowest = member.lowest()
        for place, priority in enumerate(CLASSES):
            queued = self._queued(priority) if place < lowest else []
            fits = bool(queued) and all(member.could_hold(place, self._blocks(job)) for job in queued)
            self._note(member, priority, fits, priority)
            for tenant in "ab":
                queued = [job for job in self._queued(priority) if self.tenant_of[job] == tenant]
                fits = bool(queued) and all(
                    self.asked[job][2:] == (1, False) and member.could_seat(place, tenant, self._blocks(job))
                    for job in queued
                )
                self._note(member, f"{priority} {tenant}", fits, f"tenant {tenant} in {priority}")

    def _blocks(self, job: str) -> int:
        prompt, tokens, *_ = self.asked[job]
        return (len(prompt) + 16 + tokens) // BLOCK + 2

    def _queued(self, priority: str) -> list[str]:
        rows = dict(zip(self.asked, self.queue.fields(list(self.asked), "st"), strict=True))
        return [job for job, row in rows.items() if row == ["queued"] and self.class_of[job] == priority]

    def _note(self, member: Member, kind: str, passed_by: bool, what: object) -> None:
        key = member.name, kind
        self.passed_by[key] = self.passed_by[key] + 1 if passed_by else 0
        assert self.passed_by[key] <= PATIENCE, f"{what} waits at {member.name} while a lower one runs"


def test_the_machine(redis_sync: redis.Redis) -> None:
    class Machine(Fleet):
        connection = redis_sync

    # to shrink takes minutes
    options = settings(max_examples=many_examples(6, quick=3), stateful_step_count=25, phases=[Phase.generate])
    run_state_machine_as_test(Machine, settings=options)


def test_nothing_starves_beside_jobs_of_the_highest_class_without_end(redis_sync: redis.Redis) -> None:
    queue, now = known_queue(redis_sync), 0.0
    member = Member("w", queue, 3, 100, lambda: now)
    waiting = [
        queue.submit([number, 7], priority=priority, tenant=tenant, sampling={"max_tokens": 12, "n": n})
        for number, (priority, tenant, n) in enumerate(
            [("batch", "a", 1), ("batch", "b", 2), ("normal", "a", 1), ("normal", "b", 3), ("batch", "a", 1)]
        )
    ]
    for _ in range(4):
        member.claim()
        member.step()
    while not all(queue.status(job).is_terminal for job in waiting):
        while int(queue.connection.hget(queue.cell.keys.counters, "queued:demo") or 0) < 8:
            queue.submit([900], priority="high", tenant="c", sampling={"max_tokens": 6})
        member.claim()
        member.step()
        now += 1.0
        assert now < 2000, "a job starves"
