"""Both kinds of storage do the same: all or nothing, ranges, and names that lead nowhere else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.service.storage import open_storage
from octavo.service.storage.folder import FolderStorage
from octavo.service.storage.interface import NotStored, Storage, in_pieces, whole
from octavo.service.storage.objects import ObjectStorage
from octavo.terms.errors import OctavoError, StorageUnavailable

DATA = bytes(range(256)) * 9000  # more than two pieces


@pytest.fixture(params=["folder", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "files") if request.param == "folder" else "memory:///")


def drafts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".drafts/*") if path.is_file()]


async def pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_what_is_put_is_read_whole_and_in_ranges(storage: Storage) -> None:
    await storage.put("files/a", pieces(DATA))
    assert await whole(storage.read("files/a")) == DATA
    for start, end in ((0, 1), (7, 7), (255, 300_000), (len(DATA) - 3, len(DATA)), (5, None)):
        assert await whole(storage.read("files/a", start, end)) == DATA[start:end]
    await storage.put("files/empty", pieces(b""))
    assert await whole(storage.read("files/empty")) == b""


async def test_a_put_that_breaks_leaves_nothing_and_what_was_there(storage: Storage, tmp_path: Path) -> None:
    async def breaking() -> AsyncIterator[bytes]:
        yield DATA
        raise ConnectionError("gone")

    await storage.put("files/a", in_pieces(b"before"))
    for name in ("files/a", "files/b"):
        with pytest.raises(ConnectionError):
            await storage.put(name, breaking())
    assert await whole(storage.read("files/a")) == b"before"
    assert await storage.names("files") == ["files/a"]
    assert drafts(tmp_path) == []


async def test_the_first_of_a_name_stays(storage: Storage) -> None:
    found = await asyncio.gather(*(storage.first("mark", b"%d" % number) for number in range(5)))
    assert len(set(found)) == 1
    assert await storage.first("mark", b"late") == found[0]


async def test_names_and_deletion(storage: Storage) -> None:
    for name in ("parts/b1/1", "parts/b1/2", "parts/b2/1", "files/a"):
        await storage.put(name, in_pieces(b"x"))
    assert sorted(await storage.names("parts")) == ["parts/b1/1", "parts/b1/2", "parts/b2/1"]
    for _ in range(2):
        await storage.delete("parts/b2/1")
    assert sorted(await storage.names("parts")) == ["parts/b1/1", "parts/b1/2"]
    assert await storage.names("nothing") == []
    with pytest.raises(NotStored):
        await whole(storage.read("parts/b2/1"))


@pytest.mark.parametrize("name", ["../a", "a/../b", "/etc/passwd", "", "a//b", "a b", "ü", "a\n"])
async def test_a_folder_has_no_name_that_leads_out_of_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        await FolderStorage(tmp_path).put(name, in_pieces(b"x"))


async def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FolderStorage(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageUnavailable, match="No space left"):
        await storage.put("files/a", in_pieces(b"x"))
    assert drafts(tmp_path) == []
    assert await storage.names("files") == []


def test_a_file_and_its_folders_are_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that the queue names must be there after a loss of power."""
    order: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        order.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}').removeprefix(str(tmp_path))}")
        sync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        order.append(f"name {str(target).removeprefix(str(tmp_path))}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    asyncio.run(FolderStorage(tmp_path / "f").put("parts/b/1", in_pieces(b"x")))
    assert order[0].startswith("sync /f/.drafts/")
    assert order[1] == "name /f/parts/b/1"
    assert {"sync /f/parts/b", "sync /f/parts", "sync /f"} == set(order[2:])


def test_a_writer_that_is_killed_leaves_a_draft_that_goes_after_a_day(tmp_path: Path) -> None:
    code = (
        "import asyncio,sys,os,signal\nfrom octavo.service.storage.folder import FolderStorage\n"
        "async def pieces():\n  yield b'x' * 10\n  os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(FolderStorage(sys.argv[1]).put('files/a', pieces()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (draft,) = tmp_path.glob(".drafts/*")
    FolderStorage(tmp_path)
    assert draft.exists()
    os.utime(draft, (time.time() - 90_000,) * 2)
    FolderStorage(tmp_path)
    assert not draft.exists()


def test_an_address_that_is_none_is_refused_without_its_words(tmp_path: Path) -> None:
    with pytest.raises(OctavoError) as found:
        open_storage("nonsense://user:secret@host/x")
    assert "secret" not in str(found.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(OctavoError, match="another folder"):
        open_storage(str(tmp_path / "file"))


@pytest.mark.full
async def test_s3_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Amazon's API, as moto speaks it on this machine."""
    server = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    from obstore.store import S3Store

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    try:
        _, port = running.get_host_and_port()
        access = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
        endpoint = f"http://127.0.0.1:{port}"
        boto3.client("s3", endpoint_url=endpoint, **access).create_bucket(Bucket="bucket")
        store = S3Store(
            "bucket", prefix="octavo", endpoint=endpoint, access_key_id="k", secret_access_key="s", region="us-east-1",
            client_options={"allow_http": True},
        )  # fmt: skip
        storage = ObjectStorage(store)
        await storage.put("files/a", pieces(DATA * 6))
        assert await whole(storage.read("files/a", 5, 12_000_000)) == (DATA * 6)[5:12_000_000]
        assert await storage.names("files") == ["files/a"]
        assert await storage.first("mark", b"1") == await storage.first("mark", b"2") == b"1"
        await storage.delete("files/a")
        with pytest.raises(NotStored):
            await whole(storage.read("files/a"))
    finally:
        running.stop()
