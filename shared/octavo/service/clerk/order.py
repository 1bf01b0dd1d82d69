"""The order in which lines of a file are submitted: those with equal beginnings stand together, so that workers compute
and read what they share once.

It follows from the file alone, since the cursor of a batch counts places in it: any owner finds the same one. A version
that orders lines differently must not take over batches of this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from octavo.dialects.openai.batch.beginnings import LONGEST

RUN_LINES = 4096
"""Lines that are put in order together: more than a window, few enough for an owner to remember."""

_LEAST = 256  # bytes of a beginning that are worth sharing
_DIGEST_BYTES = 16


class Order:
    """The order of one run of lines. Among lines that share a beginning of 256 bytes, those that share one of 512 stand
    together, and so on; otherwise they stay as they are in the file."""

    def __init__(self) -> None:
        self._firsts: dict[bytes, int] = {}  # the first line with a beginning
        self._keys: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, beginning: bytes) -> None:
        """The next line."""
        number = len(self._keys)
        firsts = [self._firsts.setdefault(digest, number) for digest in _digests(beginning)]
        self._keys.append((*firsts, number))

    def numbers(self) -> list[int]:
        """Lines, from 0 on, in order."""
        return sorted(range(len(self._keys)), key=self._keys.__getitem__)


def _digests(beginning: bytes) -> Iterator[bytes]:
    """Digests of its first 256, 512, ... bytes, and of all of it. None where it is shorter."""
    digest, start, end = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0, _LEAST
    while end <= min(len(beginning), LONGEST):
        digest.update(beginning[start:end])
        yield digest.digest()
        start, end = end, 2 * end
    if 0 < start < len(beginning):
        digest.update(beginning[start:])
        yield digest.digest()
