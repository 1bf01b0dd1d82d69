"""Blocks of sequences in CPU memory: how they come there and leave."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from octavo_worker.engine.sequence import Sequence, by_order
from octavo_worker.engine.step_in_flight import StepInFlight
from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool
from octavo_worker.memory.block_table import BlockTable


class HostMemory:
    """The `pool` in CPU memory, beside the one on the `device`. Its ids begin at `first_block`.

    Two kinds of sequences have blocks here, at the beginning of their tables: swapped ones, which wait, and oversized
    ones that run. Sequences that share a block share its copy.
    """

    def __init__(
        self, num_blocks: int, first_block: int, device: BlockPool, give_up: Callable[[Sequence], None]
    ) -> None:
        """`give_up` frees all memory of a sequence that waits here."""
        self._give_up = give_up
        self.pool = BlockPool(num_blocks, first_block)
        self._device = device
        self._swapped: set[Sequence] = set()
        self._cold: set[Sequence] = set()

    @property
    def num_swapped(self) -> int:
        """Sequences that wait here."""
        return len(self._swapped)

    @property
    def cold_blocks(self) -> int:
        """Blocks here that running sequences read at their place. Costs those of the one oversized request that
        runs."""
        return len({host for sequence in self._cold for host in _hosts(sequence.table)})

    # Out

    def swap_out(self, members: list[Sequence], step: StepInFlight) -> None:
        """Move the members of one group here, with everything that they have computed."""
        stored = {member: member.table.storing(member.computed) for member in members}
        image = self._copy((block for held in stored.values() for block in held), step)
        entries = {}
        for member, held in stored.items():
            hosts = array("i", (image[block] for block in held))
            self.pool.acquire(hosts)
            entries[member] = member.table.blocks[: member.table.start] + hosts
        self.pool.release(image.values())
        for member in reversed(members):
            member.table.free()
            member.table.begin(entries[member])
        self._swapped.update(members)
        self._cold.difference_update(members)

    def spill(self, members: list[Sequence], count: int, step: StepInFlight) -> None:
        """Move `count` full blocks of an oversized group here, the oldest first. Fewer when this pool is full."""
        self._make_room(count)
        count = min(count, self.pool.available)
        while count > 0:
            entry = min(member.table.start for member in members)
            leaving = [m for m in members if m.table.start == entry and entry < m.computed // m.table.block_size]
            blocks = {member.table.blocks[entry] for member in leaving}
            if not leaving or len(blocks) > self.pool.available:
                return
            image = self._copy((member.table.blocks[entry] for member in leaving), step)
            for member in leaving:
                host = array("i", (image[member.table.blocks[entry]],))
                self.pool.acquire(host)
                member.table.replace(host)
            self.pool.release(image.values())
            self._cold.update(leaving)
            count -= len(blocks)

    def _make_room(self, count: int) -> None:
        """Oversized sequences go before those that wait here: the last of these in order compute again."""
        for sequence in sorted(self._swapped, key=by_order, reverse=True):
            if self.pool.available >= count:
                return
            self._give_up(sequence)

    def _copy(self, blocks: Iterable[int], step: StepInFlight) -> dict[int, int]:
        """Copy device blocks, each once, to new ones that the caller has a reference to."""
        blocks = list(dict.fromkeys(blocks))
        image = dict(zip(blocks, self.pool.allocate(len(blocks)), strict=True))
        step.swap_out += image.items()
        self._device.guard(image, step.number)
        self.pool.guard(image.values(), step.number)
        return image

    # Back

    def leave(self, sequence: Sequence, table: array[int], copied: set[int], step: StepInFlight) -> None:
        """A sequence whose `table` was all here has its blocks on the device again, but for the oldest ones of an
        oversized sequence. Of those that are `copied` the copies begin: this very step may still send others to the
        host, and not over these."""
        cold = sequence.table.start if sequence.request.oversized else 0
        hosts = [host for host in table[cold:] if host != NULL_BLOCK]
        self.pool.guard(copied.intersection(hosts), step.number)
        self.pool.release(reversed(hosts))
        self._swapped.remove(sequence)
        if cold:
            self._cold.add(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give back what a sequence has here, if it has anything. The caller empties its table."""
        self.pool.release(reversed(_hosts(sequence.table)))
        self._swapped.discard(sequence)
        self._cold.discard(sequence)

    def share(self, parent: Sequence, child: Sequence) -> None:
        """A running fork reads the same blocks here as its parent."""
        if parent in self._cold:
            self.pool.acquire(_hosts(parent.table))
            self._cold.add(child)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Verify all accounts against all sequences. `AssertionError` if one is wrong."""
        tables = {sequence: sequence.table for sequence in sequences}
        self.pool.check_integrity(_hosts(table) for table in tables.values())
        present = {sequence for sequence, table in tables.items() if _hosts(table)}
        if {sequence for sequence in present if sequence.is_swapped} != self._swapped:
            raise AssertionError("swapped sequences are not those that wait with blocks on the host")
        if present - self._swapped != self._cold:
            raise AssertionError("sequences with host blocks are not those that are on both sides")
        for sequence in self._cold:
            if not sequence.request.oversized or len(_hosts(tables[sequence])) != tables[sequence].start:
                raise AssertionError("a running sequence lacks host blocks at the beginning of its table")


def _hosts(table: BlockTable) -> array[int]:
    """The blocks of a table that are not on the device. Those of a sliding sequence are nowhere."""
    return array("i", (block for block in table.blocks[: table.start] if block != NULL_BLOCK))
