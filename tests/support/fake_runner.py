"""A model whose next token is a hash of everything before it, read back through the block tables.

It keeps fake blocks with one (position, token) pair a slot (`fake_blocks`). A wrong table, a missed copy-on-write, a
stale prefix hit or a bad preemption changes the history it reads, hence the tokens, or trips one of its assertions.
With `window_blocks` it has a second group of them, whose tokens are the end of that history: each token hashes what
both tables hold. With `slabs` both groups share their memory. With `state_slots` it keeps states, too (`fake_states`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fake_blocks import FakeBlocks
from fake_model import LateStep, masked_out
from fake_model import candidates as candidates
from fake_model import next_token as next_token
from fake_model import score as score
from fake_states import FakeStates
from msgspec.structs import replace
from plan_values import value_of as value_of

from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.messages import Logprob
from octavo_worker.contract.step import (
    UNKNOWN,
    Done,
    Masks,
    Sampled,
    SequenceResult,
    SequenceStep,
    Speeds,
    StepError,
    StepPlan,
    StepResult,
    StepSeconds,
)
from octavo_worker.contract.windows import BlockMoves, Slabs, WindowBlocks
from octavo_worker.engine.scheduling.admission import FEATURES

GAP = 3
"""Ids between the device's slots and the host's."""


class FakeRunner:
    """Executes plans on a fake KV array and checks that they keep the contract of `octavo_worker.contract.step`."""

    shared_reading = None
    step_seconds = StepSeconds([(1, 1.0)], [(4096, 1.0)])  # whatever is computed
    asynchronous = False
    abreast = 1
    features = FEATURES
    kv_dtype = "bfloat16"
    quantization = ""
    numerics = "fake"

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        max_model_len: int = 4096,
        vocab_size: int = 997,
        step_seconds: float = 0.0,
        poison: int | None = None,
        num_host_blocks: int = 0,
        window: int = 0,
        reads_host: bool = False,
        speeds: Speeds | None = None,
        state_slots: int = 0,
        host_state_slots: int = 0,
        window_blocks: int = 0,
        host_window_blocks: int = 0,
        layer_window: int = 0,
        slabs: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.token_budget = 2048
        self.vocab_size = vocab_size
        self.plans = self.grouped_plans = self.grouped_prompts = 0
        self.tokens_computed = 0
        self.num_host_blocks = num_host_blocks
        place = {"reads_host": reads_host, "late": self.asynchronous}
        parts: list[dict[str, Any]] = [{}, {}]
        if slabs:
            owners = dict[int, FakeBlocks]()
            parts = [{"owners": owners, "each": blocks // slabs} for blocks in (num_blocks, window_blocks)]
        self.blocks = FakeBlocks(num_blocks, num_host_blocks, block_size, window, **place, **parts[0])
        self.first_host_block = self.blocks.first_host_block
        self.window = window
        self.reads_host = reads_host
        self.speeds = speeds
        self.windows: WindowBlocks | None = None
        if window_blocks:
            place["reads_host"] = False
            place |= parts[1]
            self.window_blocks = FakeBlocks(window_blocks, host_window_blocks, block_size, layer_window, **place)
            host = host_window_blocks, self.window_blocks.first_host_block
            live = Capacity(1, block_size, window=layer_window).sliding_blocks(1)
            shared = Slabs.of(slabs, num_blocks, window_blocks, live, live + 6) if slabs else None
            self.windows = WindowBlocks(window_blocks, layer_window, *host, shared)
        self.num_state_slots, self.num_host_state_slots = state_slots, host_state_slots
        self.first_host_state_slot = state_slots + GAP if host_state_slots else 0
        self.states = FakeStates(state_slots, host_state_slots, self.first_host_state_slot) if state_slots else None
        self._sampled: list[Sampled] = []  # in the step before
        self._step_seconds = step_seconds
        self._poison = poison

    def close(self) -> None:
        """Nothing runs on after this."""

    @property
    def blocks_swapped(self) -> int:
        return self.blocks.swapped

    @property
    def cold_reads(self) -> int:
        """Reads of positions on the host."""
        return self.blocks.cold_reads

    def _groups(self, plan: StepPlan) -> list[tuple[FakeBlocks, BlockMoves]]:
        """Each group of blocks with what a plan does with it."""
        blocks = self.blocks, BlockMoves(plan.copies, plan.swap_out, plan.swap_in)
        return [blocks] if self.windows is None else [blocks, (self.window_blocks, plan.windows)]

    def launch(self, plan: StepPlan) -> Done | LateStep:
        self._check_groups(plan)
        if plan.has_masked:
            return LateStep(lambda masks: self._compute(plan, lambda: masks))
        try:
            return Done(self._compute(plan))
        except StepError as error:
            return Done(error)

    def _compute(self, plan: StepPlan, masks: Callable[[], Masks] = Masks.none) -> StepResult:
        time.sleep(self._step_seconds)
        self.plans += 1
        self.tokens_computed += plan.num_tokens
        comes_early = plan.uses_swapped_in
        if comes_early:
            self._swap_in(plan)
        for blocks, moves in self._groups(plan):
            blocks.copy(moves.copies)
        written: tuple[set[int], set[int]] = set(), set()
        if self.states is not None:
            self.states.check(plan)
            self.states.swap_in(plan)
        steps = [self._resolve(step) for step in plan.sequences]
        for position, step in enumerate(steps):
            assert step.tokens, "a step without tokens"
            assert step.samples or position >= plan.num_decodes, "a decode that samples nothing"
            if self._poison in step.tokens:
                raise StepError(position, "token that this model cannot compute")
            self._write(step, written)
        for blocks, moves in self._groups(plan):
            blocks.swap_out(moves)
        self._move_states(plan, steps)
        answers = self._answers(steps, masks())
        if not comes_early:
            self._swap_in(plan)
        self._sampled = [sampled for answer in answers for sampled in answer.samples]
        return StepResult(answers)

    def _move_states(self, plan: StepPlan, steps: Sequence[SequenceStep]) -> None:
        if self.states is None:
            assert not any(step.state for step in steps), "a state of a model that keeps none"
        else:
            self.states.move(plan, steps, [self._history(step) for step in steps], late=self.asynchronous)

    def spoil(self, plan: StepPlan) -> None:
        """Write nonsense wherever the plan writes."""
        if self.states is not None:
            self.states.spoil(plan)
        self.blocks.spoil(self._groups(plan)[0][1], ((step, step.block_table) for step in plan.sequences))
        if self.windows is not None:
            self.window_blocks.spoil(plan.windows, ((step, step.window_table) for step in plan.sequences))

    def _resolve(self, step: SequenceStep) -> SequenceStep:
        """The step with the token that it follows, and what of its lists was there when it was planned."""
        if step.follows is None:
            assert UNKNOWN not in step.tokens, "an unknown token that follows nothing"
            return step
        sampled = self._sampled[step.follows]
        assert step.tokens[0] == UNKNOWN, "a known token that follows another"
        assert not sampled.candidates, "a beam runs ahead"
        return replace(step, tokens=[sampled.token, *step.tokens[1:]], follows=None)

    def _swap_in(self, plan: StepPlan) -> None:
        for blocks, moves in self._groups(plan):
            blocks.swap_in(moves)

    def _check_groups(self, plan: StepPlan) -> None:
        if not plan.groups:
            assert not plan.prefix_lens
            return
        self.grouped_plans += 1
        self.grouped_prompts += sum(group >= 0 for group in plan.groups[plan.num_decodes :])
        for number, tokens in enumerate(plan.prefix_lens):
            members = [step for step, group in zip(plan.sequences, plan.groups, strict=True) if group == number]
            shared = {tuple(step.block_table[: tokens // self.block_size]) for step in members}
            assert tokens > 0, "a group that shares nothing"
            assert len(shared) == 1, "members of a group begin with different blocks"
            assert tokens <= min(step.start for step in members), "tokens are shared that are not computed"

    def _write(self, step: SequenceStep, written: tuple[set[int], set[int]]) -> None:
        """Writes the tokens of a step where its tables say, in each group once."""
        assert step.run_id > 0, "a step without the number of its run"
        self.blocks.remember(step, step.block_table)
        self.blocks.write(step, step.block_table, written[0])
        if self.windows is None:
            assert not step.window_table, "a second table of a model with one group of blocks"
            return
        self.window_blocks.remember(step, step.window_table)
        self.window_blocks.write(step, step.window_table, written[1])

    def _history(self, step: SequenceStep) -> list[int]:
        """The tokens that the step's queries see: in layers that see all, but in the window of the others as these have
        them."""
        history = self.blocks.history(step, step.block_table)
        if self.windows is None:
            return history
        seen = self.window_blocks.history(step, step.window_table)
        assert history[len(history) - len(seen) :] == seen, "two groups of blocks hold other tokens"
        return history[: len(history) - len(seen)] + seen

    def _answers(self, steps: list[SequenceStep], masks: Masks) -> list[SequenceResult]:
        rows, answers, place = dict(zip(masks.places, masks.words, strict=True)), [], 0
        for step in steps:
            barred = []
            for spec in step.samples:
                assert spec.masked or place not in rows, "a mask for a sample that has none"
                barred.append(masked_out(rows[place], self.vocab_size) if place in rows else set())
                place += 1
            answers.append(self._answer(step, barred))
        assert not masks.places or max(masks.places) < place, "a mask for no sample"
        return answers

    def _answer(self, step: SequenceStep, barred: list[set[int]]) -> SequenceResult:
        history = self._history(step)
        prompt_logprobs = []
        if step.prompt_logprobs is not None:
            before = len(history) - len(step.tokens)
            for seen, target in enumerate(step.targets, before + 1):
                prompt_logprobs.append(Logprob(score(history[:seen][-self.window :], target)))
        return SequenceResult(
            [self._sample(step, number, history, barred[number]) for number in range(len(step.samples))],
            prompt_logprobs,
        )

    def _sample(self, step: SequenceStep, number: int, history: list[int], barred: set[int]) -> Sampled:
        row, asked = step.rows[number], step.sample_row(number)
        history = history[: len(history) - len(step.tokens) + row + 1]
        tokens = [*step.samples[number].prompt, *step.output_at(number)]
        assert asked.position == len(tokens), "the sampled position does not follow the history"
        assert tokens[len(tokens) - len(history) :] == history, "tokens for penalties are not the history"
        history, forbidden = tokens[-self.window :], {*asked.forbidden, *barred}
        if asked.candidates:
            return Sampled(0, None, candidates(history, asked.candidates, self.vocab_size, forbidden))
        token = next_token(history, asked.params.seed, asked.index, self.vocab_size, forbidden)
        logprob = None if asked.params.logprobs is None else Logprob(score(history, token))
        return Sampled(token, logprob)


@dataclass
class _Flight:
    """A step in the hands of `DelayedRunner`'s thread."""

    runner: DelayedRunner
    plan: StepPlan
    value: list[Any]
    future: Future[StepResult]
    masks: Future[Masks]

    def choose(self, masks: Masks) -> None:
        """After the step before has ended, and before the next one begins."""
        assert self.runner.under_way == [self], "a step chooses out of order"
        self.masks.set_result(masks)

    def result(self) -> StepResult:
        return self.runner.land(self)


