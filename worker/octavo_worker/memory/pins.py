"""Prefixes that are kept resident under a name, such as the system prompt of an application."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_worker.memory.block_pool import BlockPool


class PinnedPrefixes:
    """Holds a reference to every published block of a pinned prefix, so that it is never evicted.

    A pin names contents, not blocks: a block that is not in the cache yet is held as soon as it is published. Pins are
    no reservation: `release` gives the blocks back when a request could not run otherwise, and they are held again when
    they are published again.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._names: dict[str, list[bytes]] = {}
        self._wanted: dict[bytes, int] = {}  # digest -> names that want it
        self._held: dict[bytes, int] = {}  # digest -> block

    @property
    def blocks(self) -> list[int]:
        """The blocks that are held."""
        return list(self._held.values())

    @property
    def are_wanted(self) -> bool:
        return bool(self._wanted)

    def wants(self, digest: bytes) -> bool:
        """True if a block with this content would be held."""
        return digest in self._wanted

    def num_wanted(self, name: str, digests: Sequence[bytes]) -> int:
        """Blocks that are held when everything is in the cache, once `name` keeps the blocks with these digests."""
        others = (kept for other, kept in self._names.items() if other != name)
        return len(set(digests).union(*others))

    def pin(self, name: str, digests: Sequence[bytes]) -> bool:
        """Keep the blocks with these digests, instead of what `name` kept before. Whether all of them are here."""
        self._names[name], before = list(digests), self._names.get(name, [])
        for digest in digests:
            self._wanted[digest] = self._wanted.get(digest, 0) + 1
            block = self._pool.find(digest)
            if block is not None:
                self.published(block, digest)
        self._forget(before)
        return all(digest in self._held for digest in digests)

    def unpin(self, name: str) -> None:
        """Forget a pin. Unknown names are ignored."""
        self._forget(self._names.pop(name, []))

    def published(self, block: int, digest: bytes) -> None:
        """A block became findable: hold it if it is wanted."""
        if digest in self._wanted and digest not in self._held:
            self._pool.acquire((block,))
            self._held[digest] = block

    def lost(self, digest: bytes) -> None:
        """The content turned out to be wrong: let go of the block."""
        if (block := self._held.pop(digest, None)) is not None:
            self._pool.release((block,))

    def release(self) -> None:
        """Leave all blocks to the cache, which evicts the ends of prefixes first."""
        self._pool.release(reversed(self._held.values()))
        self._held.clear()

    def _forget(self, digests: Sequence[bytes]) -> None:
        for digest in reversed(digests):
            self._wanted[digest] -= 1
            if not self._wanted[digest]:
                del self._wanted[digest]
                self.lost(digest)
