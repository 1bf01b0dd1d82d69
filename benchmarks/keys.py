"""Many API keys of many tenants: start of a gateway, checks of keys, memory, and how soon a revocation holds.

    python benchmarks/keys.py --keys 100000 --tenants 10000 --gateways 4

Gateways are processes, and requests come over HTTP to `/docs`, which asks for a key and for nothing else. Where a
message is to be lost, the revocation is written without it. `cold` is the first check of a key, `warm` one within a
second.
"""

from __future__ import annotations

import asyncio
import http.client
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import psutil
import redis
import typer

from octavo.client.keys import KeyClient
from octavo.queue.calls import run_many
from octavo.queue.connection import connect
from octavo.queue.tenants.keys import NewKey, TenantCell
from octavo.queue.tenants.names import TenantKeys, new_id
from octavo.service.server import EmbeddedServer
from octavo.terms.access.api_keys import KEY_ID, KeyDigests, KeyText
from octavo.terms.access.secret import Secret
from octavo_gateway.auth.cache import MOST_KEYS, KeyCache
from octavo_worker.bench.report import encode, median, percentile, report, write

SECRET = secrets.token_hex(32)
DIGESTS = KeyDigests(Secret([SECRET]))
_AT_ONCE = 500
_CHECKED_AT_ONCE = 32


def main(
    keys: Annotated[int, typer.Option(help="Keys at the server.")] = 100_000,
    tenants: Annotated[int, typer.Option(help="Tenants that they are of.")] = 10_000,
    gateways: Annotated[int, typer.Option(help="Gateway processes that hear of a revocation, or do not.")] = 4,
    requests: Annotated[int, typer.Option(help="Requests, each with another key.")] = 5_000,
    out: Annotated[Path | None, typer.Option(help="JSON file to write; stdout always gets it too.")] = None,
) -> None:
    """Measure and print JSON."""
    rows = []
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text(f"{SECRET}\n")
        rows.append({"what": "start without keys", "seconds": _start_s(server.url, secret)})
        made = asyncio.run(_make(server.url, keys, tenants))
        rows.append({"what": f"start beside {keys} keys", "seconds": _start_s(server.url, secret)})
        with redis.Redis.from_url(server.url) as connection:
            rows.append({"what": "server", "MB": connection.info("memory")["used_memory"] / 1e6})
        rows += asyncio.run(_checks(server.url, made))
        rows += _over_http(server.url, secret, made[:requests])
        for is_lost in (False, True):
            rows += asyncio.run(_revocations(server.url, secret, gateways, is_lost=is_lost))
    document = report("keys", rows, keys=keys, tenants=tenants)
    print(encode(document))
    if out is not None:
        write(document, out)


async def _make(url: str, count: int, tenants: int) -> list[KeyText]:
    cell, made = TenantCell(), [KeyText.new(new_id(KEY_ID)) for _ in range(count)]
    async with connect(url) as connection:
        for start in range(0, count, _AT_ONCE):
            calls = [
                cell.put(NewKey(key.id, f"t{(start + n) % tenants}", "key", DIGESTS.of(key)))
                for n, key in enumerate(made[start : start + _AT_ONCE])
            ]
            for outcome in await run_many(connection, calls):
                if isinstance(outcome, Exception):
                    raise outcome
    return made


async def _checks(url: str, keys: list[KeyText]) -> list[dict[str, Any]]:
    """Checks in this process, one after the other, and what it holds after as many keys as there are."""
    tasks: set[asyncio.Task[Any]] = set()
    async with KeyClient(url, DIGESTS) as client:
        cache = KeyCache(client, DIGESTS, lambda work: tasks.add(asyncio.create_task(work)))
        rows = []
        for what in ("cold", "warm"):
            seconds = []
            for key in keys[:1000]:
                if what == "warm":
                    await cache.caller(key)
                began = time.perf_counter()
                await cache.caller(key)
                seconds.append(time.perf_counter() - began)
            rows.append({"what": f"check, {what}", **_spread(seconds)})
        await asyncio.gather(*tasks)
        tasks.clear()
        before = psutil.Process().memory_info().rss
        held = keys[: MOST_KEYS + 1]
        for start in range(0, len(held), _CHECKED_AT_ONCE):
            await asyncio.gather(*(cache.caller(key) for key in held[start : start + _CHECKED_AT_ONCE]))
            await asyncio.gather(*tasks)
            tasks.clear()
        memory = psutil.Process().memory_info().rss - before
        rows.append({"what": f"memory of {len(held)} checked keys, most that are kept", "MB": memory / 1e6})
    return rows


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"us_median": median(seconds) * 1e6, "us_p99": percentile(seconds, 0.99) * 1e6}


@contextmanager
def _gateway(url: str, secret: Path) -> Iterator[tuple[int, psutil.Process, float]]:
    """A gateway that asks for keys: its port, its process, and the seconds that it took to answer."""
    began = time.perf_counter()
    words = ["--port", "0", "--redis-url", url, "--require-keys", "--secret-file", str(secret), "--log-format", "text"]
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo_gateway", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "http://127.0.0.1:" in line:
                port = int(line.partition("http://127.0.0.1:")[2].split()[0])
                break
        else:
            raise RuntimeError("the gateway did not start")
        assert _status(port, None) == 401
        yield port, psutil.Process(process.pid), time.perf_counter() - began
    finally:
        process.kill()
        process.wait()


def _start_s(url: str, secret: Path) -> float:
    found = []
    for _ in range(3):
        with _gateway(url, secret) as (_, _, seconds):
            found.append(seconds)
    return median(found)


def _status(port: int, key: KeyText | None, connection: http.client.HTTPConnection | None = None) -> int:
    used = connection or http.client.HTTPConnection("127.0.0.1", port)
    used.request("GET", "/docs", headers={} if key is None else {"Authorization": f"Bearer {key.text}"})
    answer = used.getresponse()
    answer.read()
    return answer.status


def _over_http(url: str, secret: Path, keys: list[KeyText]) -> list[dict[str, Any]]:
    with _gateway(url, secret) as (port, process, _):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        before = process.memory_info().rss
        seconds = []
        for key in keys:
            began = time.perf_counter()
            if _status(port, key, connection) != 200:
                raise RuntimeError("a key was refused")
            seconds.append(time.perf_counter() - began)
        memory = process.memory_info().rss - before
    return [{"what": f"{len(keys)} requests, a key each", **_spread(seconds), "MB": memory / 1e6}]


async def _revocations(url: str, secret: Path, count: int, *, is_lost: bool) -> list[dict[str, Any]]:
    """Seconds from a revocation to the refusal at the last of the gateways, which are asked without a pause."""
    found = []
    with ExitStack() as stack, redis.Redis.from_url(url) as connection:
        ports = [stack.enter_context(_gateway(url, secret))[0] for _ in range(count)]
        async with KeyClient(url, DIGESTS) as client:
            for _ in range(10):
                made, key = await client.create("acme", "key")
                if any(_status(port, key) != 200 for port in ports):
                    raise RuntimeError("a key was refused")
                began = time.perf_counter()
                if is_lost:
                    connection.hset(TenantKeys().api_key(made.id), "rev", int(time.time() * 1000))
                else:
                    await client.revoke(made.id)
                left = list(ports)
                while left:
                    left = [port for port in left if _status(port, key) != 401]
                found.append(time.perf_counter() - began)
    what = f"revocation at {count} gateways, {'message lost' if is_lost else 'message heard'}"
    return [{"what": what, "seconds_median": median(found), "seconds_most": max(found)}]


if __name__ == "__main__":
    typer.run(main)