class DelayedRunner(FakeRunner):
    """The fake model on a device of its own: a thread takes steps one after the other and takes its time.

    It does everything as late as the contract allows. Blocks leave for the host only when the step's result is asked
    for, or a later step needs them there. What was launched behind a step that fails computes nonsense and stores it.
    A plan must not change while its step is in flight.
    """

    asynchronous = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._device = ThreadPoolExecutor(1)
        self._under_way: list[_Flight] = []
        self.launched_ahead = 0  # steps that were launched while another was under way

    def launch(self, plan: StepPlan) -> _Flight:
        self._check_groups(plan)
        before = self._under_way[-1].future if self._under_way else None
        assert all(flight.masks.done() for flight in self._under_way), "a step before has not chosen"
        value, masks = value_of(plan, self.block_size), Future[Masks]()
        if not plan.has_masked:
            masks.set_result(Masks.none())
        flight = _Flight(self, plan, value, self._device.submit(self._run, plan, before, masks.result), masks)
        self._under_way.append(flight)
        self.launched_ahead += len(self._under_way) > 1
        assert len(self._under_way) <= 2, "more than two steps are under way"
        return flight

    @property
    def under_way(self) -> list[_Flight]:
        return self._under_way

    def land(self, flight: _Flight) -> StepResult:
        assert self._under_way.pop(0) is flight, "results are asked for out of order"
        try:
            return flight.future.result()
        finally:
            assert value_of(flight.plan, self.block_size) == flight.value, "a plan changed after its launch"
            for blocks, moves in self._groups(flight.plan):
                blocks.flush(host for _, host in moves.swap_out)
            if self.states is not None:
                self.states.flush(host for _, host in flight.plan.state_out)

    def close(self) -> None:
        self._device.shutdown()

    def _run(self, plan: StepPlan, before: Future[StepResult] | None, masks: Callable[[], Masks]) -> StepResult:
        if before is None or before.exception() is None:
            return self._compute(plan, masks)
        assert isinstance(before.exception(), StepError), before.exception()
        self.spoil(plan)
        return StepResult([SequenceResult([Sampled(-1) for _ in step.samples]) for step in plan.sequences])


class FailingRunner(DelayedRunner):
    """Blames one sequence or another for every eleventh step."""

    failures = 0
    failures_with_one_behind = 0

    def land(self, flight: _Flight) -> StepResult:
        try:
            return super().land(flight)
        except StepError:
            self.failures_with_one_behind += bool(self._under_way)
            raise

    def _compute(self, plan: StepPlan, masks: Callable[[], Masks] = Masks.none) -> StepResult:
        if (self.plans + 1) % 11 or not plan.sequences:
            return super()._compute(plan, masks)
        self.plans += 1
        self.failures += 1
        self.spoil(plan)
        raise StepError(self.failures % len(plan.sequences), "as it was told to")
