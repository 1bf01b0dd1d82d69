"""Deliveries: signed as receivers check it, under one id at every try, until they are taken or given up."""

from __future__ import annotations

import asyncio
import base64
import json

import openai
import pytest
from collector import collecting
from couriers import delivering, secrets
from openai.types.webhooks import ResponseCompletedWebhookEvent
from receivers import Received, Receiver
from standardwebhooks import Webhook, WebhookVerificationError
from waiting import until
from webhook_bench import HOOK_KEYS, HOOKS, HookBench

from octavo.service.tracing.tracing import Tracing
from octavo.service.webhooks.courier import PAUSES_S
from octavo.terms.tracing.context import TraceContext

QUICK = (0.0,) * 11


@pytest.fixture
def bench(redis_url: str) -> HookBench:
    return HookBench(redis_url)


def is_signed_by(got: Received, secret: str) -> bool:
    """True if both the package of Standard Webhooks and that of OpenAI think so."""
    with openai.OpenAI(api_key="none") as ai:
        try:
            ai.webhooks.verify_signature(got.body, got.headers, secret=secret)
            theirs = True
        except openai.InvalidWebhookSignatureError:
            theirs = False
    try:
        Webhook(secret).verify(got.body, got.headers)
        ours = True
    except WebhookVerificationError:
        ours = False
    assert theirs == ours
    return ours


async def test_a_message_is_what_the_packages_expect(bench: HookBench, receiver: Receiver, redis_url: str) -> None:
    endpoint = bench.endpoint(url=receiver.url("/200"))
    job = bench.submit(notify=False, background=True)
    bench.end()
    async with delivering(redis_url):
        await until(lambda: receiver.received and not bench.leftovers())
    (got,) = receiver.received
    secret = secrets().current(endpoint, 1)
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    with openai.OpenAI(api_key="none", webhook_secret=secret) as ai:
        event = ai.webhooks.unwrap(got.body, got.headers)
    assert isinstance(event, ResponseCompletedWebhookEvent)
    assert event.data.id == f"resp_{job}"
    assert Webhook(secret).verify(got.body, got.headers) == json.loads(got.body)
    assert set(json.loads(got.body)) == {"object", "id", "type", "created_at", "data"}
    assert got.headers["webhook-id"] == event.id
    assert got.headers["content-type"] == "application/json"
    assert not is_signed_by(got, secrets().current(endpoint, 2))


async def test_one_id_at_every_try_until_it_is_given_up(bench: HookBench, receiver: Receiver, redis_url: str) -> None:
    endpoint = bench.endpoint(url=receiver.url("/500"))
    event = bench.event()
    async with delivering(redis_url, pauses_s=QUICK) as registry:
        tries = "octavo_clerk_webhook_tries_total"
        await until(lambda: registry.get_sample_value(tries, {"outcome": "failed"}))
        assert registry.get_sample_value(tries, {"outcome": "again"}) == 11
        assert bench.redis.zcard(HOOK_KEYS.failed(endpoint)) == 1
    assert receiver.ids("/500") == [event] * 12
    assert bench.redis.hmget(HOOK_KEYS.delivery(endpoint, event), "n", "ans") == [b"12", b"500"]


def test_twelve_tries_in_72_hours() -> None:
    assert len(PAUSES_S) == 11
    assert 71 * 3600 < sum(PAUSES_S) <= 72 * 3600


@pytest.mark.parametrize(
    ("path", "answer", "least_s", "most_s"),
    [
        ("/500", b"500", 4.0, 6.0),
        ("/redirect", b"302", 4.0, 6.0),
        ("/close", b"unreachable", 4.0, 6.0),
        ("/later", b"503", 2999.0, 3001.0),
    ],
)
async def test_what_is_not_taken_is_tried_again_after_a_pause(
    bench: HookBench, receiver: Receiver, redis_url: str, path: str, answer: bytes, least_s: float, most_s: float
) -> None:
    endpoint = bench.endpoint(url=receiver.url(path))
    event = bench.event()
    delivery = HOOK_KEYS.delivery(endpoint, event)
    async with delivering(redis_url):
        await until(lambda: bench.redis.hget(delivery, "n") == b"1" and receiver.received)
    seconds, micros = bench.redis.time()
    pause_s = int(bench.redis.hget(delivery, "due")) / 1000 - (seconds + micros / 1e6)
    assert pause_s < most_s
    (got,) = receiver.received
    assert int(bench.redis.hget(delivery, "due")) / 1000 - int(got.headers["webhook-timestamp"]) > least_s
    assert bench.redis.hget(delivery, "ans") == answer


async def test_a_receiver_that_is_gone_is_asked_no_more(bench: HookBench, receiver: Receiver, redis_url: str) -> None:
    endpoint = bench.endpoint(url=receiver.url("/410"))
    bench.event()
    async with delivering(redis_url):
        await until(lambda: bench.redis.hexists(HOOK_KEYS.endpoint(endpoint), "off"))
        other = bench.endpoint(url=receiver.url("/200"))
        bench.event()
        await until(lambda: receiver.ids("/200"))
    assert len(receiver.ids("/410")) == 1
    assert other != endpoint


