"""Prefix cache: full blocks are found by their tokens and all tokens before them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from octavo_worker.memory.block_pool import BlockPool

DIGEST_BYTES = 16
RUN_BLOCKS = 16
RECENT_RUNS = 4096
"""Remembered runs: those of a million tokens in blocks of 16, in less than 10 MB."""


@dataclass(slots=True)
class PrefixCounters:
    """Tokens since the start. `hit` of `queried` were found; of `stateless` ones the keys were there, but no state of
    recurrent layers to go on from, of `windowless` ones the keys of layers that see all, but not those of a window
    before their end. Of the tokens of preempted sequences, `recomputed` were computed again and
    `restored` came back from the host; the others were found."""

    queried: int = 0
    hit: int = 0
    stateless: int = 0
    windowless: int = 0
    recomputed: int = 0
    restored: int = 0


class PrefixCache:
    """Finds and publishes full blocks under chained BLAKE2b-128 digests.

    A block's digest covers its tokens and the digest before it; the chain starts from the tenant's salt, so tenants
    never see (or time) each other's prefixes, and equal digests mean equal prefixes against any adversary. Two blocks
    may hold the same content: the first published one is found, the other stays private.

    Recently hashed runs of `RUN_BLOCKS` blocks are remembered, the latest one after each digest. A prompt with a common
    beginning is compared with those, and little more than its own part is hashed: hashing delays its first token.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self.block_size = block_size
        self.counters = PrefixCounters()
        self._recent: OrderedDict[bytes, tuple[bytes, list[bytes]]] = OrderedDict()  # by the digest before a run

    @staticmethod
    def root(salt: bytes) -> bytes:
        """Where the chain of a tenant begins."""
        return blake2b(salt, digest_size=DIGEST_BYTES, person=b"octavo-prefix").digest()

    @staticmethod
    def tail(digest: bytes, tokens: bytes) -> bytes:
        """The digest of a prefix that ends with `tokens`, words of 32 bits, behind the full block of `digest`."""
        return blake2b(digest + tokens, digest_size=DIGEST_BYTES, person=b"octavo-tail").digest()

    def extend_digests(self, digests: list[bytes], tokens: Sequence[int]) -> None:
        """Append the digests of the full blocks of `tokens`, which follow the block of `digests[-1]`.

        `digests[0]` is the root, `digests[i + 1]` belongs to block i.
        """
        data, width = array("I", tokens).tobytes(), 4 * self.block_size
        run, end = RUN_BLOCKS * width, len(data) // width * width
        rest = end - end % run
        for at in range(0, rest, run):
            digests += self._run(digests[-1], data[at : at + run], width)
        digests += _chain(digests[-1], data[rest:end], width)

    def _run(self, digest: bytes, data: bytes, width: int) -> list[bytes]:
        """The digests of a whole run, hashed unless it is the latest behind `digest`."""
        recent = self._recent.get(digest)
        if recent is None or recent[0] != data:
            recent = self._recent[digest] = data, _chain(digest, data, width)
            if len(self._recent) > RECENT_RUNS:
                self._recent.popitem(last=False)
        self._recent.move_to_end(digest)
        return recent[1]

    def match(self, digests: Sequence[bytes], num_tokens: int) -> array[int]:
        """The longest run of published blocks that begins a sequence of `num_tokens` tokens. Takes no references.

        At most `num_tokens` - 1 tokens are served, because the last one must be computed to get its logits.
        """
        return self._pool.find_run(digests[1 : (num_tokens - 1) // self.block_size + 1])


def _chain(digest: bytes, data: bytes, width: int) -> list[bytes]:
    """The digests of the blocks of `data`, `width` bytes each, which follow the block of `digest`."""
    digests = []
    for at in range(0, len(data), width):
        digest = blake2b(digest + data[at : at + width], digest_size=DIGEST_BYTES).digest()
        digests.append(digest)
    return digests
