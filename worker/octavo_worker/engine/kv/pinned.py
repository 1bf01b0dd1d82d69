"""Pinned prefixes: their blocks, and the states behind them."""

from __future__ import annotations

from octavo_worker.engine.states.states import States
from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.pins import PinnedPrefixes
from octavo_worker.memory.prefix_cache import PrefixCache


class Pinned:
    """Keeps the full blocks of prefixes in the `pool` and, where the model has `states`, the state behind the last of
    them, each under the name of the prefix."""

    def __init__(self, cache: PrefixCache, pool: BlockPool, blocks: PinnedPrefixes, states: States | None) -> None:
        self._cache = cache
        self._pool = pool
        self._blocks = blocks
        self._states = states

    def pin(self, name: str, tokens: list[int], salt: bytes) -> bool:
        """Keep a prefix. Whether all of it is computed already. `ValueError` if it is too much."""
        digests = [self._cache.root(salt)]
        self._cache.extend_digests(digests, tokens)
        full = digests[1:]
        wanted = self._blocks.num_wanted(name, full)
        if 2 * wanted > self._pool.total:
            raise ValueError(f"{wanted} blocks pinned would be over half of the pool's {self._pool.total}")
        if self._states is None:
            return self._blocks.pin(name, full)
        states, slots = self._states.snapshots.pins, self._states.pool.total
        if 2 * (wanted := states.num_wanted(name, full[-1:])) > slots:
            raise ValueError(f"{wanted} states pinned would be over half of the {slots} slots")
        has_state = states.pin(name, full[-1:])
        return self._blocks.pin(name, full) and has_state

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
        return [self._blocks] if self._states is None else [self._blocks, self._states.snapshots.pins]
