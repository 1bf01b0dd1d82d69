"""A gateway is ready when a job would be accepted: a server that takes no writes is none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import redis
from killable_server import killable_server
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S, until

from octavo.terms.errors import QueueFull
from octavo_gateway import state


def fill(server: redis.Redis) -> None:
    server.config_set("maxmemory", 1)


def free(server: redis.Redis) -> None:
    server.config_set("maxmemory", 0)


def demote(server: redis.Redis) -> None:
    server.replicaof("127.0.0.1", 1)


def promote(server: redis.Redis) -> None:
    server.replicaof("NO", "ONE")


def lose_replicas(server: redis.Redis) -> None:
    server.config_set("min-replicas-to-write", 1)


def need_no_replicas(server: redis.Redis) -> None:
    server.config_set("min-replicas-to-write", 0)


def answers(url: str, status: int) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            return (await http.get("/readyz")).status_code == status

    return ask


@pytest.mark.parametrize(("spoil", "mend"), [(fill, free), (demote, promote), (lose_replicas, need_no_replicas)])
async def test_not_ready_while_nothing_can_be_written(
    own_gateway: Callable[..., str],
    tmp_path: Path,
    spoil: Callable[[redis.Redis], None],
    mend: Callable[[redis.Redis], None],
) -> None:
    with killable_server(tmp_path) as server, redis.Redis.from_url(server.url) as connection:
        url = own_gateway(redis_url=server.url)
        async with ScriptedWorker(server.url):
            pass
        await until(answers(url, 200))
        spoil(connection)
        await until(answers(url, 503))
        async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            assert (await http.get("/readyz")).json()["reason"]
            assert (await http.post("/v1/jobs", json={"model": MODEL, "prompt": "x"})).status_code in (429, 503)
        mend(connection)
        await until(answers(url, 200))


@pytest.mark.parametrize("rule", ["+@read +info", "+@all -set", "+@all -@scripting"])
async def test_not_ready_where_the_user_may_not_write(
    own_gateway: Callable[..., str], redis_sync: redis.Redis, redis_url: str, rule: str
) -> None:
    redis_sync.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", *rule.split())
    try:
        address = urlsplit(redis_url)
        assert address.hostname is not None
        url = own_gateway(redis_url=f"redis://reader:pw@{address.hostname}:{address.port}")
        async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            reply = await http.get("/readyz")
            assert reply.status_code == 503
            assert "pw" not in reply.text
    finally:
        redis_sync.execute_command("ACL", "DELUSER", "reader")


async def test_the_reason_has_no_password(own_gateway: Callable[..., str]) -> None:
    url = own_gateway(redis_url="redis://127.0.0.1:1/0?password=Zq7")
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        reply = await http.get("/readyz")
    assert reply.status_code == 503
    assert "127.0.0.1:1" in reply.text
    assert "Zq7" not in reply.text


async def test_many_questions_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    class FullServer:
        async def check_writable(self) -> None:
            asked.append(state.monotonic())
            raise QueueFull("the server's memory is full")

    writes = state.Writes(FullServer())  # type: ignore[arg-type]
    for now in (100.0, 100.5, 101.0, 101.9, 102.0):
        monkeypatch.setattr(state, "monotonic", lambda now=now: now)
        with pytest.raises(QueueFull):
            await writes.check()
    assert asked == [100.0, 101.0, 102.0]
