"""Which sequences run in the next step, on which blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from octavo_worker.decoding.stop import StopRules
from octavo_worker.engine.admission import Limits, refusal
from octavo_worker.engine.deadlines import Deadlines
from octavo_worker.engine.plan import Sampled, SequenceResult, SequenceStep, StepPlan, StepResult
from octavo_worker.engine.running import RunningBatch, by_order
from octavo_worker.engine.sequence import Request, Sequence, State
from octavo_worker.engine.waiting import WaitingQueue
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.block_table import BlockTable
from octavo_worker.memory.prefix_cache import PrefixCache
from octavo_worker.messages import (
    AddRequest,
    EngineStats,
    RequestFailed,
    RequestStarted,
    SequenceInput,
    StepOutput,
    TokenOutput,
)


class Scheduler:
    """Continuous batching with chunked prefill over paged memory.

    `plan` builds one step in this order:

    1. Every decoding sequence gets its token. `token_budget` exceeds `max_running`, so prompts never delay a decode and
       decodes always leave room for prompts.
    2. What is left of the budget goes to prompts in the order of (class, arrival, index): those that run continue,
       those that wait are admitted when their turn comes. Nobody overtakes a sequence that finds no slot or no blocks.
       Admission takes the blocks of all present tokens (not of the output to come) and keeps `watermark` of the pool
       free for those that run.

    When a decode finds no block, the sequence that is last in (class, arrival, index) is preempted: it loses its
    blocks, goes back to the front of its class and is recomputed, helped by what the prefix cache still holds. Victims
    are taken one sequence at a time, so parallel samples of a request shrink from the last index on. The order of
    planning guarantees that a victim has not been planned yet. A step that preempts admits nobody.

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        if token_budget <= max_running:
            raise ValueError(
                f"token_budget ({token_budget}) must exceed max_running ({max_running}), or prompts would starve"
            )
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool, block_size)
        self.limits = Limits(max_model_len, vocab_size, max_running, self.pool.total * block_size)
        self._block_size = block_size
        self._token_budget = token_budget
        self._watermark = math.ceil(watermark * self.pool.total)
        self._clock = clock
        self._requests: dict[str, Request] = {}
        self._arrivals = 0
        self._deadlines = Deadlines(self._requests)
        self._waiting = WaitingQueue()
        self._running = RunningBatch()
        self._in_flight: StepPlan | None = None
        self._planned: list[Sequence] = []  # parallel to the plan's sequences
        self._newly_published: list[int] = []
        self._output = StepOutput([], [], [], EngineStats())
        self._steps = self._preemptions = self._generated = 0

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
        self._deadlines.add(request)
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
        elif (sequence := request.sequences.get(index)) is None:
            return
        elif sequence.width > 1:
            sequence.indices.remove(index)
            del request.sequences[index]
            if sequence.state is State.RUNNING:
                self._running.width -= 1
        else:
            self._end_sequence(sequence)

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def take_output(self) -> StepOutput:
        """Everything that happened since the last call, with the state now."""
        output, self._output = self._output, StepOutput([], [], [], EngineStats())
        output.stats = self.stats()
        return output

    @property
    def has_output(self) -> bool:
        """Whether anything waits to be taken apart from statistics."""
        return bool(self._output.tokens or self._output.started or self._output.failed)

    def stats(self) -> EngineStats:
        counters = self.cache.counters
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            free_blocks=self.pool.free,
            used_blocks=self.pool.used,
            cached_blocks=self.pool.cached,
            steps=self._steps,
            preemptions=self._preemptions,
            prompt_tokens=counters.queried,
            cached_tokens=counters.hit,
            recomputed_tokens=counters.recomputed,
            generated_tokens=self._generated,
        )

    def check_integrity(self) -> None:
        """Verify all block accounting against the tables of all sequences. `AssertionError` if it is wrong."""
        sequences = {seq for request in self._requests.values() for seq in request.sequences.values()}
        running = {seq for seq in sequences if seq.state is State.RUNNING}
        self._running.check_integrity(running)
        if len(self._waiting) != len(sequences) - len(running):
            raise AssertionError("waiting sequences and the queue disagree")
        self.pool.check_integrity(sequence.table.blocks for sequence in sequences)

    # One step

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing is left to run. Every plan ends with `commit` or `abandon`."""
        if self._in_flight is not None:
            raise RuntimeError("the previous plan was neither committed nor abandoned")
        self._expire()
        self._planned = []
        self._newly_published = []
        plan = StepPlan([], 0)
        preemptions = self._preemptions
        self._plan_decodes(plan)
        self._plan_prompts(plan, admit=self._preemptions == preemptions)
        if not self._planned:
            return None
        self._in_flight = plan
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """Take over what the runner computed for `plan`."""
        planned = self._land(plan)
        self._steps += 1
        for position, (sequence, answer) in enumerate(zip(planned, result.sequences, strict=True)):
            if sequence.state is not State.RUNNING:  # ended earlier in this loop, with its request
                continue
            if position >= plan.num_decodes:
                self._commit_chunk(sequence, plan.sequences[position], answer)
                continue
            sequence.computed += 1
            if self._append(sequence, answer.samples[0]):
                sequence.advance_decode()

    def abandon(self, plan: StepPlan, *, culprit: int | None = None, message: str = "") -> None:
        """Undo a step that failed: nothing that it wrote is trusted, all its sequences compute again.

        `culprit` is the position in the plan of a sequence whose request fails with `message`.
        """
        planned = self._land(plan)
        for block in self._newly_published:
            self.pool.unpublish(block)
        for sequence in sorted(planned, key=by_order, reverse=True):
            if sequence.state is State.RUNNING:
                self._preempt(sequence)
        if culprit is not None:
            self._fail(planned[culprit].request, "step_failed", message)

    def _land(self, plan: StepPlan) -> list[Sequence]:
        if plan is not self._in_flight:
            raise RuntimeError("this is not the plan in flight")
        self._in_flight = None
        return self._planned

    # Planning

    def _expire(self) -> None:
        for request in self._deadlines.take_passed(self._clock()):
            self._fail(request, "deadline", "the job's deadline passed before it was finished")

    def _plan_decodes(self, plan: StepPlan) -> None:
        decoding, size = self._running.decoding, self._block_size
        position = 0
        while position < len(decoding):  # preemption shortens the list from its end
            sequence = decoding[position]
            position += 1
            step = sequence.step
            if not self._make_writable(sequence, step.start, plan):
                continue
            if (step.start + 1) % size == 0:
                self._publish(sequence, step.start + 1)
            plan.sequences.append(step)
            self._planned.append(sequence)
        plan.num_decodes = len(plan.sequences)

    def _make_writable(self, sequence: Sequence, position: int, plan: StepPlan) -> bool:
        """Give `sequence` a block of its own at `position`. False if it had to be preempted itself."""
        table, slot = sequence.table, position // self._block_size
        while True:
            grows = slot == len(table.blocks)
            if not grows and self.pool.refs[table.blocks[slot]] == 1:
                return True
            if self.pool.available:
                if grows:
                    table.reserve(position + 1)
                else:
                    plan.copies.append(table.unshare(position))
                return True
            victim = self._running.victim()
            self._preempt(victim)
            if victim is sequence:
                return False

    def _plan_prompts(self, plan: StepPlan, *, admit: bool) -> None:
        prefilling, budget = self._running.prefilling, self._token_budget - plan.num_decodes
        position = 0
        while budget > 0:
            running = prefilling[position] if position < len(prefilling) else None
            waiting = self._waiting.head() if admit else None
            if waiting is not None and (running is None or waiting.order < running.order):
                admit = self._admit(waiting, position)
            elif running is not None:
                budget -= self._plan_chunk(running, plan, budget)
                position += 1
            else:
                break

    def _plan_chunk(self, sequence: Sequence, plan: StepPlan, budget: int) -> int:
        """Compute up to `budget` tokens that are known but not computed. Their blocks are there since admission."""
        request, start = sequence.request, sequence.computed
        length = sequence.length
        end = min(length, start + budget)
        step = SequenceStep(sequence.slice(start, end), start, sequence.table.blocks)
        if end == length and request.rules.limit > 0:
            step.samples = sequence.samples()
        if request.prompt_scorer is sequence and start < len(request.prompt) - 1:
            step.prompt_logprobs = request.sampling.prompt_logprobs
            step.targets = request.prompt[start + 1 : end + 1]
        self._publish(sequence, end)
        plan.sequences.append(step)
        self._planned.append(sequence)
        return end - start

    def _publish(self, sequence: Sequence, computed: int) -> None:
        """Offer the blocks that are full once the first `computed` tokens are written."""
        full = computed // self._block_size
        self._extend_digests(sequence, full)
        for slot in range(sequence.published, full):
            block = sequence.table.blocks[slot]
            if self.pool.publish(block, sequence.digests[slot + 1]):
                self._newly_published.append(block)
        sequence.published = full

    def _extend_digests(self, sequence: Sequence, blocks: int) -> None:
        digests, size = sequence.digests, self._block_size
        if not digests:
            digests.append(self.cache.root(sequence.request.salt))
        known = len(digests) - 1
        if known < blocks:
            self.cache.extend_digests(digests, sequence.slice(known * size, blocks * size))

    # Admission and preemption

    def _admit(self, sequence: Sequence, position: int) -> bool:
        """Let the head of the queue run as the prompt at `position`. False if it must wait."""
        if not self._take_blocks(sequence):
            return False
        self._waiting.remove(sequence)
        self._running.admit(sequence, position)
        return True

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Give a waiting sequence the blocks of all its tokens, shared where possible. False if it must wait."""
        alone = len(self._running) == 0
        spare = self.pool.available - (0 if alone else self._watermark)
        if self._running.width + sequence.width > self.limits.max_running or spare <= 0:
            return False
        length = sequence.length
        hits = self._find_prefix(sequence, length)
        revived = sum(self.pool.refs[block] == 0 for block in hits)
        needed = -(-length // self._block_size) - len(hits) + revived
        tails = sequence.width - 1  # each parallel sample but one needs a last block of its own right away
        if not alone and needed + tails > spare:
            return False
        sequence.table.adopt(hits)
        sequence.table.reserve(length)
        sequence.published = len(hits)
        sequence.computed = len(hits) * self._block_size
        self._count_admission(sequence)
        return True

    def _find_prefix(self, sequence: Sequence, length: int) -> list[int]:
        request = sequence.request
        if request.sampling.prompt_logprobs is not None and request.prompt_scorer is None and not request.started:
            return []  # every position of the prompt must be computed to be scored
        self._extend_digests(sequence, length // self._block_size)
        return self.cache.match(sequence.digests, length)

    def _count_admission(self, sequence: Sequence) -> None:
        request, hit, counters = sequence.request, sequence.computed, self.cache.counters
        counters.recomputed += max(0, sequence.peak - hit)
        if sequence.peak == 0:
            counters.queried += sequence.length
            counters.hit += hit
        if request.cached_tokens is None:
            request.cached_tokens = min(hit, len(request.prompt))
        if request.sampling.prompt_logprobs is not None and request.prompt_scorer is None and not request.started:
            request.prompt_scorer = sequence
            request.prompt_logprobs = [None]

    def _preempt(self, sequence: Sequence) -> None:
        self._stop_running(sequence)
        sequence.peak = max(sequence.peak, sequence.computed)
        sequence.forget()
        sequence.state = State.WAITING
        self._waiting.push_front(sequence)
        self._preemptions += 1

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
            return
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
        first, *others = sequence.indices
        sequence.indices = [first]
        children = [sequence.fork(index) for index in others]
        sequence.request.sequences.update(zip(others, children, strict=True))
        self._running.leave_prompt(sequence, children)
        return children

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
        if sequence.length > self.limits.pool_tokens:
            message = f"{sequence.length} tokens exceed this worker's KV memory of {self.limits.pool_tokens} tokens"
            self._fail(request, "pool_too_small", f"{message}: give it a larger cache or lower max_tokens")
            return False
        return True

    # Ends

    def _first_sequences(self, request: Request, inputs: list[SequenceInput]) -> list[Sequence]:
        """One sequence for each that has published tokens, one in common for those that start from the prompt."""
        outputs = [([given.index], list(given.tokens)) for given in inputs if given.tokens]
        if fresh := sorted(given.index for given in inputs if not given.tokens):
            outputs.append((fresh, []))
        tables = (BlockTable(self.pool, self._block_size) for _ in outputs)
        sequences = [Sequence(request, *output, table) for output, table in zip(outputs, tables, strict=True)]
        return sorted(sequences, key=by_order)

    def _stop_running(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        if sequence.request.prompt_scorer is sequence:
            sequence.request.prompt_scorer = None

    def _end_sequence(self, sequence: Sequence) -> None:
        request = sequence.request
        if sequence.state is State.RUNNING:
            self._stop_running(sequence)
            sequence.forget()
        elif sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        sequence.state = State.FINISHED
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
