"""Blocks of one group as the fake model keeps them: one (position, token) pair a slot, the host's behind the device's.

A wrong table, a missed copy-on-write, a stale prefix hit or a block that was given back too early changes what is read,
or trips one of the assertions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from octavo_worker.contract.step import SequenceStep
from octavo_worker.contract.windows import BlockMoves

GAP = 3
"""Ids between the device's blocks and the host's, as on a GPU whose memory is mapped in pages."""
NONSENSE = (-1, -1)


class FakeBlocks:
    """`num_blocks` of the device and `num_host_blocks` of the host. A query sees the last `window` tokens (0: all).
    Copies to the host are made as `late` as the contract allows: when a step's result is asked for, or a later step
    needs them there. Where two groups share memory, `owners` are the group that wrote each slab last; a slab has `each`
    blocks of this group."""

    def __init__(
        self,
        num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        window: int,
        *,
        reads_host: bool,
        late: bool,
        owners: dict[int, FakeBlocks] | None = None,
        each: int = 1,
    ) -> None:
        self._owners, self._each = owners, each
        self.num_blocks, self.num_host_blocks = num_blocks, num_host_blocks
        self.first_host_block = num_blocks + GAP
        self.block_size, self.window, self.reads_host = block_size, window, reads_host
        self.swapped = 0
        self.cold_reads = 0  # of positions on the host
        self._late = late
        self._kv: list[tuple[int, int] | None] = [None] * ((self.first_host_block + num_host_blocks) * block_size)
        self._stored: set[int] = set()  # host blocks that were written
        self._tables: dict[int, list[int]] = {}  # by run: the block table of its last step
        self._lock = threading.Lock()
        self._leaving: dict[int, int] = {}  # host block -> block that is still to be copied there

    # Copies

    def swap_in(self, moves: BlockMoves) -> None:
        self.flush(host for host, _ in moves.swap_in)
        hosts = [host for _, host in moves.swap_out] + [host for host, _ in moves.swap_in]
        assert len(hosts) == len(set(hosts)), "a host block takes part in two copies"
        for host, device in moves.swap_in:
            assert host in self._stored, "a host block is read that was never written"
            assert 0 < device < self.num_blocks, "a block comes back that is not the device's"
            self._copy_block(host, device)
        self.swapped += len(hosts)

    def swap_out(self, moves: BlockMoves) -> None:
        """As late as the contract allows: a block that is reused too early spoils what is copied."""
        with self._lock:
            leaving = {host: device for device, host in moves.swap_out}
            assert not leaving.keys() & self._leaving.keys(), "a host block is the target of two copies under way"
            self._leaving |= leaving
        if not self._late:
            self.flush(leaving)

    def flush(self, hosts: Iterable[int]) -> None:
        with self._lock:
            for host in hosts if self._leaving else ():
                if (device := self._leaving.pop(host, None)) is not None:
                    assert self.first_host_block < host, "a block leaves for one that is not the host's"
                    self._copy_block(device, host)
                    self._stored.add(host)

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        sources, targets = {s for s, _ in copies}, [t for _, t in copies]
        assert len(targets) == len(set(targets)), "two copies into one block"
        assert not sources & set(targets), "a block is source and target"
        for source, target in copies:
            assert target != 0, "the null block is a target"
            self._copy_block(source, target)

    def _copy_block(self, source: int, target: int) -> None:
        size = self.block_size
        self._check_owner(source)
        self._become_owner(target)
        self._kv[target * size : (target + 1) * size] = self._kv[source * size : (source + 1) * size]

    def spoil(self, moves: BlockMoves, steps: Iterable[tuple[SequenceStep, Sequence[int]]]) -> None:
        """Write nonsense wherever a plan writes: its moves, and its steps with their tables here."""
        size = self.block_size
        self._stored.update(host for _, host in moves.swap_out)
        for block in [block for _, block in (*moves.swap_out, *moves.swap_in, *moves.copies)]:
            self._become_owner(block)
            self._kv[block * size : (block + 1) * size] = [NONSENSE] * size
        for step, table in steps:
            for position in range(step.start, step.start + len(step.tokens)):
                self._become_owner(table[position // size])
                self._kv[self._slot(table, position)] = NONSENSE

    # Sequences

    def remember(self, step: SequenceStep, table: Sequence[int]) -> None:
        """Checks a table that was seen before: only entries from the block written next on may be new."""
        known = self._tables.get(step.run_id, [])[: step.start // self.block_size]
        for before, now in zip(known, table, strict=False):
            assert now in (before, 0) or now > self.first_host_block, "a block table changed within a run"
        self._tables[step.run_id] = list(table)

    def write(self, step: SequenceStep, table: Sequence[int], written: set[int]) -> None:
        for position, token in enumerate(step.tokens, step.start):
            slot = self._slot(table, position)
            assert slot < self.num_blocks * self.block_size, "a block of the host is written"
            assert slot not in written, "two sequences write one slot"
            written.add(slot)
            self._become_owner(slot // self.block_size)
            self._kv[slot] = (position, token)

    def history(self, step: SequenceStep, table: Sequence[int]) -> list[int]:
        """The tokens that the step's queries see, in one layer: from the window of the first to the last."""
        self.flush(table)
        history = []
        first = max(0, step.start - self.window + 1) if self.window else 0
        for position in range(first, step.start + len(step.tokens)):
            entry = self._read(table, position)
            assert entry is not None, "a slot is read that was never written"
            assert entry[0] == position, "a slot holds another position"
            history.append(entry[1])
        return history

    def _slot(self, table: Sequence[int], position: int) -> int:
        block = table[position // self.block_size]
        assert block != 0, "the null block is in a table"
        return block * self.block_size + position % self.block_size

    def _read(self, table: Sequence[int], position: int) -> tuple[int, int] | None:
        slot = self._slot(table, position)
        self._check_owner(slot // self.block_size)
        if slot >= self.num_blocks * self.block_size:
            assert self.reads_host, "a block of the host for a runner that does not read it"
            self.cold_reads += 1
        return self._kv[slot]

    # Shared memory

    def _become_owner(self, block: int) -> None:
        """A block is written: nothing is left of what the other group had in its slab, nor of what this one had there
        before."""
        if self._owners is None or block >= self.num_blocks:
            return
        slab, cells = block // self._each, self._each * self.block_size
        if self._owners.get(slab) is not self:
            self._kv[slab * cells : (slab + 1) * cells] = [None] * cells
            self._owners[slab] = self

    def _check_owner(self, block: int) -> None:
        if self._owners is not None and block < self.num_blocks:
            assert self._owners.get(block // self._each) is self, "a block is read where the other group has written"
