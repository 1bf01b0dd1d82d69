"""Continuous batching over paged memory: requests in, one step after the other, tokens out."""

from __future__ import annotations

import math
from array import array
from collections import deque

from octavo_worker.contract.messages import (
    AddRequest,
    EngineSampling,
    EngineStats,
    PinPrefix,
    RequestFailed,
    RequestStarted,
    SequenceInput,
    StepOutput,
)
from octavo_worker.contract.step import Masks, StepPlan, StepResult
from octavo_worker.engine.batch_manager import BatchManager
from octavo_worker.engine.config import SchedulerConfig
from octavo_worker.engine.draft_planner import DraftPlanner
from octavo_worker.engine.grammar import Matcher
from octavo_worker.engine.kv.kv_cache_manager import KVCacheManager
from octavo_worker.engine.kv.room import Room
from octavo_worker.engine.kv.shared_reads import SharedReads
from octavo_worker.engine.masks import MaskFiller
from octavo_worker.engine.output_processor import OutputProcessor
from octavo_worker.engine.planner import Planner
from octavo_worker.engine.requests import Requests
from octavo_worker.engine.scheduling.admission import Limits
from octavo_worker.engine.scheduling.time_share import TimeShare
from octavo_worker.engine.sequence import Sequence, State
from octavo_worker.engine.step_in_flight import StepInFlight
from octavo_worker.memory.cost import Decision


