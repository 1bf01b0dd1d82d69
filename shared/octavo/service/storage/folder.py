"""Files in a folder, which any number of processes may share. A file appears under its name once it is on the disk."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from octavo.service.storage.interface import PIECE_BYTES, NotStored
from octavo.terms.errors import OctavoError, StorageUnavailable

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)
_DRAFTS = ".drafts"
_ABANDONED_S = 86_400  # the age of a draft whose writer is gone: no upload takes so long

T = TypeVar("T")


class FolderStorage:
    """A storage in a folder, which is made if it is missing. Raises OctavoError if it cannot be."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).expanduser().absolute()
        self._drafts = self._root / _DRAFTS
        try:
            self._drafts.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._remove_abandoned()
        except OSError as error:
            raise OctavoError(f"cannot keep files in {self._root}: {error.strerror}; name another folder") from None

    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> None:
        path = self._path(name)
        draft = await self._draft(pieces)
        await self._apart(lambda: self._publish(draft, path, os.replace))

    async def first(self, name: str, data: bytes) -> bytes:
        path = self._path(name)

        async def pieces() -> AsyncIterator[bytes]:
            yield data

        draft = await self._draft(pieces())
        with suppress(FileExistsError):
            await self._apart(lambda: self._publish(draft, path, os.link))
        await self._apart(lambda: draft.unlink(missing_ok=True))
        return await self._apart(path.read_bytes)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Raises NotStored."""
        path = self._path(name)
        try:
            descriptor = await self._apart(lambda: os.open(path, os.O_RDONLY))
        except FileNotFoundError:
            raise NotStored(f"there is no {name}") from None
        try:
            place = start
            while end is None or place < end:
                size = PIECE_BYTES if end is None else min(PIECE_BYTES, end - place)
                piece = await self._apart(lambda size=size, place=place: os.pread(descriptor, size, place))  # type: ignore[misc]
                if not piece:
                    return
                place += len(piece)
                yield piece
        finally:
            os.close(descriptor)

    async def delete(self, name: str) -> None:
        path = self._path(name)

        def remove() -> None:
            path.unlink(missing_ok=True)
            if path.parent != self._root:
                with suppress(OSError):  # others are in it, or it is gone
                    path.parent.rmdir()

        await self._apart(remove)

    async def names(self, folder: str) -> list[str]:
        root = self._path(folder)

        def found() -> list[str]:
            return [path.relative_to(self._root).as_posix() for path in root.rglob("*") if path.is_file()]

        return await self._apart(found)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or any(set(part) == {"."} for part in name.split("/")):
            raise ValueError(f"{name!r} is no name of a stored file")
        return self._root / name

    async def _draft(self, pieces: AsyncIterable[bytes]) -> Path:
        """A file with all pieces, on the disk, under a name of its own."""
        draft = self._drafts / secrets.token_hex(16)
        descriptor = await self._apart(lambda: os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            async for piece in pieces:
                await self._apart(lambda piece=piece: _write(descriptor, piece))  # type: ignore[misc]
            await self._apart(lambda: os.fsync(descriptor))
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return draft

    def _publish(self, draft: Path, path: Path, give_name: Callable[[Path, Path], None]) -> None:
        new = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
        while True:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                give_name(draft, path)
                break
            except FileNotFoundError:  # the folder was emptied and removed meanwhile
                if not draft.exists():
                    raise
        for folder in (path.parent, *(folder.parent for folder in new)):
            _sync_folder(folder)

    async def _apart(self, work: Callable[[], T]) -> T:
        """The result of blocking work, done in a thread."""
        with _explained(self._root):
            return await asyncio.to_thread(work)

    def _remove_abandoned(self) -> None:
        for draft in self._drafts.iterdir():
            with suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - _ABANDONED_S:
                    draft.unlink()


def _write(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _explained(root: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise StorageUnavailable(f"{root}: {error.strerror or error}") from None
