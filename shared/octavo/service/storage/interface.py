"""The interface of a storage."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Protocol

from octavo.terms.errors import OctavoError

PIECE_BYTES = 1 << 20


class NotStored(OctavoError):
    """There is nothing of this name."""

    code = "not_stored"


class Storage(Protocol):
    """Names are made of letters, digits and `_.-`, with slashes between their parts. Every method raises
    StorageUnavailable."""

    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> None:
        """Store all pieces, or nothing. What is stored survives a loss of power."""

    async def first(self, name: str, data: bytes) -> bytes:
        """Store `data` unless the name is taken. The content of the name."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` up to `end`, in pieces. Raises NotStored."""

    async def delete(self, name: str) -> None:
        """Remove a name, if it is there."""

    async def names(self, folder: str) -> list[str]:
        """All names below a folder."""


async def in_pieces(data: bytes) -> AsyncIterator[bytes]:
    """Data as the one piece of it."""
    yield data


async def whole(pieces: AsyncIterator[bytes]) -> bytes:
    """All pieces in one: for what is known to be small."""
    return b"".join([piece async for piece in pieces])
