"""Which decodes of a step have leading blocks in common, for runners whose attention reads those once."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_worker.engine.plan import SequenceStep, SharedReading, StepPlan
from octavo_worker.memory.prefix_groups import PrefixGroups

Key = int | tuple[int, int]
"""A stay, with the number of its cold blocks if there are any."""


class SharedReads:
    """Groups the decodes of each plan. When a sequence begins to decode, those that the plan lacks are forgotten,
    whether they have ended or sit out: what they share counts for nothing until they are back. Of a long sequence whose
    next blocks have gone to the host the same is true: somebody else will get those that it left."""

    def __init__(self, reading: SharedReading, block_size: int) -> None:
        self._groups = PrefixGroups(reading.unit_blocks, block_size, reading.least_tokens)
        self._known: set[Key] = set()

    def group(self, plan: StepPlan) -> None:
        """Fills in `groups` and `prefix_lens` of the plan if any of its decodes are worth reading together."""
        decodes = plan.sequences[: plan.num_decodes]
        keys: list[Key] = [(step.stay, len(step.cold)) if step.cold else step.stay for step in decodes]
        if not self._known.issuperset(keys):
            here = set(keys)
            for key in self._known - here:
                self._groups.discard(key)
            for key, step in zip(keys, decodes, strict=True):
                if key not in self._known:
                    self._groups.add(key, _blocks(step), step.start)
            self._known = here
        numbers, prefix_lens = self._groups.lists(keys)
        present = sorted(set(numbers) - {-1})
        if present:
            place = {number: at for at, number in enumerate(present)} | {-1: -1}
            plan.groups = [place[number] for number in numbers]
            plan.prefix_lens = [prefix_lens[number] for number in present]


def _blocks(step: SequenceStep) -> Sequence[int]:
    """Its blocks wherever they lie: those of the host are negative."""
    return [*(~block for block in step.cold), *step.block_table[len(step.cold) :]] if step.cold else step.block_table
