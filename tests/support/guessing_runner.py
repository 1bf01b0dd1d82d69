"""Fake runners that guess drafts themselves, as one with a draft model does."""

from __future__ import annotations

import random
from typing import Any

from fake_runner import DelayedRunner, FailingRunner, FakeRunner, next_token
from msgspec.structs import replace

from octavo_worker.contract.step import UNKNOWN, Masks, SequenceStep, StepPlan, StepResult, StepSeconds


class Guessing(FakeRunner):
    """Each token that it guesses is right with probability `right` if those before are. Some it does not guess."""

    right = 0.7
    step_seconds = StepSeconds([(1, 1.0)], [(4096, 1.0)], drafting=[(1, 1e-9)])

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._rng = random.Random(1)
        self.left_out = 0

    def _compute(self, plan: StepPlan, masks: Any = Masks.none) -> StepResult:
        steps = [self._guess(step) if step.wanted else step for step in plan.sequences]
        result = super()._compute(replace(plan, sequences=steps), masks)
        for planned, step, answer in zip(plan.sequences, steps, result.sequences, strict=True):
            answer.drafts = step.drafts if planned.wanted else ()
        return result

    def _guess(self, step: SequenceStep) -> SequenceStep:
        assert set(step.drafts) == {UNKNOWN}
        assert step.follows is None
        spec = step.samples[0]
        history = [*spec.prompt, *spec.output][: step.start]
        history.append(step.tokens[0])
        if self._rng.random() < 0.1:
            self.left_out += 1
            return replace(step, tokens=step.tokens[:1], samples=step.samples[:1], sample_rows=())
        for number in range(step.wanted):
            asked = replace(step, tokens=history[step.start :]).sample_row(number)
            seen, forbidden = history[-self.window :] if self.window else history, set(asked.forbidden)
            token = next_token(seen, asked.params.seed, asked.index, self.vocab_size, forbidden)
            history.append(token if self._rng.random() < self.right else token ^ 1)
        return replace(step, tokens=history[step.start :])


class GuessingLate(Guessing, DelayedRunner):
    """On a device of its own."""


class GuessingAndFailing(Guessing, FailingRunner):
    """Some of its steps fail."""
