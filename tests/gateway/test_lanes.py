"""Lanes and dead letters over HTTP and from the command line."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
import redis
from cli_driver import Cli
from waiting import STALL_S

from octavo.queue.calls import run_sync
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell
from octavo.terms.workers import ModelCard

CELL, KEYS, MODEL = Cell(), Keys(), "toy"


@pytest.fixture
async def operator(own_gateway, redis_url: str, redis_sync: redis.Redis):
    card = ModelCard(name=MODEL, max_model_len=4096, vocab_size=256, has_tokenizer=True, created_at=1.0)
    run_sync(redis_sync, CELL.register_model(card))
    url = own_gateway(api_keys="ops:k1,acme:k2", operators="ops")
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S, headers={"Authorization": "Bearer k1"}) as client:
        yield client


def claim(connection: redis.Redis) -> list[str]:
    found = run_sync(connection, CELL.claim(MODEL, "w", max_jobs=9, max_tokens=9999, lease_ms=60_000, idle=True))
    return [one.job_id for one in found.jobs]


async def give_up(operator: httpx.AsyncClient, connection: redis.Redis, key: str = "k2") -> str:
    body = {"model": MODEL, "prompt": "x"}
    made = await operator.post("/v1/jobs", json=body, headers={"Authorization": f"Bearer {key}"})
    job = str(made.raise_for_status().json()["id"])
    for _ in range(3):
        call = CELL.claim(MODEL, "w", max_jobs=1, max_tokens=9999, lease_ms=60_000, idle=True)
        (found,) = run_sync(connection, call).jobs
        run_sync(connection, CELL.release([(job, found.token)], why="crashed"))
    return job


async def test_lanes_are_paused_and_go_on(operator: httpx.AsyncClient, redis_sync: redis.Redis) -> None:
    made = await operator.post("/v1/jobs", json={"model": MODEL, "prompt": "x"})
    change = {"model": MODEL, "priority": "normal", "paused": True}
    (paused,) = (await operator.post("/v1/fleet/lanes", json=change)).raise_for_status().json()["data"]
    assert (paused["model"], paused["priority"]) == (MODEL, "normal")
    assert paused["since"] == pytest.approx(time.time(), abs=60)
    assert claim(redis_sync) == []
    stats = (await operator.get("/v1/stats")).json()
    assert [lane["priority"] for lane in stats["lanes"] if lane["paused_since"]] == ["normal"]
    scraped = (await operator.get("/metrics")).text
    assert 'octavo_lane_paused{model_name="toy",priority="normal"} 1.0' in scraped
    assert 'octavo_lane_paused{model_name="toy",priority="high"} 0.0' in scraped
    left = await operator.post("/v1/fleet/lanes", json={"model": MODEL, "paused": False})
    assert left.json()["data"] == (await operator.get("/v1/fleet/lanes")).json()["data"] == []
    assert claim(redis_sync) == [made.json()["id"]]
    unknown = await operator.post("/v1/fleet/lanes", json={"model": "none", "paused": True})
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"


async def test_others_and_foreign_pages_may_not(operator: httpx.AsyncClient) -> None:
    change = {"model": MODEL, "paused": True}
    for path, body in (("lanes", change), ("dead_letters", {"action": "purge", "all": True})):
        other = await operator.post(f"/v1/fleet/{path}", json=body, headers={"Authorization": "Bearer k2"})
        assert (other.status_code, other.json()["error"]["code"]) == (403, "not_an_operator")
        page = await operator.post(f"/v1/fleet/{path}", json=body, headers={"Sec-Fetch-Site": "same-origin"})
        assert (page.status_code, page.json()["error"]["code"]) == (403, "not_the_page")
        origin = str(operator.base_url).rstrip("/")
        page = await operator.post(f"/v1/fleet/{path}", json=body, headers={"Origin": origin})
        assert page.status_code == 403
    assert (await operator.get("/v1/fleet/lanes")).json()["data"] == []


async def test_dead_letters_go_back_in_bulk(operator: httpx.AsyncClient, redis_sync: redis.Redis) -> None:
    mine, theirs = await give_up(operator, redis_sync, "k1"), await give_up(operator, redis_sync)
    listed = (await operator.get("/v1/fleet/dead_letters?tenant=acme")).json()["data"]
    assert [(one["job_id"], one["model"], one["tenant"]) for one in listed] == [(theirs, MODEL, "acme")]
    nothing = await operator.post("/v1/fleet/dead_letters", json={"action": "requeue"})
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (400, "nothing_chosen")
    chosen = {"action": "requeue", "tenant": "acme", "model": MODEL, "reason": "dead_lettered"}
    told = (await operator.post("/v1/fleet/dead_letters", json=chosen)).raise_for_status().json()
    assert told["failed"] == {}
    assert claim(redis_sync) == [told["requeued"][theirs]]
    assert (await operator.post("/v1/fleet/dead_letters", json=chosen)).json()["requeued"] == {}
    purged = await operator.post("/v1/fleet/dead_letters", json={"action": "purge", "reason": "dead_lettered"})
    assert purged.json()["purged"] == 1
    assert (await operator.get("/v1/fleet/dead_letters")).json()["data"] == []
    assert redis_sync.hget(KEYS.job(mine), "body") is None
    assert redis_sync.hget(KEYS.job(mine), "st") == b"failed"


async def test_a_job_may_be_sent_for_later(operator: httpx.AsyncClient, redis_sync: redis.Redis) -> None:
    body = {"model": MODEL, "prompt": "x", "not_before": "2099-01-31T02:00:00Z"}
    made = (await operator.post("/v1/jobs", json=body)).raise_for_status().json()
    shown = (await operator.get(f"/v1/jobs/{made['id']}")).json()
    assert (shown["status"], shown["not_before"]) == ("queued", 4_073_508_000.0)
    assert claim(redis_sync) == []
    wrong = await operator.post("/v1/jobs", json={**body, "not_before": "2099-01-31T02:00:00"})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "not_before"


async def test_the_command_line_does_all_of_it(
    operator: httpx.AsyncClient, redis_sync: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    cli, server = Cli(tmp_path), ("--redis-url", redis_url)
    assert "3 lanes of toy paused" in cli("lanes", "pause", MODEL, *server)
    assert "1 lane of toy resumed" in cli("lanes", "resume", MODEL, "--class", "high", *server)
    assert [lane["priority"] for lane in cli.json("lanes", "ls", *server)["paused"]] == ["normal", "batch"]
    cli("lanes", "resume", MODEL, *server)
    assert "no lane is paused" in cli("lanes", "ls", *server)
    first, second = await give_up(operator, redis_sync, "k1"), await give_up(operator, redis_sync)
    assert first in cli("jobs", "dead", "--tenant", "ops", *server)
    assert second not in cli("jobs", "dead", "--tenant", "ops", *server)
    new = cli.json("jobs", "requeue", "--all", "--tenant", "ops", *server)
    assert new["requeued"].keys() == {first}
    assert cli.json("jobs", "purge", "--model", MODEL, *server) == {"purged": 1}
    assert cli.json("jobs", "purge", "--all", *server) == {"purged": 0}
