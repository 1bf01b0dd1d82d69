"""Which sequences run in the next step, on which blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from octavo_worker.decoding.stop import StopRules
from octavo_worker.engine.admission import Limits, refusal
from octavo_worker.engine.beam_group import BeamGroup
from octavo_worker.engine.plan import Sampled, SequenceResult, SequenceStep, StepPlan, StepResult
from octavo_worker.engine.residency import Residency
from octavo_worker.engine.roster import GroupTooLarge, Roster
from octavo_worker.engine.sequence import Request, Sequence, State, by_order
from octavo_worker.engine.timers import Timers
from octavo_worker.memory.block_table import BlockTable
from octavo_worker.memory.cost import Decision, PreemptionPolicy
from octavo_worker.messages import (
    AddRequest,
    EngineSampling,
    EngineStats,
    PinPrefix,
    RequestFailed,
    RequestStarted,
    SequenceInput,
    StepOutput,
    TokenOutput,
)


class Scheduler:
    """Continuous batching with chunked prefill over paged memory.

    `plan` builds one step in this order:

    0. While requests of lower classes keep the head of the queue from a slot or from memory, the last of them gives
       way.
    1. Every decoding sequence gets its token. `token_budget` exceeds `max_running`, so prompts never delay a decode
       and decodes always leave room for prompts.
    2. What is left of the budget goes to prompts in the order of (class, deadline, arrival, index): those that run
       continue, those that wait are admitted when their turn comes. Nobody overtakes a sequence that finds no slot or
       no blocks. Admission takes the blocks of all present tokens (not of the output to come) and keeps `watermark` of
       the pool free for those that run.

    When a decode finds no block, the request that is last in order gives way with all its sequences: parallel samples
    and beams are preempted and restored as one gang. `policy` says whether their memory moves to the host or is given
    up and computed again, helped by what the prefix cache still holds. Only samples that are alone in the batch shrink,
    from the last index on; beams that are alone and do not fit fail. A group gets the blocks for its next tokens at
    once, so the order of planning guarantees that a victim has not been planned yet. Blocks that a swap frees can be
    used once the step is over, until then who needs them sits out. A step that preempts admits nobody, and who was
    preempted comes back only when there is a block for every running sequence left over: nobody is preempted again
    before a block's worth of tokens.

    Within a class the earliest deadline goes first. Who waits for `aging_s` seconds rises by a class.

    Blocks are published in the prefix cache when the step that fills them is planned, so equal prompts share within
    that step (see `StepPlan`). `commit` takes the step's result, `abandon` undoes a step that failed. All work is
    incremental: a step costs its sequences and new tokens, never the length of contexts or of the queue.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        vocab_size: int,
        token_budget: int = 2048,
        max_running: int = 256,
        watermark: float = 0.01,
        num_host_blocks: int = 0,
        policy: PreemptionPolicy | None = None,
        aging_s: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if token_budget <= max_running:
            raise ValueError(
                f"token_budget ({token_budget}) must exceed max_running ({max_running}), or prompts would starve"
            )
        self.residency = Residency(num_blocks, block_size, num_host_blocks, policy or PreemptionPolicy())
        self.pool, self.cache = self.residency.pool, self.residency.cache
        self.limits = Limits(max_model_len, vocab_size, max_running, self.pool.total * block_size)
        self._block_size = block_size
        self._token_budget = token_budget
        self._clock = clock
        self._requests: dict[str, Request] = {}
        self._arrivals = 0
        self._deadlines = Timers(self._requests)
        self._aging = Timers(self._requests)
        self._aging_s = aging_s
        self._roster = Roster(self.residency, max_running=max_running, watermark=math.ceil(watermark * self.pool.total))
        self._running, self._waiting = self._roster.running, self._roster.waiting
        self._in_flight: StepPlan | None = None
        self._planned: list[Sequence] = []  # parallel to the plan's sequences
        self._sitting_out = False  # somebody waits for blocks that the step under way sets free
        self._output = StepOutput([], [], [], EngineStats())
        self._steps = self._generated = 0

    # What the agent asks for

    def add(self, message: AddRequest) -> None:
        """Queue a request, or refuse it with a `RequestFailed` in the next output."""
        if message.id in self._requests:
            raise ValueError(f"request {message.id} is still running: abort it before adding it again")
        failure = refusal(message, self.limits)
        if failure is not None:
            self._output.failed.append(failure)
            return
        rules = StopRules.of(
            message.sampling,
            prompt_len=len(message.prompt),
            max_model_len=self.limits.max_model_len,
            vocab_size=self.limits.vocab_size,
        )
        self._arrivals += 1
        request = Request(message, rules, self._arrivals)
        self._requests[request.id] = request
        if request.deadline is not None:
            self._deadlines.add(request, request.deadline)
        if request.priority > 0:
            self._aging.add(request, self._clock() + self._aging_s)
        for sequence in self._first_sequences(request, message.sequences):
            request.sequences.update(dict.fromkeys(sequence.indices, sequence))
            self._waiting.push(sequence)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop a request or one of its sequences and free its memory at once. Unknown ids have ended already."""
        request = self._requests.get(request_id)
        if request is None:
            return
        if index is None:
            self._end_request(request)
        elif request.beam is not None or (sequence := request.sequences.get(index)) is None:
            return
        elif sequence.width > 1:
            sequence.indices.remove(index)
            del request.sequences[index]
            if sequence.state is State.RUNNING:
                self._running.width -= 1
        else:
            if sequence.state is State.RUNNING and not sequence.decodes:
                # Siblings that compute as well may share blocks that this one was going to fill.
                self._roster.preempt([sibling for sibling in request.members(State.RUNNING) if not sibling.decodes])
            self._end_sequence(sequence)

    def pin(self, message: PinPrefix) -> None:
        """Keep a prefix resident; what is not computed yet is computed as a request of its own."""
        request_id = f"pin:{message.name}"
        self.abort(request_id)
        try:
            is_here = self.residency.pin(message.name, message.tokens, message.salt)
        except ValueError as error:
            self._output.failed.append(RequestFailed(request_id, "invalid_request", str(error), "tokens"))
            return
        if is_here:
            self._output.started.append(RequestStarted(request_id, len(message.tokens)))
            return
        sampling = EngineSampling(seed=0, max_tokens=0)
        self.add(AddRequest(request_id, message.tokens, [SequenceInput(0)], sampling, salt=message.salt))

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def take_output(self) -> StepOutput:
        """Everything that happened since the last call, with the state now."""
        output, self._output = self._output, StepOutput([], [], [], EngineStats())
        output.stats = self.stats()
        output.resumed, self._roster.resumed = self._roster.resumed, []
        return output

    @property
    def has_output(self) -> bool:
        """Whether anything waits to be taken apart from statistics."""
        return bool(self._output.tokens or self._output.started or self._output.failed)

    def stats(self) -> EngineStats:
        counters, decisions, host = self.cache.counters, self.residency.decisions, self.residency.host
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            free_blocks=self.pool.free,
            used_blocks=self.pool.used,
            cached_blocks=self.pool.cached,
            steps=self._steps,
            preemptions=decisions.total(),
            prompt_tokens=counters.queried,
            cached_tokens=counters.hit,
            recomputed_tokens=counters.recomputed,
            generated_tokens=self._generated,
            swapped=self.residency.swapped,
            pinned_blocks=len(self.residency.pins.blocks),
            shared_blocks=self.pool.shared,
            quarantined_blocks=self.pool.quarantined,
            host_blocks=0 if host is None else host.total,
            host_free_blocks=0 if host is None else host.free,
            restored_tokens=counters.restored,
            **{decision.value: decisions[decision] for decision in Decision},
        )

    def check_integrity(self) -> None:
        """Verify all block accounting against the tables of all sequences. `AssertionError` if it is wrong."""
        sequences = {seq for request in self._requests.values() for seq in request.sequences.values()}
        running = {seq for seq in sequences if seq.state is State.RUNNING}
        self._running.check_integrity(running)
        self._waiting.check_integrity(sequences - running)
        self.residency.check_integrity(sequences)

    # One step

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing is left to run. Every plan ends with `commit` or `abandon`."""
        if self._in_flight is not None:
            raise RuntimeError("the previous plan was neither committed nor abandoned")
        now = self._clock()
        self._expire(now)
        self._age(now)
        self._planned = []
        self._sitting_out = False
        self.residency.begin_step()
        plan = StepPlan([], 0)
        self._roster.make_way(plan)
        preemptions = self.residency.decisions.total()
        self._plan_decodes(plan)
        self._plan_prompts(plan, admit=self.residency.decisions.total() == preemptions)
        if not self._planned and not plan.swap_out and not plan.swap_in:
            return None
        self._in_flight = plan
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """Take over what the runner computed for `plan`."""
        planned = self._land(plan)
        self.residency.settle()
        self._steps += 1
        for position, (sequence, answer) in enumerate(zip(planned, result.sequences, strict=True)):
            if sequence.state is not State.RUNNING:  # ended earlier in this loop, with its request
                continue
            if position >= plan.num_decodes:
                self._commit_chunk(sequence, plan.sequences[position], answer)
                continue
            sequence.computed += 1
            if sequence.request.beam is not None:
                self._offer(sequence, answer.samples[0])
            elif self._append(sequence, answer.samples[0]):
                sequence.advance_decode()

    def abandon(self, plan: StepPlan, *, culprit: int | None = None, message: str = "") -> None:
        """Undo a step that failed: nothing that it wrote is trusted, all its groups compute again.

        `culprit` is the position in the plan of a sequence whose request fails with `message`.
        """
        planned = self._land(plan)
        swapped = self.residency.undo()
        for request in {sequence.request: None for sequence in (*planned, *swapped)}:
            self._roster.preempt(request.members(State.RUNNING))
        for sequence in swapped:
            self.residency.free(sequence)
        if culprit is not None:
            self._fail(planned[culprit].request, "step_failed", message)

    def _land(self, plan: StepPlan) -> list[Sequence]:
        if plan is not self._in_flight:
            raise RuntimeError("this is not the plan in flight")
        self._in_flight = None
        return self._planned

    # Planning

    def _expire(self, now: float) -> None:
        for request in self._deadlines.take_due(now):
            self._fail(request, "deadline", "the job's deadline passed before it was finished")

    def _age(self, now: float) -> None:
        """Whoever waited for long rises by a class, and keeps it, so that no class starves another."""
        for request in self._aging.take_due(now):
            if self._roster.age(request):
                self._aging.add(request, now + self._aging_s)

    def _plan_decodes(self, plan: StepPlan) -> None:
        decoding, size = self._running.decoding, self._block_size
        position = 0
        while position < len(decoding):  # preemption shortens the list from its end
            sequence = decoding[position]
            if len(sequence.request.sequences) > 1:
                position = self._plan_group(position, plan)
                continue
            start = sequence.step.start
            slot = start // size
            blocks = sequence.table.blocks
            if slot == len(blocks) or self.pool.refs[blocks[slot]] > 1:
                if not self._make_room([sequence], plan):
                    position += sequence.state is State.RUNNING
                    continue
                self.residency.make_writable(sequence, start, plan)
            position += 1
            if (start + 1) % size == 0:
                self.residency.publish(sequence, start + 1)
            plan.sequences.append(sequence.step)
            self._planned.append(sequence)
        plan.num_decodes = len(plan.sequences)

    def _plan_group(self, position: int, plan: StepPlan) -> int:
        """Plan the decodes of a request from `position` on, all or none. Returns the position after them."""
        decoding = self._running.decoding
        request = decoding[position].request
        while members := _members_from(decoding, position, request):
            if not self._make_room(members, plan):
                return position + len(_members_from(decoding, position, request))
            if all(member.state is State.RUNNING for member in members):
                break
        for member in members:
            self.residency.make_writable(member, member.step.start, plan)
            self.residency.publish(member, member.step.start + 1)
            plan.sequences.append(member.step)
            self._planned.append(member)
        return position + len(members)

    def _make_room(self, members: list[Sequence], plan: StepPlan) -> bool:
        """Preempt others until every member can take its next block. False if none of them can run in this step: they
        gave way themselves, or what they need is still being copied. True as well when some of them gave way."""
        needed = self.residency.growth(members)
        while needed and (self._sitting_out or self.pool.available < needed):
            if self._sitting_out or self.pool.available + self.pool.quarantined >= needed:
                self._sitting_out = True
                return False
            self._give_way(plan)
            if any(member.state is not State.RUNNING for member in members):
                return members[0].state is State.RUNNING
        return True

    def _plan_prompts(self, plan: StepPlan, *, admit: bool) -> None:
        prefilling, budget = self._running.prefilling, self._token_budget - plan.num_decodes
        position = 0
        while budget > 0:
            running = prefilling[position] if position < len(prefilling) else None
            waiting = self._waiting.head() if admit else None
            if waiting is not None and (running is None or waiting.order < running.order):
                admit = self._admit(waiting.request, plan)
            elif running is not None:
                budget -= self._plan_chunk(running, plan, budget)
                position += 1
            else:
                break

    def _admit(self, request: Request, plan: StepPlan) -> bool:
        """Whether the queue's head went, so that the next may be tried."""
        try:
            return self._roster.admit(request, plan)
        except GroupTooLarge as error:
            self._fail_beams(error.request)
            return True

    def _give_way(self, plan: StepPlan) -> None:
        try:
            self._roster.give_way(plan)
        except GroupTooLarge as error:
            self._fail_beams(error.request)

    def _plan_chunk(self, sequence: Sequence, plan: StepPlan, budget: int) -> int:
        """Compute up to `budget` tokens that are known but not computed. Their blocks are there since admission."""
        request, start = sequence.request, sequence.computed
        length = sequence.length
        end = min(length, start + budget)
        step = SequenceStep(sequence.slice(start, end), start, sequence.table.blocks, stay=sequence.stay)
        if end == length and request.rules.limit > 0:
            step.samples = sequence.samples()
        if request.prompt_scorer is sequence and start < len(request.prompt) - 1:
            step.prompt_logprobs = request.sampling.prompt_logprobs
            step.targets = request.prompt[start + 1 : end + 1]
        self.residency.publish(sequence, end)
        plan.sequences.append(step)
        self._planned.append(sequence)
        return end - start

    # Committing

    def _commit_chunk(self, sequence: Sequence, step: SequenceStep, answer: SequenceResult) -> None:
        request = sequence.request
        sequence.computed += len(step.tokens)
        if request.prompt_scorer is sequence and request.prompt_logprobs is not None:
            request.prompt_logprobs.extend(answer.prompt_logprobs)
        if sequence.computed < sequence.length:
            return
        self._start(sequence)
        if not step.samples:
            self._end_request(request)
        elif request.beam is not None:
            self._running.hold(sequence)
            self._offer(sequence, answer.samples[0])
        else:
            tokens = {spec.index: token for spec, token in zip(step.samples, answer.samples, strict=True)}
            for decoding in (sequence, *self._fork(sequence)):
                if decoding.state is State.RUNNING and self._append(decoding, tokens[decoding.indices[0]]):
                    decoding.prepare_decode()

    def _start(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.started or request.prompt_scorer not in (None, sequence):
            return
        request.started = True
        started = RequestStarted(request.id, request.cached_tokens or 0, request.prompt_logprobs)
        request.prompt_scorer = request.prompt_logprobs = None
        self._output.started.append(started)

    def _fork(self, sequence: Sequence) -> list[Sequence]:
        """Let a computed prompt decode. Its first index keeps the sequence, every other gets a fork."""
        children = [sequence.fork(index) for index in self._running.narrow(sequence)]
        self._running.leave_prompt(sequence)
        for child in children:
            self._join(child)
        return children

    def _join(self, fork: Sequence) -> None:
        fork.request.sequences[fork.indices[0]] = fork
        self._running.join(fork)

    # Beams

    def _offer(self, member: Sequence, sampled: Sampled) -> None:
        """Take what the model says after one live hypothesis; after all of them, let the search go on or end."""
        request, beam = member.request, member.request.beam
        assert beam is not None
        if not beam.offer(member, sampled.candidates):
            return
        choices = beam.choose()
        if choices:
            self._continue_beams(request, beam, choices)
            return
        for index, found in enumerate(beam.results()):
            reasons = [None] * (len(found.tokens) - 1) + [found.reason]
            for token, reason in zip(found.tokens, reasons, strict=True):
                self._output.tokens.append(TokenOutput(request.id, index, token, None, reason))
            self._generated += len(found.tokens)
        self._end_request(request)

    def _continue_beams(self, request: Request, beam: BeamGroup, choices: list[tuple[Sequence, int]]) -> None:
        """Each chosen parent continues as the first of its children, the others fork from it; the rest is dropped."""
        parents = dict.fromkeys(parent for parent, _ in choices)
        spare = [index for parent in parents for index in self._running.narrow(parent)]
        for member in beam.members:
            if member not in parents:
                spare += member.indices
                self._running.remove(member)
                self._release(member)
        for index in spare:
            del request.sequences[index]
        beam.members = []
        for parent, _ in choices:
            child = parent.fork(spare.pop()) if parent in beam.members else parent
            if child is not parent:
                self._join(child)
            beam.members.append(child)
        for member, (_, token) in zip(beam.members, choices, strict=True):
            self._running.unhold(member)
            member.output.append(token)
            member.prepare_decode()
        self._check_pool(beam.members[0])

    def _fail_beams(self, request: Request) -> None:
        message = (
            f"its {request.sampling.beam.width if request.sampling.beam else 0} beams exceed this worker's KV memory"
        )
        self._fail(request, "pool_too_small", f"{message}: give it a larger cache, lower beam_width or max_tokens")

    def _append(self, sequence: Sequence, sampled: Sampled) -> bool:
        """Report a new token. Whether the sequence goes on after it."""
        request, token = sequence.request, sampled.token
        output = sequence.output
        output.append(token)
        self._generated += 1
        reason = request.rules.finish_reason(token, len(output))
        self._output.tokens.append(TokenOutput(request.id, sequence.indices[0], token, sampled.logprob, reason))
        if reason is not None:
            self._end_sequence(sequence)
            return False
        return self._check_pool(sequence)

    def _check_pool(self, sequence: Sequence) -> bool:
        """Whether the sequence can go on at all: its request fails if no memory of this worker can hold it."""
        if sequence.length <= self.limits.pool_tokens:
            return True
        message = f"{sequence.length} tokens exceed this worker's KV memory of {self.limits.pool_tokens} tokens"
        self._fail(sequence.request, "pool_too_small", f"{message}: give it a larger cache or lower max_tokens")
        return False

    # Ends

    def _first_sequences(self, request: Request, inputs: list[SequenceInput]) -> list[Sequence]:
        """One sequence for each that has published tokens, one in common for those that start from the prompt."""
        outputs = [([given.index], list(given.tokens)) for given in inputs if given.tokens]
        fresh = sorted(given.index for given in inputs if not given.tokens)
        if request.sampling.beam is not None:
            fresh = list(range(request.sampling.beam.width))
        if fresh:
            outputs.append((fresh, []))
        tables = (BlockTable(self.pool, self._block_size) for _ in outputs)
        sequences = [Sequence(request, *output, table) for output, table in zip(outputs, tables, strict=True)]
        return sorted(sequences, key=by_order)

    def _release(self, sequence: Sequence) -> None:
        """The sequence is over, whatever held it."""
        self._roster.stop_scoring(sequence)
        self.residency.free(sequence)
        sequence.state = State.FINISHED

    def _end_sequence(self, sequence: Sequence) -> None:
        request = sequence.request
        if sequence.state is State.RUNNING:
            self._running.remove(sequence)
        elif sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        self._release(sequence)
        for index in sequence.indices:
            del request.sequences[index]
        if not request.sequences:
            del self._requests[request.id]

    def _end_request(self, request: Request) -> None:
        for sequence in dict.fromkeys(request.sequences.values()):
            self._end_sequence(sequence)

    def _fail(self, request: Request, code: str, message: str) -> None:
        self._end_request(request)
        self._output.failed.append(RequestFailed(request.id, code, message))


def _members_from(decoding: list[Sequence], position: int, request: Request) -> list[Sequence]:
    """The decoding sequences of `request`, which begin at `position`."""
    end = position
    while end < len(decoding) and decoding[end].request is request:
        end += 1
    return decoding[position:end]
