"""Which decodes of a step have leading blocks in common, for runners whose attention reads those once."""

from __future__ import annotations

from octavo_worker.engine.plan import SharedReading, StepPlan
from octavo_worker.memory.prefix_groups import PrefixGroups


class SharedReads:
    """Groups the decodes of each plan. When a sequence begins to decode, those that the plan lacks are forgotten,
    whether they have ended or sit out: what they share counts for nothing until they are back."""

    def __init__(self, reading: SharedReading, block_size: int) -> None:
        self._groups = PrefixGroups(reading.unit_blocks, block_size, reading.least_tokens)
        self._stays: set[int] = set()

    def group(self, plan: StepPlan) -> None:
        """Fills in `groups` and `prefix_lens` of the plan if any of its decodes are worth reading together."""
        decodes = plan.sequences[: plan.num_decodes]
        stays = [step.stay for step in decodes]
        if not self._stays.issuperset(stays):
            here = set(stays)
            for stay in self._stays - here:
                self._groups.discard(stay)
            for step in decodes:
                if step.stay not in self._stays:
                    self._groups.add(step.stay, step.block_table, step.start)
            self._stays = here
        numbers, prefix_lens = self._groups.lists(stays)
        present = sorted(set(numbers) - {-1})
        if present:
            place = {number: at for at, number in enumerate(present)} | {-1: -1}
            plan.groups = [place[number] for number in numbers]
            plan.prefix_lens = [prefix_lens[number] for number in present]
