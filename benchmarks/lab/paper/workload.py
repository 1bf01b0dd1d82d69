"""Real lengths, and an engine without weights that runs them."""

from __future__ import annotations

import csv
import gzip
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_worker.contract.messages import AddRequest, BeamOptions, EngineSampling, SequenceInput
from octavo_worker.contract.step import Sampled, SampleSpec, SequenceResult, StepPlan, StepResult
from octavo_worker.engine.config import SchedulerConfig
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.memory.cost import PreemptionPolicy

MAX_LEN = 2048  # of OPT-13B, the paper's model in section 6
MEMORY_TOKENS = 15_700  # KV slots that 12 GB hold for it, table 1
VOCABULARY = 50_000


@dataclass(frozen=True)
class Lengths:
    prompt: int
    output: int


def read_lengths(prompts: Path, outputs: Path) -> list[Lengths]:
    """Requests that fit into the model, in the order of the files, as many as the shorter file has."""
    pairs = zip(_column(prompts, "input_tokens"), _column(outputs, "output_tokens"), strict=False)
    return [Lengths(*pair) for pair in pairs if min(pair) > 0 and sum(pair) <= MAX_LEN]


def _column(path: Path, name: str) -> list[int]:
    with gzip.open(path, "rt") as file:
        return [int(row[name]) for row in csv.DictReader(file)]


@dataclass(frozen=True)
class Memory:
    """What the batch holds in one step. `slots` are in distinct blocks, `stored` of them have a token; without sharing
    it would take `unshared_blocks`."""

    running: int
    blocks: int
    unshared_blocks: int
    stored: int
    slots: int


class Simulation:
    """Runs requests that all arrive at once. Prompts and tokens are random, so nothing is shared by accident.

    Beams need log-probabilities: the gaps between the candidates of a hypothesis are drawn from an exponential
    distribution with mean `gap`. How far beams agree depends on it, so their figures are of this model of a model.
    """

    def __init__(self, block_size: int, *, memory_tokens: int = MEMORY_TOKENS, gap: float = 0.7, **options: object):
        self.block_size = block_size
        self._rng = random.Random(1)
        self._gap = gap
        self.scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=memory_tokens // block_size + 1,
                block_size=block_size,
                max_model_len=MAX_LEN,
                vocab_size=VOCABULARY,
                token_budget=8192,
                max_running=4096,
                policy=PreemptionPolicy("recompute"),
                **options,
            )
        )

    def add(self, name: str, lengths: Lengths, *, n: int = 1, beam: bool = False) -> None:
        sampling = EngineSampling(seed=1, max_tokens=lengths.output, beam=BeamOptions(n) if beam else None)
        prompt = [self._rng.randrange(VOCABULARY) for _ in range(lengths.prompt)]
        self.scheduler.add(AddRequest(name, array("I", prompt), [SequenceInput(i) for i in range(n)], sampling))

    def steps(self) -> Iterator[StepPlan]:
        """Every plan, before it is executed."""
        while (plan := self.scheduler.plan()) is not None:
            yield plan
            answers = [SequenceResult([self._answer(spec) for spec in step.samples]) for step in plan.sequences]
            self.scheduler.commit(plan, StepResult(answers))
            self.scheduler.take_output()

    def memory(self, plan: StepPlan) -> Memory:
        filled: dict[int, int] = {}
        unshared, size = 0, self.block_size
        for step in plan.sequences:
            length = step.start + len(step.tokens)
            unshared += len(step.block_table)
            for slot, block in enumerate(step.block_table):
                filled[block] = max(filled.get(block, 0), min(size, length - slot * size))
        running = sum(max(1, len(step.samples)) for step in plan.sequences)
        return Memory(running, len(filled), unshared, sum(filled.values()), len(filled) * size)

    def _answer(self, spec: SampleSpec) -> Sampled:
        if not spec.candidates:
            return Sampled(self._rng.randrange(VOCABULARY))
        tokens = self._rng.sample(range(VOCABULARY), spec.candidates)
        logprob, found = 0.0, []
        for token in tokens:
            logprob -= self._rng.expovariate(1 / self._gap)
            found.append((token, logprob))
        return Sampled(0, None, found)


def measure(simulation: Simulation, every: int = 4) -> list[Memory]:
    """The memory of every fourth step while requests wait, so that neither the start nor the end counts."""
    seen = []
    for number, plan in enumerate(simulation.steps()):
        if number % every == 0 and plan.num_decodes and simulation.scheduler.stats().waiting:
            seen.append(simulation.memory(plan))
    return seen


def mean(values: Sequence[Memory], of: Callable[[Memory], float]) -> float:
    return sum(map(of, values)) / max(1, len(values))
