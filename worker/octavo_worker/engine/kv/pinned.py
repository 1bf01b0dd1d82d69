"""Pinned prefixes: their blocks, and the states behind them."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_worker.engine.kv.block_group import BlockGroup
from octavo_worker.engine.states.states import States
from octavo_worker.memory.pins import PinnedPrefixes
from octavo_worker.memory.prefix_cache import PrefixCache


class Pinned:
    """Keeps the full blocks of prefixes in each of the `groups`, of one that slides the last window, and, where the
    model has `states`, the state behind the last of them, each under the name of the prefix."""

    def __init__(self, cache: PrefixCache, groups: Sequence[BlockGroup], states: States | None) -> None:
        self._cache = cache
        self._groups = groups
        self._states = states

    def pin(self, name: str, tokens: list[int], salt: bytes) -> bool:
        """Keep a prefix. Whether all of it is computed already. `ValueError` if it is too much."""
        digests = [self._cache.root(salt)]
        self._cache.extend_digests(digests, tokens)
        full = digests[1:]
        kinds = [(self._groups[0].pins, full, self._groups[0].pool.total, "blocks", "the pool's {}")]
        for group in self._groups[1:]:
            seen = full[group.capacity.unseen(len(full) * self._cache.block_size) :]
            kinds.append((group.pins, seen, group.pool.total, "blocks of windows", "the pool's {}"))
        if self._states is not None:
            kinds.append((self._states.snapshots.pins, full[-1:], self._states.pool.total, "states", "the {} slots"))
        for pins, wanted, total, what, of in kinds:
            if 2 * (count := pins.num_wanted(name, wanted)) > total:
                raise ValueError(f"{count} {what} pinned would be over half of {of.format(total)}")
        are_here = [pins.pin(name, wanted) for pins, wanted, *_ in kinds]
        return all(are_here)

    def unpin(self, name: str) -> None:
        """Forget a pin. Unknown names are ignored."""
        for pins in self._kinds:
            pins.unpin(name)

    def release(self) -> bool:
        """Leave all prefixes to the cache. Whether that frees anything."""
        held = [pins for pins in self._kinds if pins.blocks]
        for pins in held:
            pins.release()
        return bool(held)

    @property
    def _kinds(self) -> list[PinnedPrefixes]:
        blocks = [group.pins for group in self._groups]
        return blocks if self._states is None else [*blocks, self._states.snapshots.pins]
