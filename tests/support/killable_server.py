"""Servers to be killed: one that loses nothing it has answered, or as much as the test says."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import fake_worker as fake
import redis.asyncio

from octavo import AsyncClient
from octavo.queue.connection import connect
from octavo.service.server import EmbeddedServer
from octavo.service.server_program import find_binary
from octavo.terms.limits import Retention


def killable_server(folder: Path) -> EmbeddedServer:
    """It hands every write to the kernel, which outlives the process, before it answers. One that syncs every second
    holds writes back for as long as the disk is busy with a sync: on a slow one, a kill loses them (docs/protocol.md).
    """
    return EmbeddedServer(data_dir=folder / "data", binary=server_program(folder, "--appendfsync", "no"))


@asynccontextmanager
async def killable_service(
    folder: Path, retention: Retention | None = None
) -> AsyncIterator[tuple[EmbeddedServer, AsyncClient, redis.asyncio.Redis]]:
    """Such a server that knows the fake worker's model, a client of it, and a connection."""
    with killable_server(folder) as server:
        async with AsyncClient(server.url, retention=retention) as client, connect(server.url) as connection:
            await fake.register(connection)
            yield server, client, connection


@contextmanager
def forgotten_by(server: EmbeddedServer, folder: Path) -> Iterator[None]:
    """Writes to a `killable_server(folder)` inside of this are gone afterwards: it is killed at the end and comes back
    with the state of the beginning, as after a loss of power."""
    log, kept = folder / "data" / "appendonlydir", folder / "kept"
    shutil.copytree(log, kept)
    yield
    server.kill()
    shutil.rmtree(log)
    kept.rename(log)
    server.start()


def server_program(folder: Path, *options: str, binary: Path | None = None) -> Path:
    """A server with options that come after those of `EmbeddedServer`, and hence win."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "server"
    program.write_text(f'#!/bin/sh\nexec {binary or find_binary()} "$@" {shlex.join(options)}\n')
    program.chmod(0o755)
    return program
