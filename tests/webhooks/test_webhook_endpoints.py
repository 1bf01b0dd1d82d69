"""`/v1/webhook_endpoints` as the openai package calls it, unmodified, and events from the request that asked for them
to the receiver."""

from __future__ import annotations

from pathlib import Path

import httpx
import openai
import pytest
import redis
from clerks import begin, encoded, line, reach, working
from couriers import delivering
from openai.types.webhooks import BatchCompletedWebhookEvent, BatchFailedWebhookEvent
from receivers import HOSTS, Receiver
from scripted_worker import MODEL, ScriptedWorker
from serving import serving
from standardwebhooks import Webhook
from waiting import until

from octavo import AsyncClient
from octavo.terms.webhooks import EVENT_TYPES
from octavo_gateway.settings import GatewaySettings

TYPES = ["batch.completed", "response.completed"]


async def test_the_life_of_an_endpoint(ai: openai.AsyncOpenAI, receiver: Receiver) -> None:
    made = await ai.webhooks.create(name="nightly", url=receiver.url("/200"), event_types=TYPES)  # type: ignore[arg-type]
    assert (made.object, made.name, made.event_types) == ("webhook_endpoint", "nightly", TYPES)
    assert made.signing_secret.startswith("whsec_")
    assert made.signing_secret_hint == f"whsec_...{made.signing_secret[-5:]}"
    shown = await ai.webhooks.retrieve(made.id)
    assert "signing_secret" not in shown.model_dump()
    same = await ai.webhooks.update(made.id, name="nightly")
    assert same.updated_at == made.updated_at
    changed = await ai.webhooks.update(made.id, name="weekly", event_types=["batch.failed"])
    assert (changed.name, changed.event_types, changed.url) == ("weekly", ["batch.failed"], made.url)
    turned = await ai.webhooks.rotate_secret(made.id)
    assert turned.signing_secret != made.signing_secret
    tested = await ai.webhooks.test(made.id, event_type="batch.completed")
    assert (tested.status_code, tested.success, tested.webhook_endpoint_id) == (200, True, made.id)
    (got,) = receiver.received
    assert isinstance(
        ai.webhooks.unwrap(got.body, got.headers, secret=turned.signing_secret), BatchCompletedWebhookEvent
    )
    with pytest.raises(openai.InvalidWebhookSignatureError):
        ai.webhooks.unwrap(got.body, got.headers, secret=made.signing_secret)
    gone = await ai.webhooks.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "webhook_endpoint.deleted")
    with pytest.raises(openai.NotFoundError):
        await ai.webhooks.retrieve(made.id)


async def test_both_secrets_sign_after_a_rotation_that_keeps_the_old_one(
    ai: openai.AsyncOpenAI, receiver: Receiver
) -> None:
    made = await ai.webhooks.create(name="n", url=receiver.url("/200"), event_types=["batch.failed"])
    turned = await ai.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    await ai.webhooks.test(made.id, event_type="batch.failed")
    (got,) = receiver.received
    for secret in (made.signing_secret, turned.signing_secret):
        assert isinstance(ai.webhooks.unwrap(got.body, got.headers, secret=secret), BatchFailedWebhookEvent)
        assert Webhook(secret).verify(got.body, got.headers)["type"] == "batch.failed"


async def test_endpoints_are_listed_in_pages_and_are_their_tenants_own(
    ai: openai.AsyncOpenAI, other: openai.AsyncOpenAI, receiver: Receiver
) -> None:
    made = [
        (await ai.webhooks.create(name=f"{n}", url=receiver.url("/200"), event_types=["batch.failed"])).id
        for n in range(3)
    ]
    first = await ai.webhooks.list(limit=2)
    assert (first.object, first.has_more, first.first_id, first.last_id) == ("list", True, made[2], made[1])
    rest = await ai.webhooks.list(limit=2, after=first.last_id)
    assert ([one.id for one in rest.data], rest.has_more) == ([made[0]], False)
    assert (await other.webhooks.list()).data == []
    with pytest.raises(openai.NotFoundError) as missing:
        await other.webhooks.retrieve(made[0])
    assert missing.value.code == "webhook_endpoint_not_found"
    for ask in (other.webhooks.delete, other.webhooks.rotate_secret, other.webhooks.update):
        with pytest.raises(openai.NotFoundError):
            await ask(made[0])
    with pytest.raises(openai.NotFoundError):
        await other.webhooks.test(made[0], event_type="batch.failed")
    assert [one.id for one in (await ai.webhooks.list()).data] == made[::-1]


