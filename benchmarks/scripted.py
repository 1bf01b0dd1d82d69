"""A model that computes every step in full and says what it is told to."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_worker.contract.step import Launched, Masks, ModelRunner, StepPlan, StepResult


class Told:
    """A step whose samples are those of scripts."""

    def __init__(self, launched: Launched, plan: StepPlan, scripts: Mapping[int, Sequence[int]]) -> None:
        self._launched, self._plan, self._scripts = launched, plan, scripts

    def choose(self, masks: Masks) -> None:
        self._launched.choose(masks)

    def result(self) -> StepResult:
        result = self._launched.result()
        for step, answer in zip(self._plan.sequences, result.sequences, strict=True):
            rows = zip(step.samples, step.rows, answer.samples, strict=False)  # fewer where a model guessed nothing
            for spec, row, sampled in rows:
                script, at = self._scripts[spec.params.seed], step.start + row + 1 - len(spec.prompt)
                sampled.token = script[at] if at < len(script) else 0
        return result


class ScriptedRunner:
    """A runner whose sequences say what `scripts` have under their seeds. What it computes costs as ever: figures are
    those of a model that would say the same."""

    def __init__(self, runner: ModelRunner, scripts: Mapping[int, Sequence[int]]) -> None:
        self._runner, self._scripts = runner, scripts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, plan: StepPlan) -> Told:
        return Told(self._runner.launch(plan), plan, self._scripts)


class ReplayProposer:
    """Knows the scripts by the prompts of their sequences; each token that it guesses is right with probability
    `right` if those before are. It always has a guess."""

    def __init__(self, scripts: Mapping[tuple[int, ...], Sequence[int]], right: float) -> None:
        self._scripts, self._right, self._rng = scripts, right, random.Random(0)

    def begin(self, prompt: Sequence[int], output: Sequence[int], salt: bytes) -> ReplayDrafter:
        return ReplayDrafter(self._scripts[tuple(prompt)], len(output), self._right, self._rng)


class ReplayDrafter:
    def __init__(self, script: Sequence[int], said: int, right: float, rng: random.Random) -> None:
        self._script, self._said, self._right, self._rng = script, said, right, rng

    def append(self, tokens: Sequence[int]) -> None:
        self._said += len(tokens)

    def propose(self, most: int) -> Sequence[int]:
        coming = self._script[self._said : self._said + most]
        return [token if self._rng.random() < self._right else token ^ 1 for token in coming]

    def fork(self) -> ReplayDrafter:
        return ReplayDrafter(self._script, self._said, self._right, self._rng)

    def close(self) -> None:
        """Nothing outlives the sequence."""
