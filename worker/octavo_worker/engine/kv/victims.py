"""Costs of a preemption: memory to move, or tokens to compute again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Row
from dataclasses import replace

from octavo_worker.engine.kv.block_group import BlockGroup
from octavo_worker.engine.kv.keys import Keys
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.states.states import States, slots_of
from octavo_worker.memory.block_pool import NULL_BLOCK
from octavo_worker.memory.cost import Victim


def victim_of(members: list[Sequence], groups: Row[BlockGroup], states: States | None) -> Victim:
    """Running members of one request as the cost model sees them."""
    blocks, size = groups[0], groups[0].capacity.block_size
    held = Counter(block for member in members for block in member.table.storing(member.computed))
    lost = sum(blocks.pool.refs[block] == count for block, count in held.items())
    kept = len(held) - lost
    if lost:  # what they gave up before is computed again, too
        lost += max(member.table.start for member in members)
    victim = Victim(len(held), lost * size, kept * size)
    for group in groups[1:]:
        victim = _with_windows(victim, members, group)
    return victim if states is None else _with_states(victim, members, states, size)


def _with_windows(victim: Victim, members: list[Sequence], group: BlockGroup) -> Victim:
    """A swap moves blocks of the second group, too; keys that are kept are of use as far as it goes on there."""
    moved = {block for member in members for block in group.table_of(member).storing(member.computed)}
    digests, size = members[0].digests, group.capacity.block_size
    known = min(len(digests) - 1, victim.kept // size)
    keys = Keys(known, lambda block: group.pool.find(digests[block + 1]) or NULL_BLOCK, group.capacity)
    return replace(_kept_to(victim, keys.reach(victim.kept)), windows=len(moved))


def _with_states(victim: Victim, members: list[Sequence], states: States, size: int) -> Victim:
    """A swap moves states, too; keys that are kept are of use from a snapshot on."""
    known = (len(members[0].digests) - 1) * size
    best = states.snapshots.reach(members[0], min(known, victim.kept))
    return replace(_kept_to(victim, best), states=len(slots_of(members)))


def _kept_to(victim: Victim, end: int) -> Victim:
    """The victim, of whose kept tokens only those up to `end` are of use."""
    return replace(victim, tokens=victim.tokens + victim.kept - end, kept=end)