async def test_types_of_events(ai: openai.AsyncOpenAI, receiver: Receiver) -> None:
    assert (await ai.webhooks.event_types.list()).data == list(EVENT_TYPES)
    for types in (["video.completed"], [], ["batch.completed\n"]):
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.webhooks.create(name="n", url=receiver.url("/200"), event_types=types)  # type: ignore[arg-type]
        assert str(refused.value.param).startswith("event_types")


async def test_no_private_address_is_taken(redis_url: str) -> None:
    settings = GatewaySettings(redis_url=redis_url, secret="s" * 40, webhook_http=True)
    with serving(settings) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as ai:
            for host in HOSTS:
                with pytest.raises(openai.BadRequestError) as refused:
                    await ai.webhooks.create(name="n", url=f"http://{host}/", event_types=["batch.failed"])
                assert (refused.value.code, refused.value.param) == ("invalid_url", "url"), host


async def test_update_and_test_check_the_address_again(
    ai: openai.AsyncOpenAI, receiver: Receiver, redis_sync: redis.Redis
) -> None:
    made = await ai.webhooks.create(name="n", url=receiver.url("/200"), event_types=["batch.failed"])
    for url in ("http://10.0.0.1/", "https://169.254.169.254/", "nonsense"):
        with pytest.raises(openai.BadRequestError):
            await ai.webhooks.update(made.id, url=url)
        redis_sync.hset(f"{{c00}}:he:{made.id}", "url", url)
        with pytest.raises(openai.BadRequestError):
            await ai.webhooks.test(made.id, event_type="batch.failed")
    assert receiver.received == []


async def test_a_test_tells_the_status_that_came_back(ai: openai.AsyncOpenAI, receiver: Receiver) -> None:
    made = await ai.webhooks.create(name="n", url=receiver.url("/500"), event_types=["batch.failed"])
    assert (await ai.webhooks.test(made.id, event_type="batch.failed")).status_code == 500
    await ai.webhooks.update(made.id, url=receiver.url("/close"))
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.webhooks.test(made.id, event_type="batch.failed")
    assert refused.value.code == "webhook_unreachable"


async def test_a_gateway_without_a_secret_says_what_to_set(redis_url: str) -> None:
    with serving(GatewaySettings(redis_url=redis_url)) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as ai:
            with pytest.raises(openai.InternalServerError) as refused:
                await ai.webhooks.list()
            assert refused.value.status_code == 501
            assert "OCTAVO_SECRET" in str(refused.value)


async def test_a_job_that_asks_is_told_of_and_another_is_not(
    http: httpx.AsyncClient, receiver: Receiver, redis_url: str, ai: openai.AsyncOpenAI
) -> None:
    types = ["job.completed", "job.cancelled"]
    asked = {"name": "n", "url": receiver.url("/200"), "event_types": types}
    made = (await http.post("/v1/webhook_endpoints", json=asked)).json()
    job = {"model": MODEL, "prompt": "p", "sampling": {"max_tokens": 3}}
    async with ScriptedWorker(redis_url), delivering(redis_url), AsyncClient(redis_url, tenant="acme") as client:
        await until(lambda: _is_known(http))
        silent = (await http.post("/v1/jobs", json=job)).json()["id"]
        noisy = (await http.post("/v1/jobs", json={**job, "notify": True})).json()["id"]
        own = await client.submit("p", model=MODEL, max_tokens=3, notify=True)
        await until(lambda: len(receiver.received) == 2)
        await client.result(silent)
    told = {Webhook(made["signing_secret"]).verify(got.body, got.headers)["data"]["id"] for got in receiver.received}
    assert told == {noisy, own.id}


async def _is_known(http: httpx.AsyncClient) -> bool:
    return bool((await http.get("/v1/models")).json()["data"])


