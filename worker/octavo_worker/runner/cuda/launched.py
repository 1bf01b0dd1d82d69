"""A step of a GPU in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo_worker.contract.step import Masks, Sampled, SequenceResult, StepResult
from octavo_worker.ranks.group import Group
from octavo_worker.runner.cuda.mailbox import Slot
from octavo_worker.runner.cuda.packer import PackedStep, SpecialRow
from octavo_worker.runner.sampler import Choice, Scores


@dataclass(frozen=True, slots=True)
class Special:
    """Special samples of a step: complete on the host once the device is `done` with them."""

    rows: list[SpecialRow]
    choice: Choice
    done: torch.cuda.Event


@dataclass(slots=True)
class LaunchedStep:
    """The device's half of a step in flight: what is to be read once it is done. `before`: the slot of the step that
    the device computed before. `scores` are the log-probabilities of prompts. `logits` are kept until `choose`, if some
    samples are masked; `finish` takes them and the masks. `drafts` are those of each sequence, if a model
    guessed any; the device has guessed some of them, if it says what the first `guessed` tokens of the step were.
    What a `group` of ranks has computed is worth nothing if one of them was lost."""

    packed: PackedStep
    swaps: list[torch.cuda.Event]
    slot: Slot | None = None
    before: Slot | None = None
    special: list[Special] = field(default_factory=list)
    scores: list[tuple[int, Scores]] = field(default_factory=list)  # by the sequence's place
    drafts: Sequence[Sequence[int]] = ()
    guessed: int = 0
    logits: Tensor | None = None
    finish: Callable[[LaunchedStep, Masks], None] | None = None
    group: Group | None = None

    @property
    def is_chosen_late(self) -> bool:
        """True if some samples wait for `choose`."""
        return self.finish is not None

    def choose(self, masks: Masks) -> None:
        """Starts the choice of the masked samples, behind all that was launched."""
        assert self.finish is not None, "nothing of this step is chosen late"
        self.finish(self, masks)

    def result(self) -> StepResult:
        """Waits for the device. Raises `RankLost`."""
        for event in self.swaps:
            event.synchronize()
        if self.slot is None:
            return StepResult([])
        self.slot.done.synchronize()
        if self.group is not None:
            self.group.verify()
        answers = list(map(Sampled, self.slot.tokens[: self.packed.sizes.samples].tolist()))
        for special in self.special:
            special.done.synchronize()
            for row, answer in zip(special.rows, special.choice.result(), strict=True):
                answers[row.place] = answer
        gap_ms = self.before.done.elapsed_time(self.slot.began) if self.before else 0.0
        return StepResult(self._by_sequence(answers), gap_s=gap_ms / 1e3)

    def _by_sequence(self, answers: list[Sampled]) -> list[SequenceResult]:
        counts = self.packed.samples
        if len(answers) == len(counts) and 0 not in counts:
            results = [SequenceResult([answer]) for answer in answers]
        else:
            found = iter(answers)
            results = [SequenceResult([next(found) for _ in range(count)]) for count in counts]
        for result, drafts in zip(results, self._known_drafts(), strict=False):
            result.drafts = drafts
        for place, scores in self.scores:
            results[place].prompt_logprobs += scores.result()
        return results

    def _known_drafts(self) -> Sequence[Sequence[int]]:
        if not self.guessed:
            return self.drafts
        assert self.slot is not None
        tokens, ends = self.slot.inputs[: self.guessed].tolist(), np.cumsum(self.packed.sizes.queries).tolist()
        return [
            tokens[end - len(drafts) : end] if drafts else () for end, drafts in zip(ends, self.drafts, strict=True)
        ]
