"""Files in an object store: S3, Google Cloud Storage, Azure, or memory, through obstore."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import from_url

from octavo.service.storage.interface import PIECE_BYTES, NotStored, whole
from octavo.terms.errors import OctavoError, StorageUnavailable

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

_PART_BYTES = 8 << 20  # of an upload in parts: S3 takes none below 5 MiB
_MISSING = (NotFoundError, FileNotFoundError)  # some stores raise one, some the other


class ObjectStorage:
    """A storage in a bucket, below a prefix. Credentials come from the environment, as for the store's own tools."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def at(cls, url: str) -> Self:
        """Raises OctavoError for an address that is none, in words that repeat nothing of it."""
        try:
            return cls(from_url(url))
        except (BaseError, ValueError):
            raise OctavoError(
                "OCTAVO_FILES is no folder and no address of an object store: write s3://bucket/prefix, gs:// or az://"
            ) from None

    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> None:
        with _explained():
            await obstore.put_async(self._store, name, _as_iterator(pieces), chunk_size=_PART_BYTES)

    async def first(self, name: str, data: bytes) -> bytes:
        with _explained():
            try:
                await obstore.put_async(self._store, name, data, mode="create")
            except AlreadyExistsError:
                return await whole(self.read(name))
        return data

    async def read(self, name: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Raises NotStored."""
        if end is not None and end <= start:
            return
        options: GetOptions = {}
        if end is not None:
            options = {"range": (start, end)}
        elif start:
            options = {"range": {"offset": start}}
        with _explained():
            try:
                found = await obstore.get_async(self._store, name, options=options)
            except _MISSING:
                raise NotStored(f"there is no {name}") from None
            async for piece in found.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)

    async def delete(self, name: str) -> None:
        with _explained():
            try:
                await obstore.delete_async(self._store, name)
            except _MISSING:
                return

    async def names(self, folder: str) -> list[str]:
        with _explained():
            return [entry["path"] async for page in obstore.list(self._store, folder) for entry in page]


async def _as_iterator(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if piece:
            yield piece


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (AlreadyExistsError, *_MISSING):
        raise
    except BaseError as error:
        raise StorageUnavailable(f"the object store: {str(error).splitlines()[0]}") from None
