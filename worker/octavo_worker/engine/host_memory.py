"""What sequences have in CPU memory, and how it comes there and leaves."""

from __future__ import annotations

from collections.abc import Iterable

from octavo_worker.contract.step import StepPlan
from octavo_worker.engine.sequence import Sequence, by_order
from octavo_worker.engine.step_effects import StepEffects
from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool


class HostMemory:
    """The `pool` in CPU memory, beside the one on the `device`.

    Two kinds of sequences have blocks here (`Sequence.host`): those that were swapped out and wait, and long ones that
    run, in place of the oldest blocks that their tables gave up. Sequences that share a block share its copy.
    """

    def __init__(self, num_blocks: int, device: BlockPool) -> None:
        self.pool = BlockPool(num_blocks)
        self._device = device
        self._swapped: set[Sequence] = set()
        self._cold: set[Sequence] = set()

    @property
    def num_swapped(self) -> int:
        """Sequences that wait here."""
        return len(self._swapped)

    @property
    def cold_blocks(self) -> int:
        """Blocks here that running sequences read at their place. Costs those of the one long request that runs."""
        return len({host for sequence in self._cold for host in sequence.host})

    # Out

    def swap_out(self, members: list[Sequence], step: StepEffects, plan: StepPlan) -> None:
        """Move the members of one group here, with everything that they have computed."""
        stored = {member: member.table.storing(member.computed) for member in members}
        image = self._copy((block for held in stored.values() for block in held), step, plan)
        for member, held in stored.items():
            member.host.extend([NULL_BLOCK] * (member.table.start - len(member.host)))
            self._keep(member, [image[block] for block in held])
        self.pool.release(image.values())
        for member in reversed(members):
            member.table.free()
        self._swapped.update(members)
        self._cold.difference_update(members)

    def spill(self, members: list[Sequence], count: int, step: StepEffects, plan: StepPlan) -> None:
        """Move `count` full blocks of a long group here, the oldest first. Fewer when this pool is full."""
        self._make_room(count)
        count = min(count, self.pool.available)
        while count > 0:
            entry = min(member.table.start for member in members)
            leaving = [m for m in members if m.table.start == entry and entry < m.computed // m.table.block_size]
            blocks = {member.table.blocks[entry] for member in leaving}
            if not leaving or len(blocks) > self.pool.available:
                return
            image = self._copy((member.table.blocks[entry] for member in leaving), step, plan)
            for member in leaving:
                self._keep(member, [image[member.table.blocks[entry]]])
                member.table.give_up(entry + 1)
            self.pool.release(image.values())
            self._cold.update(leaving)
            count -= len(blocks)

    def _make_room(self, count: int) -> None:
        """Long sequences go before those that wait here: the last of these in order compute again."""
        for sequence in sorted(self._swapped, key=by_order, reverse=True):
            if self.pool.available >= count:
                return
            self.release(sequence)
            sequence.start_over()

    def _copy(self, blocks: Iterable[int], step: StepEffects, plan: StepPlan) -> dict[int, int]:
        """Copy device blocks, each once, to new ones that the caller has a reference to."""
        blocks = list(dict.fromkeys(blocks))
        image = dict(zip(blocks, self.pool.allocate(len(blocks)), strict=True))
        plan.swap_out += image.items()
        self._device.guard(image, step.number)
        self.pool.guard(image.values(), step.number)
        return image

    def _keep(self, sequence: Sequence, hosts: list[int]) -> None:
        self.pool.acquire(hosts)
        sequence.host.extend(hosts)

    # Back

    def leave(self, sequence: Sequence, copied: set[int], step: StepEffects) -> None:
        """A swapped sequence has its blocks on the device again, but for the oldest ones of a long sequence. Of those
        that are `copied` the copies begin: this very step may still send others to the host, and not over these."""
        cold = sequence.table.start if sequence.request.oversized else 0
        hosts = [host for host in sequence.host[cold:] if host != NULL_BLOCK]
        self.pool.guard(copied.intersection(hosts), step.number)
        self.pool.release(reversed(hosts))
        del sequence.host[cold:]
        self._swapped.remove(sequence)
        if cold:
            self._cold.add(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give back what a sequence has here, if it has anything."""
        self.pool.release(host for host in reversed(sequence.host) if host != NULL_BLOCK)
        sequence.host.clear()
        self._swapped.discard(sequence)
        self._cold.discard(sequence)

    def share(self, parent: Sequence, child: Sequence) -> None:
        """A running fork reads the same blocks here as its parent."""
        if parent.host:
            self._keep(child, parent.host)
            self._cold.add(child)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Verify all accounts against all sequences. `AssertionError` if one is wrong."""
        present = {sequence for sequence in sequences if sequence.host}
        self.pool.check_integrity(sequence.host for sequence in present)
        if {sequence for sequence in present if not sequence.table.blocks} != self._swapped:
            raise AssertionError("swapped sequences are not those that are on the host alone")
        if present - self._swapped != self._cold:
            raise AssertionError("sequences with cold blocks are not those that are on both sides")
        for sequence in self._cold:
            if not sequence.request.oversized or len(sequence.host) != sequence.table.start:
                raise AssertionError("host blocks of a running sequence are not those that its table lacks")
