"""The pool of slots of recurrent states: references, snapshots that can be found, and which slot is reused next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo_worker.memory.block_pool import NULL_BLOCK, BlockPool

HITS_OF_A_JUNCTION = 2
"""A snapshot that was hit so often lies where sequences part, and is evicted after all others."""


class Tail(NamedTuple):
    """The tokens of a snapshot behind its last full block: `digest` is that block's, `tokens` are words of 32 bits."""

    digest: bytes
    tokens: bytes


class StatePool(BlockPool):
    """Reference-counted slots, each with the state of one sequence after some of its tokens.

    Slot 0 is never handed out. A *snapshot* is a slot that is published: no sequence writes it any more. It is found by
    the digest of the tokens that it has seen; one that ends amid a block also by `tails`, as no prompt knows that
    digest.

    Eviction is that of `BlockPool`, in two segments (Karedla et al., "Caching strategies to improve disk system
    performance", 1994): snapshots that were hit twice go after all others. They are at most half of the pool; the one
    of them that was used least recently then counts as used just now among the others.
    """

    def __init__(self, num_blocks: int, first: int = 0) -> None:
        super().__init__(num_blocks, first)
        self._hits = [0] * (first + num_blocks)
        self._first_junction = NULL_BLOCK  # in the list of the pool: junctions are its end
        self._junctions = 0  # in the list
        self._tails: dict[bytes, dict[bytes, bytes]] = {}  # digest of the last full block -> tokens -> digest
        self._tail_of: dict[bytes, Tail] = {}

    def is_own(self, slot: int) -> bool:
        """True if its only owner may store another state here: no snapshot, and no step in flight reads or copies it
        for others."""
        return self.refs[slot] == 1 and self._hash[slot] is None and slot not in self._guarded

    def hit(self, slot: int) -> None:
        """A sequence goes on from this snapshot, to which it has a reference."""
        self._hits[slot] += 1

    def publish_tail(self, slot: int, digest: bytes, tail: Tail) -> bool:
        """`publish` a slot whose state has seen the tokens of `tail` behind full blocks."""
        if not self.publish(slot, digest):
            return False
        self._tails.setdefault(tail.digest, {})[tail.tokens] = digest
        self._tail_of[digest] = tail
        return True

    def tails(self, digest: bytes) -> dict[bytes, bytes]:
        """The snapshots that end amid the block behind the one of `digest`: their tokens there, and their digests."""
        return self._tails.get(digest, {})

    def check_integrity(self, tables: Iterable[Iterable[int]] | None = None) -> None:
        """Verify every account, against all references in existence if they are given. `AssertionError` if wrong."""
        super().check_integrity(None if tables is None else [tuple(table) for table in tables])
        order = self.free_order()
        junctions = [slot for slot in order if self._is_junction(slot)]
        first = junctions[0] if junctions else NULL_BLOCK
        if junctions != order[len(order) - len(junctions) :] or first != self._first_junction:
            raise AssertionError("junctions are not the last to be reused")
        if len(junctions) != self._junctions or len(junctions) > self.total // 2:
            raise AssertionError("junctions are counted wrongly")
        listed = {digest for tails in self._tails.values() for digest in tails.values()}
        if listed != self._tail_of.keys() or not listed <= self._by_hash.keys():
            raise AssertionError("tails and snapshots disagree")

    def _is_junction(self, slot: int) -> bool:
        return self._hits[slot] >= HITS_OF_A_JUNCTION

    def _put_back(self, block: int) -> None:
        if block in self._guarded or self._hash[block] is None:
            super()._put_back(block)
            return
        self._cached += 1
        if not self._is_junction(block):
            self._link(block, self._prev[self._first_junction], self._first_junction)
            return
        self._link(block, self._prev[NULL_BLOCK], NULL_BLOCK)
        self._first_junction = self._first_junction or block
        self._junctions += 1
        if self._junctions > self.total // 2:
            self._hits[self._first_junction] = 0
            self._first_junction = self._next[self._first_junction]
            self._junctions -= 1

    def _unlink(self, block: int) -> None:
        if self._is_junction(block):
            self._junctions -= 1
            if block == self._first_junction:
                self._first_junction = self._next[block]
        super()._unlink(block)

    def _forget(self, block: int) -> None:
        digest = self._hash[block]
        if digest is not None and (tail := self._tail_of.pop(digest, None)) is not None:
            tails = self._tails[tail.digest]
            del tails[tail.tokens]
            if not tails:
                del self._tails[tail.digest]
        super()._forget(block)
        self._hits[block] = 0