class Scheduler:
    """Continuous batching with chunked prefill over paged memory: what the engine's loop talks to.

    `plan` builds a step (see `Planner`), `commit` takes its result, `abandon` undoes a step that failed. A step may be
    planned while the one before it is in flight, see `can_plan`; `in_flight` are those that have not ended, the oldest
    first. Blocks are published in the prefix cache when the step that fills them is planned, so equal prompts share
    within that step (see `StepPlan`), or as soon as their last token is known after that.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.kv = KVCacheManager(
            config.capacity,
            config.num_blocks,
            config.num_host_blocks,
            config.policy,
            first_host_block=config.first_host_block or config.num_blocks,
            chunk=config.token_budget,
            states=config.states,
            windows=config.windows,
        )
        self.pool, self.cache = self.kv.pool, self.kv.cache
        most, beams = config.max_running, config.max_running
        if config.states is not None:
            most, beams = min(most, config.states.most_running), min(beams, config.states.most_beams)
        self.limits = Limits(config.max_model_len, config.vocab_size, most, config.capacity, config.features, beams)
        self.gives_way = config.scheduling.gives_way
        reserves = [math.ceil(config.watermark * group.pool.total) for group in self.kv.groups]
        reserve = Room(reserves[0], windows=sum(reserves[1:]))
        self._batch = BatchManager(self.kv, config.scheduling, max_running=most, watermark=reserve)
        speculation = config.speculation
        self._requests = Requests(
            self._batch,
            self.limits,
            config.scheduling,
            proposer=None if speculation is None else speculation.proposer,
            aging_s=config.aging_s,
            clock=config.clock,
            timer=config.timer,
        )
        self._time_share = TimeShare(config.timer)
        self._drafts = None if speculation is None else DraftPlanner(speculation, self.kv, config.vocab_size)
        self._planner = Planner(
            self._batch,
            self._requests,
            config.scheduling,
            self._time_share,
            config.token_budget,
            self._drafts,
            config.abreast,
        )
        self._outputs = OutputProcessor(self._batch, self._requests)
        self.mask_filler = MaskFiller(self._requests, config.mask_threads)
        self._shared_reads = config.shared_reading and SharedReads(
            config.shared_reading, config.block_size, config.first_host_block or config.num_blocks
        )
        self.in_flight: deque[StepInFlight] = deque()
        self._steps = 0

    # What the agent asks for

    def add(self, message: AddRequest, matchers: list[Matcher] | None = None) -> None:
        """Queue a request, or refuse it with a `RequestFailed` in the next output. With a grammar, `matchers` has one
        for each of its sequences, which has taken the tokens that were published."""
        self._requests.add(message, matchers)

    def refuse(self, failure: RequestFailed) -> None:
        """Say in the next output that a request will not run."""
        self._requests.output.failed.append(failure)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop a request or one of its sequences and free its memory at once. Unknown ids have ended already."""
        request = self._requests.find(request_id)
        if request is None:
            return
        if index is None:
            self._requests.end(request)
        elif request.beam is None and (sequence := request.sequences.get(index)) is not None:
            self._abort_sequence(sequence, index)

    def _abort_sequence(self, sequence: Sequence, index: int) -> None:
        request = sequence.request
        if sequence.width > 1:
            sequence.indices.remove(index)
            del request.sequences[index]
            if sequence.state is State.RUNNING:
                self._batch.running.count(sequence, -1)
            return
        if sequence.state is State.RUNNING and not sequence.decodes:
            # Siblings that compute as well may share blocks that this one was going to fill.
            self._batch.preempt([sibling for sibling in request.members(State.RUNNING) if not sibling.decodes])
        self._requests.end_sequence(sequence)

    def pin(self, message: PinPrefix) -> None:
        """Keep a prefix resident; what is not computed yet is computed as a request of its own."""
        request_id = f"pin:{message.name}"
        self.abort(request_id)
        try:
            is_here = self.kv.pinned.pin(message.name, message.tokens, message.salt)
        except ValueError as error:
            failure = RequestFailed(request_id, "invalid_request", str(error), "tokens")
            self._requests.output.failed.append(failure)
            return
        if is_here:
            self._requests.output.started.append(RequestStarted(request_id, len(message.tokens)))
            return
        sampling = EngineSampling(seed=0, max_tokens=0)
        self.add(AddRequest(request_id, array("I", message.tokens), [SequenceInput(0)], sampling, salt=message.salt))

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def take_output(self) -> StepOutput:
        """Everything that happened since the last call, with the state now."""
        output = self._requests.take_output()
        output.stats = self.stats()
        return output

    @property
    def has_output(self) -> bool:
        """True if anything waits to be taken apart from statistics."""
        output = self._requests.output
        return bool(output.tokens or output.started or output.failed)

    def holders(self) -> list[Sequence]:
        """The sequences that have blocks, in the order in which their requests came."""
        return self._requests.holders()

    def stats(self) -> EngineStats:
        counters, decisions, host = self.cache.counters, self.kv.decisions, self.kv.host
        return EngineStats(
            running=len(self._batch.running),
            waiting=len(self._batch.waiting),
            free_blocks=self.pool.free,
            used_blocks=self.pool.used,
            cached_blocks=self.pool.cached,
            steps=self._steps,
            preemptions=decisions.total(),
            prompt_tokens=counters.queried,
            cached_tokens=counters.hit,
            recomputed_tokens=counters.recomputed,
            generated_tokens=self._requests.generated,
            swapped=0 if host is None else host.num_swapped,
            pinned_blocks=len(self.kv.pins.blocks),
            shared_blocks=self.pool.shared,
            quarantined_blocks=self.pool.quarantined,
            host_blocks=0 if host is None else host.pool.total,
            host_free_blocks=0 if host is None else host.pool.free,
            cold_blocks=0 if host is None else host.cold_blocks,
            restored_tokens=counters.restored,
            drafted_tokens=self._requests.drafted,
            accepted_tokens=self._requests.accepted,
            stateless_tokens=counters.stateless,
            windowless_tokens=counters.windowless,
            **({} if self.kv.windows is None else self.kv.windows.counts()),
            **({} if self.kv.states is None else self.kv.states.counts()),
            **{decision.value: decisions[decision] for decision in Decision},
        )

    def check_integrity(self) -> None:
        """Verify all block accounting against the tables of all sequences. `AssertionError` if it is wrong."""
        sequences = self._requests.sequences()
        running = {sequence for sequence in sequences if sequence.state is State.RUNNING}
        self._batch.running.check_integrity(running)
        self._batch.waiting.check_integrity(sequences - running)
        self.kv.check_integrity(sequences)

    # Steps

    @property
    def can_plan(self) -> bool:
        """True if a step may be planned now: at most one is in flight, and it verifies no drafts."""
        return not self.in_flight or (len(self.in_flight) == 1 and not self.in_flight[0].drafts)

    def waits_for_drafts(self) -> bool:
        """True if the next step is better planned when the one in flight has ended: it should have drafts, which begin
        with what that one chooses. It is all sequences or none: one that is left out of a plan alone would be in every
        other step only."""
        if self._drafts is None or len(self.in_flight) != 1:
            return False
        running = self._batch.running
        others = self.in_flight[0].prompt_rows if running.prefilling or len(self._batch.waiting) else 0
        return self._drafts.is_due(running.decoding, others)

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing is left to run. Plans end in their order with `commit`, or together with
        `abandon`. Raises RuntimeError if `can_plan` is False."""
        if not self.can_plan:
            raise RuntimeError("a previous plan was neither committed nor abandoned")
        self._requests.keep_time()
        before = None
        # A plan may come out empty and yet have changed what runs: a sequence that came back found everything in the
        # cache, or one that preempted others cannot run at all. Nothing is lost with it: only what it plans is copied
        # or published.
        while before != (before := self._batch.census()):
            step = self.kv.begin_step()
            self._planner.plan(step, ahead=bool(self.in_flight))
            if not step.is_empty:
                reads = self._shared_reads
                plan = step.seal(*(reads.group(step.steps, step.num_decodes) if reads else ([], [])))
                if self.limits.capacity.share:
                    step.time_slice = self._time_share.begin(plan, step.sequences, self._batch.running.decoding)
                self.in_flight.append(step)
                return plan
            if self.in_flight:  # what this plan preempted may not return before the step in flight has ended
                break
        return None

    def masks(self, step: StepInFlight) -> Masks:
        """Masks of a step's samples, once the steps before it are committed. Requests whose grammar cannot
        be followed fail."""
        return self.mask_filler.fill(step)

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """Take over what the runner computed for `plan`, the oldest in flight."""
        step = self._oldest(plan)
        self.in_flight.popleft()
        self.kv.settle(step)
        if step.time_slice is not None:
            self._time_share.end(step.time_slice)
        self._steps += 1
        self._outputs.take(step, result)

    def abandon(self, plan: StepPlan, *, culprit: int | None = None, message: str = "") -> None:
        """Undo `plan`, the oldest in flight, which failed, and the one after it. All running sequences, and those
        swapped out by these steps, are recomputed: any of them may share a block that the failed step wrote. The runner
        must be done with both.

        `culprit` is the position in the plan of a sequence whose request fails with `message`.
        """
        failed = self._oldest(plan).sequences
        steps = list(self.in_flight)
        self.in_flight.clear()
        for step in steps:
            self.kv.undo(step)
            self._take_back_drafts(step)
        for request in dict.fromkeys(sequence.request for sequence in self._batch.running):
            self._batch.preempt(request.members(State.RUNNING))
        for step in steps:
            for sequence in step.evicted:
                self.kv.free(sequence)
        if culprit is not None and failed[culprit].request.sequences:
            self._requests.fail(failed[culprit].request, "step_failed", message)

    def _take_back_drafts(self, step: StepInFlight) -> None:
        for sequence, planned in zip(step.sequences, step.steps, strict=True):
            if planned.drafts and sequence.state is State.RUNNING:
                self.kv.rewind(sequence, len(planned.drafts))

    def _oldest(self, plan: StepPlan) -> StepInFlight:
        if not self.in_flight or self.in_flight[0].plan is not plan:
            raise RuntimeError("this is not the plan that is next to end")
        return self.in_flight[0]