async def test_a_background_response_is_told_of_as_it_ended(
    ai: openai.AsyncOpenAI, http: httpx.AsyncClient, receiver: Receiver, redis_url: str
) -> None:
    made = await ai.webhooks.create(
        name="n", url=receiver.url("/200"), event_types=[kind for kind in EVENT_TYPES if "response" in kind]  # type: ignore
    )  # fmt: skip
    async with ScriptedWorker(redis_url), delivering(redis_url):
        await until(lambda: _is_known(http))
        await ai.responses.create(model=MODEL, input="hello", max_output_tokens=3)
        told = await ai.responses.create(model=MODEL, input="hello", background=True, max_output_tokens=3)
        await until(lambda: receiver.received)
        status = (await ai.responses.retrieve(told.id)).status
    (got,) = receiver.received
    event = ai.webhooks.unwrap(got.body, got.headers, secret=made.signing_secret)
    assert (event.type, event.data.id) == (f"response.{status}", told.id)  # type: ignore[union-attr]


async def test_a_batch_is_told_of(
    ai: openai.AsyncOpenAI, http: httpx.AsyncClient, receiver: Receiver, redis_url: str, tmp_path: Path
) -> None:
    made = await ai.webhooks.create(name="n", url=receiver.url("/200"), event_types=["batch.completed", "batch.failed"])
    async with ScriptedWorker(redis_url), delivering(redis_url), working(redis_url, tmp_path / "files"):
        await until(lambda: _is_known(http))
        whole = await begin(ai, encoded(line("a")))
        await reach(ai, whole.id, "completed")
        bad = await begin(ai, b"not a line\n")
        await until(lambda: len(receiver.received) == 2)
    events = [ai.webhooks.unwrap(got.body, got.headers, secret=made.signing_secret) for got in receiver.received]
    assert {(event.type, event.data.id) for event in events} == {  # type: ignore[union-attr]
        ("batch.completed", whole.id),
        ("batch.failed", bad.id),
    }


async def test_what_failed_to_the_end_is_listed_and_sent_again(
    http: httpx.AsyncClient, receiver: Receiver, redis_url: str
) -> None:
    asked = {"name": "n", "url": receiver.url("/500"), "event_types": ["job.completed"]}
    endpoint = (await http.post("/v1/webhook_endpoints", json=asked)).json()["id"]
    path = f"/v1/webhook_endpoints/{endpoint}"
    async with ScriptedWorker(redis_url), delivering(redis_url, pauses_s=()):
        await until(lambda: _is_known(http))
        job = (await http.post("/v1/jobs", json={"model": MODEL, "prompt": "p", "notify": True})).json()["id"]

        async def failed() -> list[dict[str, object]]:
            found = (await http.get(f"{path}/deliveries")).json()["data"]
            return [one for one in found if one["status"] == "failed"]

        (one,) = await until(failed)
        assert (one["of"], one["last_answer"], one["tries"]) == (job, "500", 1)
        metrics = (await http.get("/metrics")).text
        assert "octavo_webhook_failures_total 1.0" in metrics
        assert "octavo_webhook_deliveries_waiting 0.0" in metrics
        assert "octavo_webhook_oldest_due_seconds 0.0" in metrics
        await http.post(path, json={"url": receiver.url("/200")})
        assert (await http.post(f"{path}/resend", json={"event_id": "evt_x"})).json()["resent"] == 0
        assert (await http.post(f"{path}/resend", json={"event_id": one["event_id"]})).json()["resent"] == 1

        async def is_done() -> bool:
            return not (await http.get(f"{path}/deliveries")).json()["data"]

        await until(is_done)
    assert receiver.ids("/200") == receiver.ids("/500") == [f"evt_{job}"]


async def test_an_endpoint_that_answered_410_says_so(
    http: httpx.AsyncClient, receiver: Receiver, redis_sync: redis.Redis
) -> None:
    asked = {"name": "n", "url": receiver.url("/410"), "event_types": ["job.completed"]}
    endpoint = (await http.post("/v1/webhook_endpoints", json=asked)).json()["id"]
    path = f"/v1/webhook_endpoints/{endpoint}"
    assert (await http.get(path)).json()["status"] == "enabled"
    redis_sync.hset(f"{{c00}}:he:{endpoint}", "off", 1)
    assert (await http.get(path)).json()["status"] == "disabled"
    refused = await http.post(f"{path}/resend", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "webhook_endpoint_disabled")
    assert (await http.post(path, json={})).json()["status"] == "enabled"
