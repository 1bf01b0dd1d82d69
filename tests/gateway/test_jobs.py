"""Jobs over HTTP: accepted once, visible to their tenant, readable from any token, stoppable."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker, text_of, whole_text
from sse import ServerEvent, read_events
from waiting import until

from octavo import AsyncClient
from octavo.queue import wire
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.terms.messages import Progress
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo.terms.structs import as_dict

TOKENS = 6


async def submit(http: httpx.AsyncClient, tokens: int = TOKENS, **fields) -> dict:
    reply = await http.post(
        "/v1/jobs", json={"model": MODEL, "prompt": "hello", "sampling": {"max_tokens": tokens}, **fields}
    )
    assert reply.status_code == 202, reply.text
    return reply.json()


async def stream(http: httpx.AsyncClient, job: dict, **request) -> list[ServerEvent]:
    async with http.stream("GET", job["links"]["stream"], **request) as response:
        assert response.status_code == 200
        return [event async for event in read_events(response)]


async def finished(http: httpx.AsyncClient, job: dict) -> dict:
    async def result():
        reply = await http.get(job["links"]["result"])
        return reply.json() if reply.status_code == 200 else None

    return await until(result)


def named(events: list[ServerEvent], *names: str) -> list[ServerEvent]:
    return [event for event in events if event.event in names]


async def test_submit_answers_before_anything_runs(http, redis_url):
    async with ScriptedWorker(redis_url):
        pass  # the model is known, no worker serves it now
    reply = await http.post("/v1/jobs", json={"model": MODEL, "prompt": "hello", "metadata": {"a": "b"}})
    job = reply.json()
    assert reply.status_code == 202
    assert reply.headers["location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
    assert (job["object"], job["status"], job["model"], job["priority"]) == ("job", "queued", MODEL, "normal")
    assert job["metadata"] == {"a": "b"}
    shown = (await http.get(reply.headers["location"])).json()
    assert shown == job
    waiting = await http.get(job["links"]["result"])
    assert (waiting.status_code, waiting.json()["status"]) == (202, "queued")


async def test_a_whole_stream(http, worker):
    job = await submit(http)
    events = await stream(http, job)
    assert events[0].retry == 1000
    tokens = named(events, "token")
    assert [event.id for event in tokens] == [str(i) for i in range(1, TOKENS + 1)]
    assert [event.data["offset"] for event in tokens] == list(range(1, TOKENS + 1))
    assert [event.data["token_ids"] for event in tokens] == [[i] for i in range(TOKENS)]
    assert "".join(event.data["text"] for event in tokens) == whole_text(TOKENS)
    (done,) = named(events, "done", "error")
    assert done is events[-1]
    assert (done.event, done.id, done.data["status"]) == ("done", f"{TOKENS}-1", "completed")
    none = dict.fromkeys(("recomputed_tokens", "restored_tokens", "drafted_tokens", "accepted_tokens"), 0)
    assert done.data["usage"] == {"prompt_tokens": 5, "completion_tokens": TOKENS, "cached_tokens": 1, **none}


async def test_headers_of_a_stream(http, worker):
    job = await submit(http)
    async with http.stream("GET", job["links"]["stream"]) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "no-store" in response.headers["cache-control"]
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers


@pytest.mark.parametrize("live", [True, False])
async def test_resume_from_every_offset(http, redis_url, live):
    async with ScriptedWorker(redis_url, hold_after=3 if live else None) as worker:
        job = await submit(http)
        if live:
            await until(lambda: _tokens(http, job, 3))
        else:
            await finished(http, job)
        for after in range(TOKENS + 1):
            for request in ({"params": {"after": after}}, {"headers": {"Last-Event-ID": str(after)}}):
                reading = asyncio.create_task(stream(http, job, **request))
                if live and after == TOKENS:
                    await asyncio.sleep(0.05)
                    worker.go.set()
                elif live:
                    worker.go.set()
                events = await reading
                texts = [event.data["text"] for event in named(events, "token")]
                assert texts == [text_of(0, i) for i in range(after, TOKENS)]
                assert events[-1].event == "done"


async def _tokens(http: httpx.AsyncClient, job: dict, count: int) -> bool:
    return (await http.get(job["links"]["self"])).json()["tokens"] >= count


async def test_a_chunk_is_cut_where_a_reader_resumes(http, worker):
    """After its stream has expired a job is read from its result, where all tokens are one chunk."""
    job = await submit(http)
    await finished(http, job)
    await worker.expire_stream(job["id"])
    events = await stream(http, job, params={"after": 4})
    (token,) = named(events, "token")
    assert (token.id, token.data["token_ids"], token.data["text"]) == (str(TOKENS), [4, 5], " 0.4 0.5")


async def test_after_the_end_there_is_nothing(http, worker):
    job = await submit(http)
    await finished(http, job)
    seen = await http.get(job["links"]["stream"], headers={"Last-Event-ID": f"{TOKENS}-1"})
    assert (seen.status_code, seen.content) == (204, b"")
    beyond = await http.get(job["links"]["stream"], params={"after": TOKENS + 1})
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "after")


async def test_last_event_id_wins_over_the_address(http, worker):
    """A browser reconnects to the same address, and says how far it got."""
    job = await submit(http)
    events = await stream(http, job, params={"after": 1}, headers={"Last-Event-ID": "4"})
    assert [event.id for event in named(events, "token")] == ["5", "6"]


async def test_silence_is_filled_with_comments(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=1) as worker:
        job = await submit(http, tokens=2)
        reading = asyncio.create_task(stream(http, job))
        await asyncio.sleep(0.7)
        worker.go.set()
        events = await reading
    comments = [event.comment for event in events if event.comment]
    assert comments[:2] == ["keep-alive"] * 2
    assert [event.event for event in named(events, "token", "done")] == ["token", "token", "done"]


async def test_progress_of_a_search_is_an_event_that_moves_no_position(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=0) as worker:
        job = await submit(http)
        progress = Progress(attempt=1, tokens=9, score=-1.5, finished=2, text="so\nfar")
        await until(lambda: worker.tell_progress(job["id"], progress))
        assert (await http.get(job["links"]["self"])).json()["progress"] == as_dict(progress)
        async with http.stream("GET", job["links"]["stream"]) as response:
            events = []
            async for event in read_events(response):
                events.append(event)
                if event.event == "progress":
                    worker.go.set()
    (told,) = named(events, "progress")
    assert (told.id, told.data) == (None, as_dict(progress))
    assert [event.id for event in named(events, "token")] == [str(i) for i in range(1, TOKENS + 1)]


async def test_a_reader_that_leaves_does_not_stop_a_job(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        job = await submit(http)
        async with http.stream("GET", job["links"]["stream"]) as response:
            async for event in read_events(response):
                if event.id == "2":
                    break
        await asyncio.sleep(0.1)
        worker.go.set()
        assert (await finished(http, job))["status"] == "completed"


async def test_many_readers_of_one_job(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=1) as worker:
        job = await submit(http)
        reading = [asyncio.create_task(stream(http, job)) for _ in range(20)]
        await asyncio.sleep(0.2)
        worker.go.set()
        texts = [
            "".join(event.data["text"] for event in named(events, "token")) for events in await asyncio.gather(*reading)
        ]
        assert texts == [whole_text(TOKENS)] * 20


async def test_result(http, worker):
    job = await submit(http, sampling={"max_tokens": 3, "n": 2, "logprobs": 1})
    result = await finished(http, job)
    assert (result["id"], result["status"], result["object"]) == (job["id"], "completed", "job.result")
    assert [sequence["text"] for sequence in result["sequences"]] == [whole_text(3, 0), whole_text(3, 1)]
    assert [sequence["finish_reason"] for sequence in result["sequences"]] == ["length", "length"]
    assert result["sequences"][0]["logprobs"][0]["top"][0]["bytes"] == [0xE2, 0x80]
    assert result["usage"]["completion_tokens"] == 6


async def test_cancel(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2):
        job = await submit(http)
        await until(lambda: _tokens(http, job, 2))
        assert (await http.delete(job["links"]["self"])).status_code == 202
        events = await stream(http, job)
        assert (events[-1].event, events[-1].data["status"]) == ("done", "cancelled")
        again = await http.delete(job["links"]["self"])
        assert (again.status_code, again.json()["status"]) == (200, "cancelled")


async def test_a_failed_job_ends_with_an_error_event(http, worker):
    job = await submit(http, prompt="x" * 999)
    events = await stream(http, job)
    assert events[-1].event == "error"
    assert events[-1].data["error"]["code"] == "context_length_exceeded"
    assert (await http.get(job["links"]["self"])).json()["error"]["param"] == "prompt"


async def test_a_job_that_expires_ends_with_an_error_event(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=1):
        events = await stream(http, await submit(http, timeout_s=0.5))
    assert (events[-1].event, events[-1].data["status"]) == ("error", "expired")


async def test_the_same_idempotency_key_is_the_same_job(http, worker):
    body = {"model": MODEL, "prompt": "hello"}
    key = {"Idempotency-Key": "k1"}
    first = await http.post("/v1/jobs", json=body, headers=key)
    again = await http.post("/v1/jobs", json=body, headers=key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    other = await http.post("/v1/jobs", json={**body, "prompt": "else"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert len((await http.get("/v1/jobs")).json()["data"]) == 1


async def test_list(http, worker):
    jobs = [await submit(http) for _ in range(5)]
    await asyncio.gather(*(finished(http, job) for job in jobs))
    newest_first = [job["id"] for job in reversed(jobs)]
    assert [job["id"] for job in (await http.get("/v1/jobs")).json()["data"]] == newest_first
    page = (await http.get("/v1/jobs", params={"limit": 2})).json()
    assert ([job["id"] for job in page["data"]], page["has_more"]) == (newest_first[:2], True)
    rest = (await http.get("/v1/jobs", params={"after": newest_first[1], "status": "completed"})).json()
    assert ([job["id"] for job in rest["data"]], rest["has_more"]) == (newest_first[2:], False)
    whole = (await http.get("/v1/jobs", params={"limit": 5})).json()
    assert ([job["id"] for job in whole["data"]], whole["has_more"]) == (newest_first, False)
    assert (await http.get("/v1/jobs", params={"status": "failed"})).json()["data"] == []


async def test_msgpack_body(http, worker):
    request = JobRequest(model=MODEL, prompt=(1, 2, 3), sampling=SamplingParams(max_tokens=2, logit_bias={5: 1.0}))
    reply = await http.post(
        "/v1/jobs", content=wire.encode_request(request), headers={"Content-Type": "application/msgpack"}
    )
    assert reply.status_code == 202
    await finished(http, reply.json())
    assert worker.seen == [request]


async def test_json_body_with_everything(http, worker):
    sampling = {"max_tokens": 2, "logit_bias": {"5": 1.0}, "stop": "x", "stop_token_ids": [1], "seed": 3}
    job = await submit(http, sampling=sampling, priority="batch", timeout_s=60, queue_timeout_s=30)
    await finished(http, job)
    assert worker.seen[0].sampling.logit_bias == {5: 1.0}
    assert worker.seen[0].priority == "batch"


async def test_no_such_job(http, worker):
    for name in (
        "nothing",
        "g00_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "g99_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "%00",
        "g00_" + "é" * 26,
    ):
        for method, suffix in (("GET", ""), ("DELETE", ""), ("GET", "/result"), ("GET", "/stream")):
            reply = await http.request(method, f"/v1/jobs/{name}{suffix}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "job_not_found"), name


async def test_a_position_that_does_not_hold_any_more_is_reset(http, redis_url, worker):
    """As after a restart of the server that may have forgotten tokens of several sequences."""
    job = await submit(http, sampling={"max_tokens": TOKENS, "n": 2})
    await finished(http, job)
    assert (await stream(http, job, params={"after": 3}))[1].event == "token"
    async with connect(redis_url) as connection:
        await connection.hset(Keys().job(job["id"]), "run", "an earlier one")
    _, reset, *events = await stream(http, job, params={"after": 3})
    assert (reset.event, reset.id, reset.data) == ("stream_reset", "0", {"offset": 0})
    assert [event.id for event in named(events, "token")] == [str(i) for i in range(1, 2 * TOKENS + 1)]


async def test_a_stream_whose_job_is_gone_says_so(http, redis_url):
    async with ScriptedWorker(redis_url, hold_after=2), AsyncClient(redis_url) as other:
        job = await other.submit("hello", model=MODEL, max_tokens=TOKENS)  # the gateway does not submit it again
        address = f"/v1/jobs/{job.id}/stream"
        async with http.stream("GET", address) as response, connect(redis_url) as connection:
            events = []
            async for event in read_events(response):
                events.append(event)
                if event.id == "2":
                    await connection.delete(Keys().job(job.id), Keys().stream(job.id))
    (told,) = named(events, "error")
    assert (told.id, told.data["offset"], told.data["error"]["code"]) == (None, 2, "job_not_found")
