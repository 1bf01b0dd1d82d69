"""Messages as the package of Standard Webhooks for JavaScript checks them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from coding_agents import NODE
from couriers import delivering, secrets
from programs import run_program
from receivers import Received, Receiver
from waiting import until
from webhook_bench import HOOKS, HookBench

pytestmark = [pytest.mark.node, pytest.mark.npm]


async def read(*messages: dict[str, Any]) -> list[Any]:
    """Each message as the package reads it: an event, or the name of an error."""
    async with run_program("node", "webhook.mjs", json.dumps(messages), folder=NODE) as process:
        out, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    found: list[Any] = json.loads(out)
    return found


def message(got: Received, secret: str, **changed: str) -> dict[str, Any]:
    headers = {name: value for name, value in got.headers.items() if name.startswith("webhook-")}
    return {"secret": secret, "body": got.body.decode(), "headers": headers | changed}


async def test_a_message_is_signed_by_the_endpoint_s_secret_alone(receiver: Receiver, redis_url: str) -> None:
    bench = HookBench(redis_url)
    endpoint = bench.endpoint(url=receiver.url("/200"))
    bench.event()
    async with delivering(redis_url):
        await until(lambda: len(receiver.received) == 1)
        assert bench.run(HOOKS.rotate(endpoint, "acme", 1, keep_s=60)) == 2
        bench.event()
        await until(lambda: len(receiver.received) == 2)
    first, second = receiver.received
    own, next_one, other = (secrets().current(*of) for of in ((endpoint, 1), (endpoint, 2), ("we_other", 1)))
    forged = message(first, own) | {"body": first.body.decode().replace("completed", "failed")}
    found = await read(
        message(first, own),
        message(second, own),
        message(second, next_one),
        message(first, next_one),
        message(first, other),
        message(first, own, **{"webhook-timestamp": "1700000000"}),
        message(first, own, **{"webhook-id": second.headers["webhook-id"]}),
        forged,
    )
    assert found[:3] == [json.loads(first.body), json.loads(second.body), json.loads(second.body)]
    assert found[3:] == ["WebhookVerificationError"] * 5
