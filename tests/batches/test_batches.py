"""Batches as the openai package runs them: every state, every file, and what users do to them meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from clerks import CHAT, RESPONSES, TEXT, begin, encoded, line, lines_of, reach, working
from pydantic import SecretStr
from scripted_worker import CONTEXT, ScriptedWorker, whole_text
from serving import serving
from waiting import until

from octavo import AsyncClient
from octavo.client.keys import KeyClient
from octavo.queue.calls import run_sync
from octavo.queue.tenants.limits import TenantCell
from octavo.queue.webhooks.calls import WebhookCell
from octavo.service.clerk.desk import Desk
from octavo.service.clerk.sweep import remove_unnamed
from octavo.service.storage import open_storage
from octavo.terms.access.api_keys import KeyDigests
from octavo.terms.access.secret import Secret
from octavo_gateway.settings import GatewaySettings

ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
async def worker(redis_url: str) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(redis_url) as running:
        yield running


@pytest.fixture
async def clerk(redis_url: str, folder: Path) -> AsyncIterator[Desk]:
    async with working(redis_url, folder) as desk:
        yield desk


async def test_a_batch_runs_from_its_file_to_its_outputs(ai, other, worker, clerk) -> None:
    data = encoded(*(line(f"id {number} \u2028ü", "x" * (number + 1)) for number in range(70)))
    made = await begin(ai, data, metadata={"a": "b"}, output_expires_after={"anchor": "created_at", "seconds": 3600})
    assert (made.status, made.object, made.endpoint, made.metadata) == ("validating", "batch", TEXT, {"a": "b"})
    assert made.expires_at == made.created_at + 86_400
    batch = await reach(ai, made.id, "completed")
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (70, 70, 0)
    assert batch.model == "toy"
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.error_file_id is None
    lines = await lines_of(ai, batch.output_file_id)
    assert sorted(one["custom_id"] for one in lines) == sorted(f"id {number} \u2028ü" for number in range(70))
    for one in lines:
        assert (one["response"]["status_code"], one["error"]) == (200, None)
        assert one["response"]["body"]["choices"][0]["text"] == whole_text(3)
        number = int(one["custom_id"].split()[1])
        assert one["response"]["body"]["usage"]["prompt_tokens"] == number + 1
    assert batch.usage.input_tokens == sum(range(1, 71))
    assert batch.usage.output_tokens == 210
    assert batch.usage.total_tokens == batch.usage.input_tokens + 210
    output = await ai.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.expires_at) == ("batch_output", output.created_at + 3600)
    assert output.bytes == len((await ai.files.content(output.id)).content)
    with pytest.raises(openai.NotFoundError):
        await other.batches.retrieve(batch.id)
    assert {request.priority for request in worker.seen} == {"batch"}
    assert len(worker.seen) == 70


async def test_jobs_know_the_key_that_asked_for_their_batch(
    redis_url: str, redis_sync: redis.Redis, folder: Path, worker: ScriptedWorker
) -> None:
    secret = "a secret of a service, of more than 32 characters"
    settings = GatewaySettings(redis_url=redis_url, files=str(folder), secret=SecretStr(secret), require_keys=True)
    async with KeyClient(redis_url, KeyDigests(Secret([secret]))) as keys:
        made, key = await keys.create("acme", "nightly")
    with serving(settings) as url:
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key.text, max_retries=0) as ai,
            working(redis_url, folder),
        ):
            await reach(ai, (await begin(ai, encoded(line("a"), line("b")))).id, "completed")
    jobs = list(redis_sync.scan_iter("*:j:*"))
    assert [redis_sync.hmget(job, "tn", "key") for job in jobs] == [[b"acme", made.id.encode()]] * 2


@pytest.mark.parametrize("url", [CHAT, RESPONSES])
async def test_every_endpoint_gives_its_own_answers(ai, worker, clerk, url: str) -> None:
    batch = await reach(ai, (await begin(ai, encoded(line("a", url=url, stream=True)), url=url)).id, *ENDED)
    (one,) = await lines_of(ai, batch.output_file_id)
    body = one["response"]["body"]
    assert body["object"] == ("chat.completion" if url == CHAT else "response")
    assert whole_text(3) in json.dumps(body)
    assert one["response"]["request_id"] in body["id"]


async def test_lines_that_fail_are_in_the_error_file_as_the_endpoint_would_answer(ai, worker, clerk) -> None:
    data = encoded(
        line("good"),
        line("hot", temperature=9),
        line("long", "x" * (CONTEXT + 1)),
        line("two", prompt=["a", "b"], n=2),
        line("half", prompt=["a", "x" * (CONTEXT + 1)]),
        line("grammar", guided_regex="("),
    )
    batch = await reach(ai, (await begin(ai, data)).id, *ENDED)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 4)
    good = {one["custom_id"]: one for one in await lines_of(ai, batch.output_file_id)}
    bad = {one["custom_id"]: one for one in await lines_of(ai, batch.error_file_id)}
    assert (set(good), set(bad)) == ({"good", "two"}, {"hot", "long", "half", "grammar"})
    assert len(good["two"]["response"]["body"]["choices"]) == 4
    for one in bad.values():
        assert (one["error"], one["response"]["status_code"]) == (None, 400)
        assert one["response"]["body"]["error"]["type"] == "invalid_request_error"
    assert bad["hot"]["response"]["body"]["error"]["param"] == "temperature"
    assert bad["long"]["response"]["body"]["error"]["code"] == "context_length_exceeded"


async def test_a_batch_waits_for_the_bucket_of_its_tenant_and_fails_lines_that_never_fit(
    ai, worker, clerk, redis_sync: redis.Redis
) -> None:
    limits = {"requests_per_minute": 3000, "requests_per_minute_capacity": 4, "tokens_per_minute": 100_000}
    run_sync(redis_sync, TenantCell().change("acme", limits | {"max_tokens": 50, "tokens_per_minute_capacity": 80}))
    lines = [line(f"fits {number}") for number in range(12)]
    never = [line("long", max_tokens=51), line("large", "x" * 200, max_tokens=40), line("small", max_tokens=50)]
    batch = await reach(ai, (await begin(ai, encoded(*lines, *never))).id, *ENDED)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 13, 2)
    bad = {one["custom_id"]: one["response"] for one in await lines_of(ai, batch.error_file_id)}
    assert set(bad) == {"long", "large"}
    assert {answer["status_code"] for answer in bad.values()} == {400}
    assert len(worker.seen) == 13


async def test_without_a_successful_line_there_is_no_output_file(ai, worker, clerk) -> None:
    batch = await reach(ai, (await begin(ai, encoded(line("a", temperature=9)))).id, *ENDED)
    assert (batch.status, batch.output_file_id) == ("completed", None)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (0, 1)
    assert len(await lines_of(ai, batch.error_file_id)) == 1


async def test_a_file_with_faults_fails_as_a_whole(ai, worker, clerk, folder: Path) -> None:
    data = encoded(line("a"), line("a")) + b"{\n" + encoded(line("c", url=CHAT))
    batch = await reach(ai, (await begin(ai, data)).id, "failed")
    assert [(error.code, error.line, error.param) for error in batch.errors.data] == [
        ("duplicate_custom_id", 2, "custom_id"),
        ("invalid_json_line", 3, None),
        ("url_mismatch", 4, "url"),
    ]
    assert (batch.errors.object, batch.request_counts.total, batch.failed_at is not None) == ("list", 0, True)
    unknown = await reach(ai, (await begin(ai, encoded(line("a", model="absent")))).id, "failed")
    assert unknown.errors.data[0].code == "model_not_found"
    gone = await begin(ai, encoded(line("a")))
    (folder / "files" / gone.input_file_id).unlink(missing_ok=True)
    assert worker.seen == []
    await ai.files.delete(batch.input_file_id)


async def test_a_batch_that_is_cancelled_delivers_what_has_ended(ai, redis_url, redis_sync, clerk) -> None:
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        data = encoded(line("quick", max_tokens=1), *(line(f"slow {number}") for number in range(300)))
        made = await begin(ai, data)
        await until(lambda: redis_sync.zcard(f"{{c00}}:bte:{made.id}") == 1 or _counts(redis_sync, made.id))
        await until(lambda: len(worker.seen) > 50)
        with pytest.raises(openai.ConflictError) as used:
            await ai.files.delete(made.input_file_id)
        assert used.value.code == "file_in_use"
        for _ in range(2):
            assert (await ai.batches.cancel(made.id)).status in ("cancelling", "cancelled")
        batch = await reach(ai, made.id, "cancelled")
        assert (await ai.batches.cancel(made.id)).status == "cancelled"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (301, 1, 0)
    assert batch.cancelling_at <= batch.cancelled_at
    done, undone = await lines_of(ai, batch.output_file_id), await lines_of(ai, batch.error_file_id)
    assert [one["custom_id"] for one in done] == ["quick"]
    assert sorted(one["custom_id"] for one in undone) == sorted(f"slow {number}" for number in range(300))
    assert {one["error"]["code"] for one in undone} == {"batch_cancelled"}
    await ai.files.delete(made.input_file_id)


def _counts(server: redis.Redis, batch_id: str) -> bool:
    return server.hexists(f"{{c00}}:bt:{batch_id}", "done")


async def test_a_batch_beyond_its_window_delivers_what_has_ended(ai, redis_url, redis_sync, clerk) -> None:
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        made = await begin(ai, encoded(line("quick", max_tokens=1), *(line(f"{number}") for number in range(300))))
        await until(lambda: len(worker.seen) > 50)
        await until(lambda: redis_sync.zcard(f"{{c00}}:bte:{made.id}") == 1 or _counts(redis_sync, made.id))
        now = int(redis_sync.time()[0] * 1000)
        redis_sync.hset(f"{{c00}}:bt:{made.id}", "dl", now)

        async def is_over() -> bool:
            """Sets deadlines back again: the clerk may go on submitting with the one that it has read."""
            for job in redis_sync.zrange(f"{{c00}}:bto:{made.id}", 0, -1):
                name = job.decode().rpartition(" ")[2]
                redis_sync.hset(f"{{c00}}:j:{name}", "dl", now)
                redis_sync.zadd("{c00}:D", {name: now})
            return (await ai.batches.retrieve(made.id)).status != "in_progress"

        await until(is_over)
        batch = await reach(ai, made.id, "expired")
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (301, 1, 0)
    assert [one["custom_id"] for one in await lines_of(ai, batch.output_file_id)] == ["quick"]
    undone = await lines_of(ai, batch.error_file_id)
    assert sorted(one["custom_id"] for one in undone) == sorted(f"{number}" for number in range(300))
    assert {one["error"]["code"] for one in undone} == {"batch_expired"}
    with pytest.raises(openai.ConflictError):
        await ai.batches.cancel(made.id)


async def test_no_more_jobs_are_in_the_queue_than_the_window(ai, redis_url, redis_sync, clerk) -> None:
    async with ScriptedWorker(redis_url, hold_after=0) as worker:
        made = await begin(ai, encoded(*(line(f"{number}") for number in range(600))))
        await until(lambda: len(worker.seen) >= 64)
        await until(lambda: redis_sync.zcard(f"{{c00}}:bto:{made.id}") >= 256)
        await asyncio.sleep(0.5)
        assert redis_sync.zcard(f"{{c00}}:bto:{made.id}") <= 256 + 64
        async with AsyncClient(redis_url) as client:
            assert await client.jobs() == []
            found = await client.jobs(tenant="acme", of_batches=True, limit=300)
            assert {info.id for info in found} == {
                member.decode().rpartition(" ")[2] for member in redis_sync.zrange(f"{{c00}}:bto:{made.id}", -300, -1)
            }
            older = await client.jobs(tenant="acme", of_batches=True, limit=1, after=found[0].id)
            assert [info.id for info in older] == [found[1].id]
        worker.go.set()
        batch = await reach(ai, made.id, "completed")
    assert batch.request_counts.completed == 600
    assert len(await lines_of(ai, batch.output_file_id)) == 600


async def test_batches_are_listed_and_refused_as_openai_does(ai, other) -> None:
    file = await ai.files.create(file=b"{}", purpose="batch")
    made = []
    for window in ("24h", "1h", "7d"):
        batch = await ai.batches.create(input_file_id=file.id, endpoint=TEXT, completion_window=window)
        made.append(batch.id)
    assert [batch.id async for batch in ai.batches.list(limit=2)] == made[::-1]
    assert [batch.id async for batch in other.batches.list()] == []
    good: dict[str, Any] = {"input_file_id": file.id, "endpoint": TEXT, "completion_window": "24h"}
    for wrong, param in (
        ({"completion_window": "169h"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            await ai.batches.create(**{**good, **wrong})
        assert error.value.param == param
    with pytest.raises(openai.NotFoundError) as error:
        await other.batches.create(**good)
    assert error.value.param == "input_file_id"
    data = await ai.files.create(file=b"{}", purpose="user_data")
    with pytest.raises(openai.BadRequestError):
        await ai.batches.create(**{**good, "input_file_id": data.id})
    header = {"Idempotency-Key": "k"}
    first = await ai.batches.create(**good, extra_headers=header)
    assert (await ai.batches.create(**good, extra_headers=header)).id == first.id


async def test_another_clerk_goes_on_where_one_ended(ai, redis_url, redis_sync, folder: Path) -> None:
    async with ScriptedWorker(redis_url, pace=0.002):
        prompts = [[f"{number % 7}" * 254, "b"] for number in range(200)]  # not submitted as they are in the file
        made = await begin(ai, encoded(*(line(f"{number}", prompt=prompts[number]) for number in range(200))))
        for turn in range(20):
            async with working(redis_url, folder):
                await asyncio.sleep(0.1 + 0.05 * turn)
            if (await ai.batches.retrieve(made.id)).status == "completed":
                break
        async with working(redis_url, folder) as desk:
            batch = await reach(ai, made.id, "completed")
            await remove_unnamed(desk)  # a clerk may have ended with the batch, before it removed the parts
    assert redis_sync.xlen("{c00}:ev") == 400  # each job ended once, however often a busy machine had it claimed
    lines = await lines_of(ai, batch.output_file_id)
    assert sorted(one["custom_id"] for one in lines) == sorted(f"{number}" for number in range(200))
    assert batch.usage.output_tokens == 200 * 6
    assert await open_storage(str(folder)).names("parts") == []


async def test_jobs_and_the_event_of_a_batch_are_in_the_trace_of_its_creation(
    ai, worker, clerk, redis_sync: redis.Redis
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    endpoint = run_sync(
        redis_sync,
        WebhookCell().put("we_1", "acme", is_new=True, name="n", url="https://a.b/c", event_types=["batch.completed"]),
    )
    assert endpoint == "ok"
    made = await begin(ai, encoded(line("a"), line("b")), extra_headers={"traceparent": trace})
    await reach(ai, made.id, "completed")
    jobs = list(redis_sync.scan_iter("{c00}:j:*"))
    assert [redis_sync.hget(name, "tp") for name in jobs] == [trace.encode()] * 2
    (tried,) = run_sync(redis_sync, WebhookCell().claim(lease_ms=1000, most=5)).due
    assert (tried.of, tried.trace) == (made.id, trace)
