"""The running batch and the waiting queue: admission, preemption, forks and ends."""

from __future__ import annotations

import time
from enum import Enum

from octavo_worker.contract.messages import RequestResumed
from octavo_worker.engine.kv.allocation import Allocation
from octavo_worker.engine.kv.kv_cache_manager import KVCacheManager
from octavo_worker.engine.scheduling.policy import SchedulingPolicy
from octavo_worker.engine.scheduling.running import RunningBatch
from octavo_worker.engine.scheduling.waiting import WaitingQueue
from octavo_worker.engine.sequence import Request, Sequence, State
from octavo_worker.engine.step_in_flight import StepInFlight


class Admission(Enum):
    """Outcome of a request's admission. `NEVER`: its beams exceed the memory of this worker."""

    ADMITTED = 1
    LATER = 2
    NEVER = 3


class BatchManager:
    """Admits what waits, preempts what runs: whole groups, within slots and memory. The policy decides between
    requests. `resumed` collects those that came back from a preemption."""

    def __init__(self, kv: KVCacheManager, policy: SchedulingPolicy, *, max_running: int, watermark: int) -> None:
        self.kv = kv
        self._policy = policy
        self.running = RunningBatch()
        self.waiting = WaitingQueue()
        self.resumed: list[RequestResumed] = []
        self._max_running = max_running
        self._watermark = watermark

    def census(self) -> tuple[int, int, int]:
        """Changes with every admission, end and preemption."""
        return len(self.running), len(self.waiting), self.kv.decisions.total()

    def next(self) -> Sequence | None:
        """The sequence to admit next: the head of the queue. Only one oversized request runs at a time; others pass
        those that wait for its end."""
        head = self.waiting.head()
        if head is None or not head.request.oversized or not self.running.has_oversized():
            return head
        return self.waiting.first(lambda sequence: not sequence.request.oversized)

    def preempt_for_head(self, step: StepInFlight) -> None:
        """Preempt the policy's victims until the head of the queue fits."""
        head, pool = self.next(), self.kv.pool
        if head is None:
            return
        gang = head.request.members(State.WAITING) if len(self.running) else []
        while len(self.running) and (victim := self._policy.victim(self.running, head.request)) is not None:
            if self._fit(gang, pool.available + pool.quarantined) is not None:
                return
            self.preempt(victim.members(State.RUNNING), step)

    def admit(self, request: Request, step: StepInFlight) -> Admission:
        """Let the waiting sequences of a request run, all or none."""
        gang = request.members(State.WAITING)
        if not self.kv.step.evicted.isdisjoint(gang):
            return Admission.LATER
        if request.oversized:  # one that computes has the device's share for itself
            gang = [sequence for sequence in gang if sequence.is_swapped] or gang[:1]
        alone = len(self.running) == 0
        fitting = gang if self._enter(gang, step) else []
        while alone and not fitting and len(gang) > 1 and request.beam is None:
            gang = gang[:-1]  # samples need not run together, if this is what it takes to run at all
            fitting = gang if self._enter(gang, step) else []
        if alone and not fitting and self._release_pins():
            return Admission.ADMITTED
        if alone and not fitting and request.beam is not None and not self.kv.pool.quarantined:
            return Admission.NEVER
        for sequence in fitting:
            self.waiting.remove(sequence)
            self.running.admit(sequence)
            self._count_admission(sequence)
        return Admission.ADMITTED if fitting else Admission.LATER

    def _enter(self, gang: list[Sequence], step: StepInFlight) -> bool:
        """Give waiting sequences the blocks of all their tokens, shared where possible, or nothing if that is too
        much."""
        allocation = self._fit(gang, self.kv.pool.available)
        if allocation is None:
            return False
        self.kv.enter(allocation, step)
        if any(sequence.peak for sequence in gang):
            back = RequestResumed(gang[0].request.id, allocation.recomputed, allocation.restored)
            self.resumed.append(back)
        return True

    def _fit(self, gang: list[Sequence], available: int) -> Allocation | None:
        """Where waiting sequences would find their blocks among `available` ones; None without enough slots or blocks.

        Besides the watermark, each parallel sample but one gets a last block of its own right away. A preempted request
        returns only when there is a block to grow into for every sequence that will run.
        """
        width = self.running.width + sum(sequence.width for sequence in gang)
        if width > self._max_running:
            return None
        spare = available
        if len(self.running):
            spare -= self._watermark + sum(sequence.width - 1 for sequence in gang)
            spare -= width if any(sequence.peak for sequence in gang) else 0
        if spare <= 0:
            return None
        allocation = self.kv.place(gang, private=gang[0] if _wants_scores(gang[0].request) else None)
        fits = allocation.needed <= spare and self._can_grow(gang, spare - allocation.needed)
        return allocation if fits else None

    def _can_grow(self, gang: list[Sequence], spare: int) -> bool:
        """True if waiting sequences may join those that run, with `spare` blocks for all of them to grow into, and what
        preempted ones could take on the host."""
        capacity = self.kv.capacity
        if not len(self.running) or capacity.slides:
            return True
        return self._policy.may_admit(gang, self.running, (spare + self.kv.swap_space) * capacity.block_size)

    def _count_admission(self, sequence: Sequence) -> None:
        request, hit, counters = sequence.request, sequence.computed, self.kv.cache.counters
        if sequence.peak == 0 and not sequence.decodes:
            counters.queried += sequence.length
            counters.hit += hit
        if request.cached_tokens is None:
            request.cached_tokens = min(hit, len(request.prompt))
            request.queued_s = time.monotonic() - request.queued_since
        if _wants_scores(request):
            request.prompt_scorer = sequence
            request.prompt_logprobs = [None]

    def preempt_last(self, step: StepInFlight) -> Request | None:
        """Preempt the policy's victim, so that others can grow. Returns a beam search that has all of the memory, and
        for which it is not enough."""
        request = self._policy.victim(self.running)
        assert request is not None
        gang = request.members(State.RUNNING)
        if len(gang) == len(self.running) and self._release_pins():
            return None
        if len(gang) == len(self.running) > 1:
            if request.beam is not None:
                return request
            gang = gang[-1:]
        self.preempt(gang, step)
        return None

    def _release_pins(self) -> bool:
        """Leave pinned prefixes to the cache, for the only request that runs. Whether that frees anything."""
        if not self.kv.pins.blocks:
            return False
        self.kv.pins.release()
        return True

    def preempt(self, gang: list[Sequence], step: StepInFlight | None = None) -> None:
        """Take the memory of running sequences of one request and put them back to the front of their class."""
        if not gang:
            return
        for sequence in reversed(gang):
            self.running.remove(sequence)
        self.kv.evict(gang, step)
        if gang[0].request.beam is not None:
            gang[0].request.beam.withdraw()
        for sequence in reversed(gang):
            sequence.state = State.WAITING
            self.waiting.push(sequence)

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """Let a computed prompt decode. Its first index keeps the sequence, every other gets a fork, which is
        returned."""
        children = [self.kv.fork(sequence, index) for index in self.running.narrow(sequence)]
        self.running.leave_prompt(sequence)
        for child in children:
            self.running.join(child)
        return children

    def drop(self, sequence: Sequence) -> None:
        """A sequence that does not wait is over: free all that it holds."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        self.kv.free(sequence)
        if sequence.guesses is not None:
            sequence.guesses.close()
        sequence.state = State.FINISHED

    def promote(self, request: Request) -> bool:
        """Raise a request by a class if nothing of it runs. Whether it can rise further later."""
        waiting, risen = request.members(State.WAITING), self._policy.promote(request)
        if risen is not None and len(waiting) == len(set(request.sequences.values())):
            for sequence in waiting:
                self.waiting.remove(sequence)
            request.priority = risen
            request.order = self._policy.order(request)
            for sequence in waiting:
                sequence.reorder()
                self.waiting.push(sequence)
        return self._policy.promote(request) is not None


def _wants_scores(request: Request) -> bool:
    """True if its prompt's log-probabilities are asked for, and no sequence computes them yet."""
    return request.sampling.prompt_logprobs is not None and request.prompt_scorer is None and not request.started
