"""The running batch and the waiting queue: admission, preemption, forks and ends."""

from __future__ import annotations

import time
from enum import Enum
from itertools import islice

from octavo_worker.contract.messages import RequestResumed
from octavo_worker.engine.kv.allocation import Allocation
from octavo_worker.engine.kv.kv_cache_manager import KVCacheManager
from octavo_worker.engine.kv.room import Room
from octavo_worker.engine.scheduling.policy import SchedulingPolicy
from octavo_worker.engine.scheduling.running import RunningBatch
from octavo_worker.engine.scheduling.waiting import WaitingQueue
from octavo_worker.engine.sequence import Request, Sequence, State
from octavo_worker.engine.step_in_flight import StepInFlight


class Admission(Enum):
    """Outcome of a request's admission. `NEVER`: its beams exceed the memory of this worker. `EXPECTS`: another request
    computes a state that it can begin with."""

    ADMITTED = 1
    LATER = 2
    NEVER = 3
    EXPECTS = 4


FORESEEN = 8
"""Sequences that wait for which prompts keep states on their way."""


class BatchManager:
    """Admits what waits, preempts what runs: whole groups, within slots and memory. The policy decides between
    requests. `resumed` collects those that came back from a preemption, `preempted` those that left by one."""

    def __init__(self, kv: KVCacheManager, policy: SchedulingPolicy, *, max_running: int, watermark: Room) -> None:
        """Admission leaves `watermark` of the memory to what runs."""
        self.kv = kv
        self._policy = policy
        self.running = RunningBatch()
        self.waiting = WaitingQueue()
        self.resumed: list[RequestResumed] = []
        self.preempted: list[Request] = []
        self.expecting: set[Request] = set()  # of the plan in the making, see `Admission.EXPECTS`
        self._max_running = max_running
        self._watermark = watermark

    def census(self) -> tuple[int, int, int]:
        """Changes with every admission, end and preemption."""
        return len(self.running), len(self.waiting), self.kv.decisions.total()

    def next(self) -> Sequence | None:
        """The sequence to admit next: the head of the queue. Only one oversized request runs at a time; others pass
        those that wait for its end, and those that expect a state."""
        head = self.waiting.head()
        if head is None or not (head.request.oversized or self.expecting):
            return head
        full = self.running.has_oversized()
        return self.waiting.first(
            lambda sequence: not (full and sequence.request.oversized) and sequence.request not in self.expecting
        )

    def make_way(self, step: StepInFlight, budget: int) -> None:
        """Preempt what gives way to requests that wait, until they fit: for as many of them, in their order, as have
        `budget` tokens to compute."""
        head = self.waiting.head()
        if head is None or not len(self.running):
            return
        if self._policy.victim(self.running, head.request) is None and not head.request.has_risen:
            self._seat_guest(step)
            return
        before = Room()  # of those that are to enter before; each takes a slot of its width
        oversized = False
        for request in dict.fromkeys(sequence.request for sequence in tuple(self.waiting)):
            if request.oversized and (oversized or not self._may_be_oversized(request, step)):
                continue
            oversized, gang = oversized or request.oversized, self._entering(request)
            needed = self._preempt_for(request, gang, step, before)
            if needed is None and not request.has_risen:
                return
            # One that has risen preempts nothing. As it goes before others, what these preempt must do for it, too.
            before = before.plus(self._most(gang) if needed is None else needed)
            before = before.plus(Room(slots=sum(sequence.width for sequence in gang)))
            budget -= sum(sequence.length - sequence.computed for sequence in gang)
            if budget <= 0 or not len(self.running):
                return

    def _entering(self, request: Request) -> list[Sequence]:
        """The waiting sequences of a request that enter together: all, but of an oversized one those that were swapped,
        or the first, because one that computes has the device's share for itself. Where there are states, samples that
        compute enter one by one: they cannot share what one of them computes in the same step."""
        gang = request.members(State.WAITING)
        if not request.oversized and (self.kv.states is None or request.beam is not None):
            return gang
        return [sequence for sequence in gang if sequence.is_swapped] or gang[:1]

    def _may_be_oversized(self, request: Request, step: StepInFlight) -> bool:
        """Only one oversized request runs at a time. One of a lower class gives way to it."""
        for other in dict.fromkeys(sequence.request for sequence in self.running):
            if other.oversized and self._policy.gives_way and other.priority > request.base_priority:
                self.preempt(other.members(State.RUNNING), step)
        return not self.running.has_oversized()

    def _most(self, gang: list[Sequence]) -> Room:
        """The most blocks that a gang takes when it enters."""
        most = [
            sum(min(group.bound, group.table_of(sequence).missing(sequence.length)) for sequence in gang)
            for group in self.kv.groups
        ]
        return Room(most[0], windows=sum(most[1:]))

    def _preempt_for(self, request: Request, gang: list[Sequence], step: StepInFlight, before: Room) -> Room | None:
        """Preempt victims until a gang fits beside those that enter `before` it. The blocks that it needs; None if it
        does not fit."""
        while True:
            spare = self.kv.room(soon=True).minus(before)
            if (allocation := self._fit(gang, spare, self.running.width + before.slots)) is not None:
                return allocation.needed
            victim = self._policy.victim(self.running, request) if len(self.running) else None
            if victim is None:
                return None
            self.preempt(victim.members(State.RUNNING), step)

    def _seat_guest(self, step: StepInFlight) -> None:
        """Where tenants share a class and its first request does not fit, let the policy's guest go first, and preempt
        what gives way to it if that is enough."""
        guest, head = self._policy.guest(self.running, self.waiting), self.waiting.head()
        available, giving = self.kv.room(soon=True), list[Sequence]()
        if guest is None or head is None or self._fit(self._entering(head.request), available, self.running.width):
            return
        if not guest.is_guest and not guest.members(State.RUNNING):
            guest.is_guest = True
            self._reorder(guest)
        yielding = self._policy.yielding(self.running, guest)
        if self._fit(self._entering(guest), available, self.running.width):
            return
        for place, request in enumerate(yielding, 1):
            giving += request.members(State.RUNNING)
            width = self.running.width - sum(sequence.width for sequence in giving)
            more = available.plus(self.kv.held_alone(giving))
            if self._fit(self._entering(guest), more, width):
                for given in yielding[:place]:
                    self.preempt(given.members(State.RUNNING), step)
                return

    def admit(self, request: Request, step: StepInFlight) -> Admission:
        """Let the waiting sequences of a request run, all or none."""
        gang = request.members(State.WAITING)
        if not self.kv.step.evicted.isdisjoint(gang):
            return Admission.LATER
        gang = self._entering(request)
        if _wants_scores(request) and gang[0].is_swapped:  # what computed them is gone: they begin at the first token
            self.kv.free(gang[0])
        found = self._found(gang)
        if found is not None and self._expects(gang[0], found, step):
            self.expecting.add(request)
            return Admission.EXPECTS
        alone = len(self.running) == 0
        fitting = gang if self._enter(gang, step, found) else []
        while alone and not fitting and len(gang) > 1 and request.beam is None:
            gang = gang[:-1]  # samples need not run together, if this is what it takes to run at all
            fitting = gang if self._enter(gang, step) else []
        if alone and not fitting and self.kv.states is not None:
            # To begin amid a block takes two of them: the one that is filled in part, and its copy.
            fitting = gang if self._enter(gang, step, shares=False) else []
        if alone and not fitting and self._release_pins():
            return Admission.ADMITTED
        if alone and not fitting and request.beam is not None and not self.kv.waits_for_steps:
            return Admission.NEVER
        for sequence in fitting:
            self.waiting.remove(sequence)
            self.running.admit(sequence)
            self._count_admission(sequence)
        return Admission.ADMITTED if fitting else Admission.LATER

    def _enter(
        self, gang: list[Sequence], step: StepInFlight, found: Allocation | None = None, *, shares: bool = True
    ) -> bool:
        """Give waiting sequences the blocks of all their tokens, shared where possible, or nothing if that is too
        much: those `found` for them, if they were looked up. Unless it `shares`, the first one begins at its first
        token."""
        allocation = self._fit(gang, self.kv.room(), self.running.width, found, shares=shares)
        if allocation is None:
            return False
        self.kv.enter(allocation, step)
        if any(sequence.peak for sequence in gang):
            back = RequestResumed(gang[0].request.id, allocation.recomputed, allocation.restored)
            self.resumed.append(back)
        return True

    def _fit(
        self, gang: list[Sequence], available: Room, width: int, found: Allocation | None = None, *, shares: bool = True
    ) -> Allocation | None:
        """Where waiting sequences would find their blocks among `available` ones, beside a batch of `width`; None
        without enough slots or blocks. What was `found` for them is not looked up again.

        Besides the watermark, each parallel sample but one gets a last block of its own right away. A preempted request
        returns only when there is a block to grow into for every sequence that will run. A sequence has a slot for its
        state, and a group a few more, as the slot that it shares is left for others.
        """
        width += sum(sequence.width for sequence in gang)
        if width > self._max_running:
            return None
        spare = available.minus(self._left_to_others(gang, width)) if len(self.running) else available
        if self.kv.shared is None and (spare.blocks <= 0 or (self.kv.windows is not None and spare.windows <= 0)):
            return None
        is_private = _wants_scores(gang[0].request) or not shares
        allocation = found or self.kv.place(gang, private=gang[0] if is_private else None)
        needed = allocation.needed
        if self.kv.shared is not None:
            spare = self.kv.shared.provide_for(allocation, spare)
        has_room = needed.blocks <= spare.blocks and needed.windows <= spare.windows
        fits = has_room and self._can_grow(gang, spare.blocks - needed.blocks)
        states = self.kv.states
        if states is not None and not states.fits(gang, allocation.needed_slots, available.slots, self.running):
            return None
        return allocation if fits else None

    def _left_to_others(self, gang: list[Sequence], width: int) -> Room:
        """Memory that waiting sequences leave to a batch of `width`, of which they are."""
        growing = sum(sequence.width - 1 for sequence in gang)
        growing += width if any(sequence.peak for sequence in gang) else 0
        return self._watermark.plus(Room(growing, 0, 0 if self.kv.windows is None else growing))

    def _found(self, gang: list[Sequence]) -> Allocation | None:
        """Where a sequence would begin that may wait for a state; None if it may not."""
        first, width = gang[0], self.running.width
        if self.kv.states is None or len(gang) > 1 or width + first.width > self._max_running:
            return None
        return None if first.is_swapped or _wants_scores(first.request) else self.kv.place(gang)

    def _expects(self, sequence: Sequence, found: Allocation, step: StepInFlight) -> bool:
        """True if a sequence had better wait for a state that others compute now."""
        states = self.kv.states
        return states is not None and states.expects(sequence, found.begins[0][1], self.running.prefilling, step)

    def _can_grow(self, gang: list[Sequence], spare: int) -> bool:
        """True if waiting sequences may join those that run, with `spare` blocks for all of them to grow into, and what
        preempted ones could take on the host."""
        capacity = self.kv.capacity
        if not len(self.running) or capacity.slides:
            return True
        more = self.kv.swap_space + (0 if self.kv.shared is None else self.kv.shared.obtainable)
        return self._policy.may_admit(gang, self.running, (spare + more) * capacity.block_size)

    def foresee(self, step: StepInFlight) -> None:
        """Let prompts of this step keep states for the first requests that wait: what these have in common with them
        may be computed long before they are looked at."""
        states = self.kv.states
        if states is not None and step.has_prompts:
            for sequence in islice(self.waiting, FORESEEN):
                self.kv.digest(sequence)
                states.foresee(sequence, self.running.prefilling, step)

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
        return self.kv.pinned.release()

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
        request = gang[0].request
        self.preempted.append(request)
        if request.is_guest and not request.members(State.RUNNING):
            request.is_guest = False
            self._reorder(request)

    def take_preempted(self) -> list[Request]:
        """The requests that were preempted since the last call and of which nothing runs now."""
        gone, self.preempted = dict.fromkeys(self.preempted), []
        return [request for request in gone if request.sequences and not request.members(State.RUNNING)]

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
        self.kv.retire(sequence)
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        self.kv.free(sequence)
        if sequence.guesses is not None:
            sequence.guesses.close()
        sequence.state = State.FINISHED

    def promote(self, request: Request, risen_rows: int) -> bool:
        """Raise a request of which nothing runs by a class, if the policy lets it rise beside `risen_rows` of its
        class. Whether it rose."""
        risen = self._policy.promote(request)
        if risen is None or not self._policy.may_rise(request, risen_rows, self._max_running):
            return False
        self._reorder(request, risen)
        return True

    def _reorder(self, request: Request, priority: int | None = None) -> None:
        """Give a request of which nothing runs the place that it has by now, in another class perhaps."""
        waiting = request.members(State.WAITING)
        for sequence in waiting:
            self.waiting.remove(sequence)
        request.priority = request.priority if priority is None else priority
        request.order = self._policy.order(request)
        for sequence in waiting:
            sequence.reorder()
            self.waiting.push(sequence)


def _wants_scores(request: Request) -> bool:
    """True if its prompt's log-probabilities are asked for, and no sequence has computed them or does."""
    wanted = request.sampling.prompt_logprobs is not None and request.prompt_scorer is None and not request.started
    return wanted and len(request.prompt_logprobs or ()) < len(request.prompt)
