"""Which sequences of a step have leading blocks in common, for runners whose attention reads those once."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_worker.contract.step import SequenceStep, SharedReading, StepPlan
from octavo_worker.memory.prefix_groups import PrefixGroups

Key = int | tuple[int, int]
"""A stay, with the number of its cold blocks if there are any; that of a prompt's end is negative."""


class SharedReads:
    """Groups the decodes of each plan and the short ends of prompts: many of those come at once where a long beginning
    is cached. When a sequence begins to decode or to end its prompt, those that the plan lacks are forgotten, whether
    they have ended or sit out: what they share counts for nothing until they are back. Of a long sequence whose next
    blocks have gone to the host the same is true: somebody else will get those that it left."""

    def __init__(self, reading: SharedReading, block_size: int) -> None:
        self._reading, self._block_size = reading, block_size
        self._groups = PrefixGroups(reading.unit_blocks, block_size, reading.least_tokens)
        self._known: set[Key] = set()

    def group(self, plan: StepPlan) -> None:
        """Fills in `groups` and `prefix_lens` of the plan if any of its sequences are worth reading together."""
        decodes, prompts = plan.sequences[: plan.num_decodes], plan.sequences[plan.num_decodes :]
        keys: list[Key | None] = [(step.run_id, len(step.cold)) if step.cold else step.run_id for step in decodes]
        keys += [~step.run_id if self._joins(step) else None for step in prompts]
        here = {key for key in keys if key is not None}
        if not self._known.issuperset(here):
            for key in self._known - here:
                self._groups.discard(key)
            for key, step in zip(keys, plan.sequences, strict=True):
                if key is not None and key not in self._known:
                    self._groups.add(key, _blocks(step), step.start)
            self._known = here
        numbers, prefix_lens = self._groups.lists(keys)
        present = sorted(set(numbers) - {-1})
        if present:
            place = {number: at for at, number in enumerate(present)} | {-1: -1}
            plan.groups = [place[number] for number in numbers]
            plan.prefix_lens = [prefix_lens[number] for number in present]

    def _joins(self, prompt: SequenceStep) -> bool:
        few = len(prompt.tokens) <= self._reading.most_queries
        return few and not prompt.cold and prompt.start >= self._reading.unit_blocks * self._block_size


def _blocks(step: SequenceStep) -> Sequence[int]:
    """Its blocks wherever they lie: those of the host are negative."""
    return [*(~block for block in step.cold), *step.block_table[len(step.cold) :]] if step.cold else step.block_table
