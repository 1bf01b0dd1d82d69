"""Runs a scheduler against the fake model, and says what must come out without any paging."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from clocks import Clock
from fake_runner import FakeRunner, candidates, next_token

from octavo_worker.contract.messages import (
    AddRequest,
    EngineSampling,
    RequestFailed,
    RequestResumed,
    RequestStarted,
    SequenceInput,
    StepOutput,
)
from octavo_worker.engine.beams.search import BeamSearch
from octavo_worker.engine.config import SchedulerConfig
from octavo_worker.engine.grammar import Matcher
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.states.states import StateSizes
from octavo_worker.engine.stop import StopRules


def make_request(
    id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 8,
    n: int = 1,
    published: dict[int, list[int]] | None = None,
    salt: bytes = b"",
    priority: int = 1,
    deadline: float | None = None,
    seed: int = 7,
    **sampling: Any,
) -> AddRequest:
    sequences = [SequenceInput(i, tokens) for i, tokens in (published or {i: [] for i in range(n)}).items()]
    params = EngineSampling(seed=seed, max_tokens=max_tokens, **sampling)
    return AddRequest(id, array("I", prompt), sequences, params, salt=salt, priority=priority, deadline=deadline)


def expected_tokens(
    request: AddRequest, index: int, *, vocab_size: int = 997, max_model_len: int = 4096, window: int = 0
) -> list[int]:
    """All tokens of a sequence, published ones included, by the fake model without an engine."""
    sampling = request.sampling
    output: list[int] = []
    limit = min(sampling.max_tokens, max_model_len - len(request.prompt))
    while len(output) < limit:
        gated = len(output) < sampling.min_tokens
        forbidden = sampling.stop_token_ids if gated else ()
        token = next_token([*request.prompt, *output][-window:], sampling.seed, index, vocab_size, forbidden)
        output.append(token)
        if token in sampling.stop_token_ids and not gated:
            break
    return output


def expected_beams(
    request: AddRequest, *, vocab_size: int = 997, max_model_len: int = 4096, window: int = 0
) -> list[list[int]]:
    """The beams of the fake model without an engine."""
    sampling, prompt = request.sampling, request.prompt
    assert sampling.beam is not None
    rules = StopRules.of(sampling, prompt_len=len(prompt), max_model_len=max_model_len, vocab_size=vocab_size)
    search = BeamSearch(sampling.beam, rules)
    live: list[list[int]] = [[]]
    while live:
        forbidden = rules.forbidden(len(live[0]))
        histories = [[*prompt, *tokens][-window:] for tokens in live]
        said = [candidates(history, search.num_candidates, vocab_size, forbidden) for history in histories]
        live = [[*live[parent], token] for parent, token in search.advance(live, said)]
    return [found.tokens for found in search.results(len(request.sequences))]


@dataclass
class Driver:
    """A scheduler and a fake runner over the same pool, with everything they said so far."""

    scheduler: Scheduler
    runner: FakeRunner
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    reasons: dict[tuple[str, int], str] = field(default_factory=dict)
    started: dict[str, RequestStarted] = field(default_factory=dict)
    failed: dict[str, RequestFailed] = field(default_factory=dict)
    resumed: dict[str, RequestResumed] = field(default_factory=dict)  # the latest of each request

    def __post_init__(self) -> None:
        self.pipeline = Pipeline(self.runner, self.scheduler)

    @classmethod
    def create(
        cls,
        num_blocks: int,
        block_size: int = 16,
        *,
        runner: dict[str, Any] | None = None,
        device: type[FakeRunner] = FakeRunner,
        **scheduler: Any,
    ) -> Driver:
        fake = device(num_blocks, block_size, **(runner or {}))
        for name in ("num_host_blocks", "first_host_block", "window", "windows", "reads_host", "features"):
            scheduler.setdefault(name, getattr(fake, name))
        if fake.num_state_slots:
            host = fake.num_host_state_slots, fake.first_host_state_slot
            scheduler["states"] = StateSizes(fake.num_state_slots, *host, scheduler.pop("state_interval", 0))
        options = {"token_budget": 256, "max_running": 32, "watermark": 0.0, "timer": Clock()} | scheduler
        options = {name: value for name, value in options.items() if value is not None}  # None: the default
        return cls(
            Scheduler(
                SchedulerConfig(
                    num_blocks=num_blocks,
                    block_size=block_size,
                    max_model_len=fake.max_model_len,
                    vocab_size=fake.vocab_size,
                    **options,
                )
            ),
            fake,
        )

    def add(self, request: AddRequest, matchers: list[Matcher] | None = None) -> None:
        self.scheduler.add(request, matchers)
        for sequence in request.sequences:
            self.tokens[request.id, sequence.index] = list(sequence.tokens)

    def step(self) -> StepOutput:
        self.pipeline.advance()
        output = self.scheduler.take_output()
        self.record(output)
        self.scheduler.check_integrity()
        return output

    @property
    def busy(self) -> bool:
        return self.scheduler.has_requests or self.scheduler.has_output or not self.pipeline.is_empty

    def run(self, max_steps: int = 10_000) -> None:
        """Step until nothing is left."""
        while self.busy:
            max_steps -= 1
            assert max_steps > 0, "the engine does not come to an end"
            self.step()
        for group in self.scheduler.kv.groups:
            assert group.pool.used == 0, "blocks leaked"
        states = self.scheduler.kv.states
        assert states is None or states.pool.used == len(states.snapshots.pins.blocks), "slots leaked"

    def record(self, output: StepOutput) -> None:
        for token in output.tokens:
            key = token.id, token.index
            assert key not in self.reasons, "a token after the last one"
            self.tokens[key].append(token.token)
            if token.finish_reason is not None:
                self.reasons[key] = token.finish_reason
        for started in output.started:
            assert started.id not in self.started, "a request started twice"
            self.started[started.id] = started
        for resumed in output.resumed:
            self.resumed[resumed.id] = resumed
        for failed in output.failed:
            assert failed.id not in self.failed, "a request failed twice"
            self.failed[failed.id] = failed


def prompt(length: int, start: int = 0) -> list[int]:
    """Consecutive tokens."""
    return [(start + i) % 900 for i in range(length)]


def assert_complete(driver: Driver, *requests: AddRequest) -> None:
    """No request failed, and every sequence has all tokens of the fake model."""
    for request in requests:
        assert request.id not in driver.failed
        for sequence in request.sequences:
            expected = expected_tokens(request, sequence.index, max_model_len=driver.runner.max_model_len)
            assert driver.tokens[request.id, sequence.index] == expected
