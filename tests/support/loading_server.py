"""A server that is still reading what it held."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from waiting import STALL_S

from octavo.service.server import EmbeddedServer
from octavo.service.server_program import find_binary

WRITE = b"*2\r\n$4\r\nINCR\r\n$5\r\ncount\r\n"
WRITES = 2_000_000
DELAY_US = "100"  # a write, and what a sleep takes beside: some minutes in all


@contextmanager
def loading_server(folder: Path) -> Iterator[str]:
    """The address of a server that is there and refuses almost every command for as long as a test takes."""
    with EmbeddedServer(data_dir=folder) as empty:
        url, port = empty.url, empty.url.rsplit(":", 1)[1].split("/")[0]
    (log,) = folder.glob("appendonlydir/*.incr.aof")
    with log.open("ab") as writes:
        for _ in range(WRITES // 1000):
            writes.write(1000 * WRITE)
    options = ["--port", port, "--dir", str(folder), "--appendonly", "yes", "--key-load-delay", DELAY_US]
    with subprocess.Popen([str(find_binary()), *options], stdout=subprocess.DEVNULL) as process:
        try:
            _wait_until_it_loads(url)
            yield url
        finally:
            process.kill()


def _wait_until_it_loads(url: str) -> None:
    deadline = time.monotonic() + STALL_S
    with redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as connection:
        while True:
            try:
                assert connection.info("persistence")["loading"]
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "the server does not listen"
                time.sleep(0.01)
            else:
                return