async def test_both_secrets_sign_for_as_long_as_was_asked(bench: HookBench, receiver: Receiver, redis_url: str) -> None:
    endpoint = bench.endpoint(url=receiver.url("/200"))
    first, second = (secrets().current(endpoint, version) for version in (1, 2))
    bench.run(HOOKS.rotate(endpoint, "acme", 1, keep_s=3600))
    async with delivering(redis_url):
        bench.event()
        await until(lambda: len(receiver.received) == 1)
        bench.redis.hset(HOOK_KEYS.endpoint(endpoint), "old", 1)
        bench.event()
        await until(lambda: len(receiver.received) == 2)
    both, alone = receiver.received
    assert [is_signed_by(both, first), is_signed_by(both, second)] == [True, True]
    assert [is_signed_by(alone, first), is_signed_by(alone, second)] == [False, True]


async def test_a_new_line_of_the_master_secret_invalidates_nothing(
    bench: HookBench, receiver: Receiver, redis_url: str
) -> None:
    endpoint = bench.endpoint(url=receiver.url("/200"))
    bench.event()
    async with delivering(redis_url, signing=secrets("n" * 40, "o" * 40)):
        await until(lambda: receiver.received)
    (got,) = receiver.received
    assert is_signed_by(got, secrets("o" * 40).current(endpoint, 1))
    assert is_signed_by(got, secrets("n" * 40).current(endpoint, 1))


async def test_secrets_differ_and_none_is_stored(bench: HookBench, receiver: Receiver, redis_url: str) -> None:
    one, other = bench.endpoint(url=receiver.url("/200")), bench.endpoint(url=receiver.url("/200/b"))
    made = [secrets().current(endpoint, version) for endpoint in (one, other) for version in (1, 2)]
    assert len(set(made)) == 4
    bench.event()
    async with delivering(redis_url):
        await until(lambda: len(receiver.received) == 2)
    stored = b"".join(bench.redis.dump(name) or b"" for name in bench.redis.scan_iter("*"))
    assert not [secret for secret in made if secret[6:30].encode() in stored]


async def test_receivers_that_hang_hold_up_no_other(bench: HookBench, receiver: Receiver, redis_url: str) -> None:
    for number in range(10):
        bench.endpoint(url=receiver.url(f"/hang/{number}"))
    bench.endpoint(url=receiver.url("/200"))
    events = [bench.event() for _ in range(8)]
    async with delivering(redis_url):
        await until(lambda: len(receiver.ids("/200")) == 8)
        assert sorted(receiver.ids("/200")) == sorted(events)
        for number in range(10):
            assert len(receiver.ids(f"/hang/{number}")) <= 4


async def test_a_courier_that_ends_gives_back_what_it_has(bench: HookBench, receiver: Receiver, redis_url: str) -> None:
    endpoint = bench.endpoint(url=receiver.url("/hang"))
    event = bench.event()
    async with delivering(redis_url):
        await until(lambda: receiver.received)
    assert bench.redis.zcard(HOOK_KEYS.tried(endpoint)) == 0
    (tried,) = bench.claim()
    assert (tried.event_id, tried.tries) == (event, 0)


async def test_a_damaged_delivery_is_given_up(bench: HookBench, receiver: Receiver, redis_url: str) -> None:
    endpoint = bench.endpoint(url=receiver.url("/200"))
    event = bench.event()
    bench.redis.hset(HOOK_KEYS.delivery(endpoint, event), "typ", "\nsomebody else's")
    async with delivering(redis_url):
        await until(lambda: bench.redis.zcard(HOOK_KEYS.failed(endpoint)))
    assert receiver.received == []


async def test_an_endpoint_whose_name_turned_private_gets_nothing(bench: HookBench, redis_url: str) -> None:
    endpoint = bench.endpoint(url="http://10.0.0.1/hook")
    event = bench.event()
    async with delivering(redis_url):
        await until(lambda: bench.redis.hget(HOOK_KEYS.delivery(endpoint, event), "ans") == b"address_refused")


async def test_a_server_that_is_away_for_a_moment_loses_nothing(
    bench: HookBench, receiver: Receiver, redis_url: str
) -> None:
    bench.endpoint(url=receiver.url("/200"))
    async with delivering(redis_url):
        for _ in range(5):
            event = bench.event()
            for client in bench.redis.client_list():
                if int(client["id"]) != bench.redis.client_id():
                    bench.redis.client_kill_filter(_id=client["id"])
            await until(lambda event=event: event in receiver.ids("/200"))
            await asyncio.sleep(0)
        await until(lambda: not bench.leftovers())


async def test_deliveries_are_in_the_trace_of_what_they_tell_of(
    bench: HookBench, receiver: Receiver, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.endpoint(url=receiver.url("/200"))
    trace = TraceContext("a" * 32, "b" * 16, True)
    bench.submit(trace=str(trace))
    bench.end()
    async with delivering(redis_url):
        await until(lambda: receiver.received and not bench.leftovers())
    assert receiver.received[0].headers["traceparent"] == str(trace)
    bench.submit(trace=str(trace))
    bench.end()
    bench.event()
    with collecting() as collector:
        collector.asked(monkeypatch)
        tracing = Tracing("octavo-clerk", "one")
        async with delivering(redis_url, tracing=tracing):
            await until(lambda: len(receiver.received) >= 3 and not bench.leftovers())
        await asyncio.to_thread(tracing.close)
    span = collector.spans[-1]
    sent = {one.headers.get("traceparent") for one in receiver.received[1:]}  # a slow machine's try is repeated
    assert sent - {None} == {f"00-{one.trace_id}-{one.span_id}-01" for one in collector.spans}
    assert (span.trace_id, span.parent_id, span.kind) == (trace.trace_id, trace.span_id, "client")
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["octavo.webhook.event"] == "job.completed"
    assert str(receiver.port) not in str(span.attributes)
