"""Where sequences that are admitted together begin, and on which blocks."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Row
from functools import partial
from itertools import takewhile

from octavo_worker.engine.kv.block_group import BlockGroup
from octavo_worker.engine.kv.keys import Keys, no_tail
from octavo_worker.engine.kv.room import Room
from octavo_worker.engine.kv.supply import Supply
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.states.states import States
from octavo_worker.engine.step_in_flight import StepInFlight
from octavo_worker.memory.prefix_hits import Reach, longest_hit


class Allocation:
    """A block for each slot of each member: found in the prefix cache, shared with another member, or new.

    Members that compute their tokens share equal blocks with earlier members although those are not computed yet:
    prompts are computed in order. Swapped members find a block in the cache or load their own from the host; what they
    shared when they left they share again. Nothing is taken before `take`. The digests of the members' full blocks
    must be known; those in `private` share nothing.

    Where there are two groups of blocks, or the model keeps `states`, a member begins where all of them can go on. With
    states, what other members are yet to compute is not shared: the state behind it does not exist. A snapshot may end
    amid a block, which the member then copies.

    What a member has in common with the `neighbour` is taken over from its table at once; anything else is looked up
    block by block.

    Sliding members need of a prefix only the blocks in the window after it, and like oversized ones they get blocks for
    their first tokens only. Oversized members share nothing, and when they come back from the host only their latest
    blocks are loaded.
    """

    def __init__(
        self,
        members: list[Sequence],
        groups: Row[BlockGroup],
        private: Collection[Sequence] = (),
        neighbour: Sequence | None = None,
        states: States | None = None,
    ) -> None:
        self.members = members
        self._states = states
        self._neighbour = neighbour
        self.supplies = [Supply(group) for group in groups]
        self._blocks = self.supplies[0]
        self._capacity = groups[0].capacity
        self._oversized = members[0].request.oversized
        self._bound = self._capacity.pace if self._oversized else groups[0].bound
        self.recomputed = 0  # tokens that were computed before a preemption and are to be computed again
        self.shared: list[int] = []  # for each member, how many leading blocks it need not compute
        self.begins: list[tuple[Sequence, int]] = []  # members that compute, and the tokens that they need not
        self.known: list[tuple[int, int]] = []  # and tokens whose keys were there: in the first group, in all groups
        for member in members:
            if member.is_swapped:
                self._load(member)
            elif len(self.supplies) > 1 or states is not None:
                self._compute_behind_all(member, member in private)
            else:
                self._blocks.tables.append(self._compute(member, member in private))

    @property
    def needed(self) -> Room:
        """Available blocks that `take` uses up, and those that oversized members take next."""
        ahead = max(0, self._capacity.share - self._blocks.new) if self._oversized else 0
        return Room(ahead + self._blocks.needed, 0, self.supplies[1].needed if len(self.supplies) > 1 else 0)

    @property
    def needed_slots(self) -> tuple[int, int]:
        """The same for slots of states: for good, and for a step."""
        if self._states is None:
            return 0, 0
        return self._states.needed(self.begins, [member for member in self.members if member.is_swapped])

    @property
    def restored(self) -> int:
        """Tokens that come back from the host."""
        return self._blocks.restored

    def take(self, step: StepInFlight) -> None:
        """Fill the tables, with copies that a step makes. `OutOfBlocks` unless `needed` fit."""
        for supply in self.supplies:
            supply.take(self.members, step)

    # Members that compute

    def _compute(self, member: Sequence, private: bool) -> array[int]:
        size, length = member.table.block_size, member.length
        shareable = member.digests[1 : (length - 1) // size + 1]  # the last token is always computed
        entries = array("i") if private or self._oversized else self._prefix(member, shareable)
        self.shared.append(len(entries))
        self.recomputed += max(0, member.peak - len(entries) * size)
        return self._blocks.add_rest(entries, shareable, self._end(self._blocks, entries, length, size))

    def _prefix(self, member: Sequence, digests: list[bytes]) -> array[int]:
        """The longest prefix of which everything is there that is seen from its end."""
        if not self._blocks.group.slides:
            shared, rest = self._run(member, digests)
            self._blocks.note_idle(rest)
            return shared + rest
        size, there = member.table.block_size, self._blocks.there
        keys = Keys(len(digests), lambda block: there(digests[block]), self._capacity)
        entries = keys.entries(keys.reach(len(digests) * size))
        self._blocks.note_idle(entries)
        return entries

    def _run(self, member: Sequence, digests: list[bytes], first: int = 0) -> tuple[array[int], array[int]]:
        """Blocks for `digests`, those from entry `first` on, as far as there are any: the neighbour's, and others."""
        neighbour, found = self._neighbour, array("i")
        if neighbour is not None:
            found = neighbour.table.blocks[first : neighbour.common(member, first + len(digests))]
        rest = self._blocks.pool.find_run(digests[len(found) :])
        rest.extend(takewhile(bool, map(self._blocks.there, digests[len(found) + len(rest) :])))
        return found, rest

    def _compute_behind_all(self, member: Sequence, private: bool) -> None:
        """The member begins where every group and the states can go on."""
        size, states = member.table.block_size, self._states
        shareable = member.digests[1 : (member.length - 1) // size + 1]  # the last token is always computed
        shares = not private and not self._oversized
        keys = [self._keys(supply, member, shareable if shares else []) for supply in self.supplies]
        reaches: list[Reach] = [each.reach for each in keys]
        hit = known = known_in_all = 0
        if shares:
            known = reaches[0](member.length - 1)
            hit = known_in_all = longest_hit(reaches, known)
        if shares and states is not None:
            most = min(member.length, (keys[0].count + 1) * size) - 1  # a snapshot may end amid the block behind them
            hit = longest_hit([partial(states.snapshots.reach, member), *reaches], most)
        self.shared.append(hit // size)
        self.begins.append((member, hit))
        self.known.append((known, known_in_all))
        self.recomputed += max(0, member.peak - hit)
        for supply, each in zip(self.supplies, keys, strict=True):
            entries = each.entries(hit)
            supply.note_idle(entries)
            if hit % size and states is not None:
                supply.add_copy(entries, states.snapshots.digest_at(member, hit))
            end = self._end(supply, entries, member.length, size)
            shared = shareable if states is None else []
            supply.tables.append(supply.add_rest(entries, shared, end))

    def _keys(self, supply: Supply, member: Sequence, digests: list[bytes]) -> Keys:
        """Keys that a group has of the blocks with these digests."""
        has_tail = no_tail if self._states is None else partial(_has_tail, supply, self._states, member)
        if supply.group.slides:
            return Keys(len(digests), lambda block: supply.there(digests[block]), supply.capacity, has_tail)
        shared, rest = self._run(member, digests)
        found = shared + rest
        return Keys(len(found), found.__getitem__, supply.capacity, has_tail)

    # Members that come back from the host

    def _load(self, member: Sequence) -> None:
        size, full = member.table.block_size, member.computed // member.table.block_size
        self.shared.append(full)
        for supply in self.supplies:
            cold = 0
            if self._oversized and supply is self._blocks:
                cold = max(0, len(member.table.blocks) - max(1, self._bound // len(self.members)))
            entries = supply.load(member, cold)
            if member.decodes or self._oversized:
                length = member.computed if member.decodes else member.length
                entries = supply.add_up_to(entries, self._end(supply, entries, length, size))
            else:
                entries = self._go_on(supply, member, entries, full)
            supply.tables.append(entries)

    def _go_on(self, supply: Supply, member: Sequence, entries: array[int], full: int) -> array[int]:
        """The blocks of a member that was loaded amid its prompt: `full` full ones, a partly filled one perhaps. It
        shares blocks with others that have filled them since, or are going to."""
        size, length = member.table.block_size, member.length
        shareable = member.digests[1 : (length - 1) // size + 1]
        goes_behind_all = len(self.supplies) > 1 or self._states is not None
        if len(entries) > full:  # its last block is partly filled
            if full < len(shareable):
                supply.computing.setdefault(shareable[full], entries[full])
        elif not self._blocks.group.slides and member.request.prompt_scorer is not member and not goes_behind_all:
            shared, rest = self._run(member, shareable[full:], full)
            supply.note_idle(rest)
            entries += shared + rest
            self.shared[-1] = len(entries)
        return supply.add_rest(entries, shareable, self._end(supply, entries, length, size))

    def _end(self, supply: Supply, entries: array[int], length: int, size: int) -> int:
        """How many entries a table gets whose first ones are `entries`."""
        end, bound = -(-length // size), supply.group.bound
        if not supply.group.slides:
            if not self._oversized:
                return end
            bound = self._bound
        return max(len(entries), min(end, supply.first_held(entries) + bound))


def _has_tail(supply: Supply, states: States, member: Sequence, end: int) -> bool:
    return supply.pool.find(states.snapshots.digest_at(member, end)) is not None
