"""Drafts of an EAGLE head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from octavo_worker.contract.step import SampleRow, SequenceStep, StepPlan
from octavo_worker.model.batch import ragged_batch
from octavo_worker.model.eagle.head import EagleHead
from octavo_worker.model.transfer import on_device
from octavo_worker.runner.draft_model import DraftModel
from octavo_worker.runner.sampler import draw


class EagleDrafts(DraftModel):
    """A draft model whose keys and values are in the slot before a token's, where its features are.

    The last slot of a block depends on the token behind the block, so of sequences that share it, the last to compute
    that token has its own there: one key of a context is another's for the rest of them.
    """

    @property
    def _head(self) -> EagleHead:
        assert isinstance(self.model, EagleHead)
        return self.model

    def _move(self, plan: StepPlan) -> None:
        super()._move(plan)
        self._head.features.move(plan, self._first_host_block)

    def fill_in(self, steps: Sequence[SequenceStep]) -> list[SequenceStep]:
        found = super().fill_in(steps)
        # What it computed of drafts was of its own states: the target leaves better ones.
        drafted = (step for step in steps if step.wanted)
        self._note_writes([replace(step, tokens=step.tokens[1:], start=step.start + 1) for step in drafted])
        return found

    @torch.inference_mode()
    def _compute(self, parts: Sequence[SequenceStep], rows: Sequence[SampleRow]) -> list[int]:
        shifted = [one for one in map(_shifted, parts) if one.tokens]
        if not shifted:
            self._note_parts(parts)
            return []
        head = self._head
        batch = ragged_batch(shifted, self._block_size, head.vocab_size)
        last = batch.query_start[1 : len(rows) + 1].long() - 1
        if self._place is not None:
            batch, last = self._place(batch), last.to(head.device)
        states = head.forward(batch, last if rows else batch.positions[:1] * 0)
        self._note_parts(parts)
        if not rows:
            return []
        head.features.write(self._ends(parts[: len(rows)]), states)
        return [max(0, token) for token in draw(head.logits(states).float().contiguous(), rows).tolist()]

    def _ends(self, parts: Sequence[SequenceStep]) -> Tensor:
        """The slots of the last tokens of some parts: there the next row looks for features."""
        size = self._block_size
        slots = [part.block_table[(part.end - 1) // size] * size + (part.end - 1) % size for part in parts]
        return on_device(slots, torch.int64, self.model.device)


def _shifted(part: SequenceStep) -> SequenceStep:
    """The same tokens in the places of the features that they go with. The first token of a text goes with none."""
    if part.start == 0:
        return replace(part, tokens=part.tokens[1:])
    return replace(part, start=part.start - 1)
