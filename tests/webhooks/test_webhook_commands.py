"""`octavo webhooks` on a gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import openai
import pytest
import redis
from receivers import Receiver
from typer.testing import CliRunner, Result
from waiting import until
from webhook_bench import HOOK_KEYS, HOOKS, HookBench

from octavo.cli.webhooks import app
from octavo.service.batches.remote import Refused

Run = Callable[..., Result]


@pytest.fixture
def run(gateway: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("OCTAVO_URL", gateway)
    monkeypatch.setenv("OCTAVO_API_KEY", "k1")
    return lambda *words: CliRunner().invoke(app, words)


async def apart(run: Run, *words: str) -> Result:
    """In a thread: a test of an endpoint asks a receiver in this one."""
    return await asyncio.to_thread(run, *words)


async def test_endpoints_and_their_deliveries(
    run: Run, ai: openai.AsyncOpenAI, receiver: Receiver, redis_sync: redis.Redis, redis_url: str
) -> None:
    assert "none" in (await apart(run, "ls")).output
    made = await ai.webhooks.create(name="n\x1b[31m", url=receiver.url("/200"), event_types=["batch.failed"])
    listed = await apart(run, "ls")
    assert made.id in listed.output
    assert "\x1b" not in listed.output
    assert [one["id"] for one in json.loads((await apart(run, "ls", "--json")).output)] == [made.id]
    tested = await apart(run, "test", made.id)
    assert (tested.exit_code, tested.output.strip()) == (0, f"200 from {made.id}")
    await ai.webhooks.update(made.id, url=receiver.url("/500"))
    assert (await apart(run, "test", made.id, "--type", "job.failed")).exit_code == 1
    assert "none" in (await apart(run, "deliveries", made.id)).output
    assert isinstance((await apart(run, "deliveries", "we_other")).exception, Refused)


async def test_what_failed_is_shown_and_sent_again(run: Run, redis_url: str) -> None:
    bench = HookBench(redis_url)
    endpoint = bench.endpoint()
    event = bench.event()
    (tried,) = bench.claim()
    bench.run(HOOKS.commit(tried, "failed", answer="500"))
    assert "listed no more" not in (await apart(run, "deliveries", endpoint)).output
    bench.redis.hset(HOOK_KEYS.endpoint(endpoint), "lost", 3)
    shown = await apart(run, "deliveries", endpoint)
    assert "3 more failed earlier, and are listed no more" in shown.output
    assert shown.exit_code == 1
    assert "500" in shown.output
    assert (await apart(run, "resend", endpoint, "evt_other")).exit_code == 1
    assert "1 sent again" in (await apart(run, "resend", endpoint, event)).output
    again = await apart(run, "deliveries", endpoint, "--json")
    assert [one["status"] for one in json.loads(again.output)] == ["waiting"]
    assert again.exit_code == 0
    await until(lambda: bench.claim())
