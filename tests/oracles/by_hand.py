"""Steps planned by hand: a sequence has blocks and a slot of its own, and its prompt is cut as a test says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.state import StateMove
from octavo_worker.contract.step import ModelRunner, SampleSpec, SequenceStep, StepPlan


@dataclass
class Said:
    """A sequence on its way: `text` are its prompt and its answer, with a log-probability of each token of the
    latter."""

    text: list[int]
    pieces: list[int]
    blocks: list[int]
    slot: int
    done: int = 0
    logprobs: list[float] = field(default_factory=list)


class ByHand:
    """Greedy answers of a runner."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._blocks, self._slots = count(1), count(1)

    def answers(self, prompts: Sequence[list[int]], new: int, piece: int = 1 << 30) -> list[Said]:
        """Answers to all prompts in one batch, each in pieces of so many tokens."""
        all_said = [self._begin(prompt, piece, new) for prompt in prompts]
        length = {id(said): len(said.text) + new for said in all_said}
        while going := [said for said in all_said if len(said.text) < length[id(said)]]:
            self._step(going)
        return all_said

    def _begin(self, prompt: list[int], piece: int, new: int) -> Said:
        pieces = [piece] * (len(prompt) // piece) + [len(prompt) % piece] * bool(len(prompt) % piece)
        blocks = -(-(len(prompt) + new) // self.runner.block_size)
        return Said(list(prompt), pieces, [next(self._blocks) for _ in range(blocks)], next(self._slots))

    def _step(self, going: Sequence[Said]) -> None:
        decodes = [said for said in going if not said.pieces]
        ordered = [*decodes, *(said for said in going if said.pieces)]
        steps = [self._step_of(said) for said in ordered]
        result = self.runner.launch(StepPlan(steps, len(decodes))).result()
        for said, step, found in zip(ordered, steps, result.sequences, strict=True):
            said.done = step.end
            for sampled in found.samples:
                said.text.append(sampled.token)
                assert sampled.logprob is not None
                said.logprobs.append(sampled.logprob.logprob)

    def _step_of(self, said: Said) -> SequenceStep:
        tokens = said.text[said.done : said.done + (said.pieces.pop(0) if said.pieces else 1)]
        move = StateMove(said.slot if said.done else 0, said.slot)
        spec = SampleSpec(EngineSampling(seed=0, max_tokens=99, temperature=0.0, logprobs=0), 0, (), ())
        samples = [] if said.pieces else [spec]
        return SequenceStep(tokens, said.done, said.blocks, samples, state=move)
