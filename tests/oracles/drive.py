"""The real scheduler over a real runner, without the processes around them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from clocks import Clock
from followed import matchers_of

from octavo_worker.contract.messages import AddRequest, EngineSampling, EngineStats, Grammar, Logprob, SequenceInput
from octavo_worker.contract.step import Launched, ModelRunner, StepPlan
from octavo_worker.engine.config import SchedulerConfig
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.states.states import StateSizes


@dataclass
class Answers:
    """By request id; `tokens` and `logprobs` also by sequence index. `most_blocks` were in use in some step, and
    `cold_steps` read blocks on the host."""

    tokens: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    logprobs: dict[str, dict[int, list[Logprob]]] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[Logprob | None] | None] = field(default_factory=dict)
    stats: EngineStats = field(default_factory=EngineStats)
    most_blocks: int = 0
    cold_steps: int = 0


def states_of(runner: ModelRunner, slots: int | None = None) -> StateSizes | None:
    """Slots of a runner, or its first ones; None: its model keeps no states."""
    if not runner.num_state_slots:
        return None
    return StateSizes(slots or runner.num_state_slots, runner.num_host_state_slots, runner.first_host_state_slot)


class Engine:
    """One scheduler; its prefix cache lives as long as it does, so every engine starts cold."""

    def __init__(
        self, runner: ModelRunner, *, num_blocks: int | None = None, token_budget: int = 512, **options: Any
    ) -> None:
        self.runner = runner
        self.scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=num_blocks or runner.num_blocks,
                block_size=runner.block_size,
                max_model_len=runner.max_model_len,
                vocab_size=runner.vocab_size,
                token_budget=token_budget,
                **{
                    "max_running": 64,
                    "timer": Clock(),
                    "first_host_block": runner.first_host_block,
                    "window": runner.window,
                    "reads_host": runner.reads_host,
                    "shared_reading": runner.shared_reading,
                    "states": states_of(runner),
                    "windows": runner.windows,
                }
                | options,
            )
        )
        self.asynchronous = runner.asynchronous
        self._most_blocks = self._cold_steps = 0

    def launch(self, plan: StepPlan) -> Launched:
        """As the runner, with a note of what the step needs."""
        self._most_blocks = max(self._most_blocks, self.scheduler.pool.used)
        self._cold_steps += any(step.block_table[0] >= self.runner.first_host_block for step in plan.sequences)
        return self.runner.launch(plan)

    def run(self, requests: Sequence[AddRequest]) -> Answers:
        """All requests at once, to their ends. Those with grammars are of the bundled model."""
        answers = Answers()
        for request in requests:
            self.scheduler.add(request, None if request.grammar is None else matchers_of(request))
            answers.tokens[request.id] = {s.index: list(s.tokens) for s in request.sequences}
            answers.logprobs[request.id] = {s.index: [] for s in request.sequences}
        self._most_blocks = self._cold_steps = 0
        pipeline = Pipeline(self, self.scheduler)  # type: ignore[arg-type]
        while pipeline.advance():
            self._collect(answers)
        self._collect(answers)
        self.scheduler.check_integrity()
        answers.most_blocks, answers.cold_steps = self._most_blocks, self._cold_steps
        return answers

    def _collect(self, answers: Answers) -> None:
        output = self.scheduler.take_output()
        assert not output.failed, output.failed
        answers.stats = output.stats
        for started in output.started:
            answers.cached[started.id] = started.cached_tokens
            answers.prompt_logprobs[started.id] = started.prompt_logprobs
        for token in output.tokens:
            answers.tokens[token.id][token.index].append(token.token)
            if token.logprob is not None:
                answers.logprobs[token.id][token.index].append(token.logprob)


def request(
    id: str,
    prompt: list[int],
    *,
    n: int = 1,
    resumed: dict[int, list[int]] | None = None,
    grammar: Grammar | None = None,
    **sampling: object,
) -> AddRequest:
    """A request for `n` sequences, greedy unless told otherwise; `resumed` gives tokens already published."""
    params = EngineSampling(**{"seed": 0, "max_tokens": 24, "temperature": 0.0, **sampling})  # type: ignore[arg-type]
    sequences = [SequenceInput(index, (resumed or {}).get(index, [])) for index in range(n)]
    return AddRequest(id, array("I", prompt), sequences, params, grammar=grammar)


def assert_same(one: Answers, other: Answers) -> None:
    """Token for token, and bit for bit in their log-probabilities."""
    assert one.tokens == other.tokens
    assert one.logprobs == other.logprobs
    assert one.prompt_logprobs == other.prompt_logprobs


@dataclass(frozen=True)
class Orphans:
    """Requests of which another engine has said a part: each sequence of `answers` up to a `cut`."""

    asked: Sequence[AddRequest]
    answers: Answers
    cuts: dict[str, dict[int, int]]

    @classmethod
    def of(cls, asked: Sequence[AddRequest], answers: Answers, rng: random.Random) -> Self:
        cuts = {one.id: {i: rng.randrange(len(said)) for i, said in answers.tokens[one.id].items()} for one in asked}
        return cls(asked, answers, cuts)

    @property
    def requests(self) -> list[AddRequest]:
        return [
            request(
                one.id,
                list(one.prompt),
                n=len(one.sequences),
                resumed={i: self.answers.tokens[one.id][i][:cut] for i, cut in self.cuts[one.id].items()},
                grammar=one.grammar,
                **{name: getattr(one.sampling, name) for name in one.sampling.__struct_fields__},
            )
            for one in self.asked
        ]

    def assert_gone_on(self, heirs: Answers) -> None:
        """As if nothing had been cut."""
        for one in self.asked:
            assert heirs.tokens[one.id] == self.answers.tokens[one.id]
            for i, cut in self.cuts[one.id].items():
                assert heirs.logprobs[one.id][i] == self.answers.logprobs[one.id][i][cut:]
