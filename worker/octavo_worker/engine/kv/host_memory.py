"""Blocks of sequences in CPU memory: how they come there and leave."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from octavo_worker.engine.sequence import Sequence, by_order
from octavo_worker.engine.step_in_flight import GroupMoves, StepInFlight
from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool
from octavo_worker.memory.block_table import BlockTable


class HostMemory:
    """The `pool` in CPU memory, beside the one on the `device`. Its ids begin at `first_block`.

    Two kinds of sequences have blocks here, at the beginning of their tables: swapped ones, which wait, and oversized
    ones that run. Sequences that share a block share its copy.
    """

    def __init__(
        self,
        num_blocks: int,
        first_block: int,
        device: BlockPool,
        table_of: Callable[[Sequence], BlockTable],
        moves_of: Callable[[StepInFlight], GroupMoves],
        give_up: Callable[[Sequence], None],
    ) -> None:
        """`table_of` is the table of a sequence whose blocks these are, `moves_of` a step's moves of them; `give_up`
        frees all memory of a sequence that waits here."""
        self._table_of, self._moves_of, self._give_up = table_of, moves_of, give_up
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
        return len({host for sequence in self._cold for host in _hosts(self._table_of(sequence))})

    # Out

    def swap_out(self, members: list[Sequence], step: StepInFlight) -> None:
        """Move the members of one group here, with everything that they have computed."""
        stored = {member: self._table_of(member).storing(member.computed) for member in members}
        image = self._copy((block for held in stored.values() for block in held), step)
        entries = {}
        for member, held in stored.items():
            hosts = array("i", (image[block] for block in held))
            self.pool.acquire(hosts)
            table = self._table_of(member)
            entries[member] = table.blocks[: table.start] + hosts
        self.pool.release(image.values())
        for member in reversed(members):
            self._table_of(member).free()
            self._table_of(member).begin(entries[member])
        self._swapped.update(members)
        self._cold.difference_update(members)

    def spill(self, members: list[Sequence], count: int, step: StepInFlight) -> None:
        """Move `count` full blocks of an oversized group here, the oldest first. Fewer when this pool is full."""
        self._make_room(count)
        count = min(count, self.pool.available)
        while count > 0:
            tables = {member: self._table_of(member) for member in members}
            entry = min(table.start for table in tables.values())
            leaving = [m for m, t in tables.items() if t.start == entry and entry < m.computed // t.block_size]
            blocks = {tables[member].blocks[entry] for member in leaving}
            if not leaving or len(blocks) > self.pool.available:
                return
            image = self._copy((tables[member].blocks[entry] for member in leaving), step)
            for member in leaving:
                host = array("i", (image[tables[member].blocks[entry]],))
                self.pool.acquire(host)
                tables[member].replace(host)
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
        self._moves_of(step).swap_out += image.items()
        self._device.guard(image, step.number)
        self.pool.guard(image.values(), step.number)
        return image

    # Back

    def leave(self, sequence: Sequence, table: array[int], copied: Iterable[int], step: StepInFlight) -> None:
        """A sequence whose `table` was all here has its blocks on the device again, but for the oldest ones of an
        oversized sequence. Of those that are `copied` the copies begin: this very step may still send others to the
        host, and not over these."""
        cold = len(_hosts(self._table_of(sequence)))
        hosts = [host for host in table[cold:] if host != NULL_BLOCK]
        self.pool.guard(set(hosts).intersection(copied), step.number)
        self.pool.release(reversed(hosts))
        self._swapped.remove(sequence)
        if cold:
            self._cold.add(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give back what a sequence has here, if it has anything. The caller empties its table."""
        self.pool.release(reversed(_hosts(self._table_of(sequence))))
        self._swapped.discard(sequence)
        self._cold.discard(sequence)

    def share(self, parent: Sequence, child: Sequence) -> None:
        """A running fork reads the same blocks here as its parent."""
        if parent in self._cold:
            self.pool.acquire(_hosts(self._table_of(parent)))
            self._cold.add(child)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Verify all accounts against all sequences. `AssertionError` if one is wrong."""
        tables = {sequence: self._table_of(sequence) for sequence in sequences}
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
