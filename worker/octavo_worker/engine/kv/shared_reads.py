"""Which sequences of a step have leading blocks in common, for runners whose attention reads those once."""

from __future__ import annotations

from octavo_worker.contract.step import SequenceStep, SharedReading, count_host_blocks
from octavo_worker.memory.prefix_groups import PrefixGroups

Key = int | tuple[int, int]
"""A run, with the number of its host blocks if there are any; that of a prompt's end is negative."""


class SharedReads:
    """Groups the decodes of each plan, unless they have too many drafts, and the short ends of prompts: many of those
    come at once where a long beginning is cached. When a sequence begins to decode or to end its prompt, those that the
    plan lacks are forgotten, whether they have ended or sit out: what they share counts for nothing until they are
    back. So is an oversized sequence when more of its blocks have gone to the host: other sequences will get those that
    it left."""

    def __init__(self, reading: SharedReading, block_size: int, first_host_block: int) -> None:
        self._reading, self._block_size = reading, block_size
        self._first_host_block = first_host_block
        self._groups = PrefixGroups(reading.unit_blocks, block_size, reading.least_tokens)
        self._known: set[Key] = set()

    def group(self, steps: list[SequenceStep], num_decodes: int) -> tuple[list[int], list[int]]:
        """`groups` and `prefix_lens` of a plan; both are empty if none of its sequences are worth reading together."""
        first = self._first_host_block
        keys: list[Key | None] = [
            step.run_id if step.block_table[0] < first and not step.sample_rows else self._key(step)
            for step in steps[:num_decodes]
        ]
        keys += [~step.run_id if self._joins(step) else None for step in steps[num_decodes:]]
        here = {key for key in keys if key is not None}
        if not self._known.issuperset(here):
            for absent in self._known - here:
                self._groups.discard(absent)
            for key, step in zip(keys, steps, strict=True):
                if key is not None and key not in self._known:
                    self._groups.add(key, step.block_table, step.start)
            self._known = here
        numbers, prefix_lens = self._groups.lists(keys)
        present = sorted(set(numbers) - {-1})
        place = {number: at for at, number in enumerate(present)} | {-1: -1}
        return [place[number] for number in numbers] if present else [], [prefix_lens[number] for number in present]

    def _key(self, step: SequenceStep) -> Key | None:
        if len(step.tokens) > max(1, self._reading.most_queries):
            return None
        hosts = count_host_blocks(step.block_table, self._first_host_block)
        return (step.run_id, hosts) if hosts else step.run_id

    def _joins(self, prompt: SequenceStep) -> bool:
        few = len(prompt.tokens) <= self._reading.most_queries
        on_device = prompt.block_table[0] < self._first_host_block
        return few and on_device and prompt.start >= self._reading.unit_blocks * self._block_size
