"""`/v1/responses`, as the `openai` package and the published schemas see it."""

from __future__ import annotations

import json

import openai
import pytest
from exposition import sample
from response_oracles import check_event, check_response
from responses_http import ended, events_of, resumed, with_status
from scripted_worker import CONTEXT, MODEL, ScriptedWorker, whole_text
from waiting import until

from octavo.dialects.openai.responses.events import ResponseLog
from octavo.dialects.openai.responses.record import job_of
from octavo.dialects.openai.responses.requests import ResponseRequest
from octavo.terms.errors import JobNotFound
from octavo_gateway.http.streams import Mailbox
from octavo_gateway.openai.telling import write

HELLO = {"model": MODEL, "input": "hello"}


async def test_an_answer_in_one_piece(ai, http, worker):
    reply = await ai.responses.create(
        **HELLO, instructions="be brief", max_output_tokens=5, temperature=0.5, metadata={"run": "1"}
    )
    assert reply.output_text == whole_text(5)
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (13, 5, 18)
    assert reply.usage.input_tokens_details.cached_tokens == 1
    assert (reply.instructions, reply.metadata, reply.temperature) == ("be brief", {"run": "1"}, 0.5)
    assert [(turn.role, turn.content) for turn in worker.seen[0].messages] == [
        ("system", "be brief"),
        ("user", "hello"),
    ]
    assert worker.seen[0].sampling.max_tokens == 5
    assert worker.seen[0].metadata == {"run": "1"}
    shown = (await http.get(f"/v1/responses/{reply.id}")).json()
    check_response(shown)
    assert shown == reply.model_dump(mode="json", exclude_unset=True)


async def test_a_stream_and_what_is_retrieved_of_it(http, worker):
    events = await events_of(http, json={**HELLO, "max_output_tokens": 4, "stream": True})
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == [f" 0.{i}" for i in range(4)]
    final = events[-1]["response"]
    assert (await http.get(f"/v1/responses/{final['id']}")).json() == final
    assert await resumed(http, final["id"]) == events
    for after in range(len(events)):
        assert await resumed(http, final["id"], after) == events[after + 1 :]


async def test_the_client_s_own_stream_helper(ai, worker):
    async with ai.responses.stream(**HELLO) as stream:
        kinds = [event.type async for event in stream]
    assert kinds.count("response.output_text.delta") == 16
    assert kinds[-1] == "response.incomplete"  # the scripted worker ends by its limit


async def test_a_background_response_from_queue_to_end(ai, http, redis_url, gateway_url):
    async with ScriptedWorker(redis_url):
        pass  # the model is known, and nothing serves it
    reply = await http.post("/v1/responses", json={**HELLO, "background": True, "max_output_tokens": 4})
    assert reply.status_code == 202
    accepted = reply.json()
    check_response(accepted)
    assert (accepted["status"], accepted["background"], accepted["store"]) == ("queued", True, True)
    assert reply.headers["location"] == f"/v1/responses/{accepted['id']}"
    assert (await ai.responses.retrieve(accepted["id"])).status == "queued"
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        running = await until(lambda: with_status(ai, accepted["id"], "in_progress"))
        assert running.output == []
        worker.go.set()
        final = await ended(http, accepted["id"])
    assert final["output"][0]["content"][0]["text"] == whole_text(4)
    assert final["created_at"] == accepted["created_at"]
    assert (await http.post("/v1/responses", json={**HELLO, "previous_response_id": "resp_x"})).status_code == 400


async def test_a_reader_that_leaves_a_background_stream_comes_back_at_any_event(ai, http, redis_url, gateway_url):
    async with ScriptedWorker(redis_url, hold_after=3) as worker:
        stream = await ai.responses.create(**HELLO, background=True, stream=True, max_output_tokens=6)
        seen = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta" and event.delta == " 0.2":
                break
        await stream.close()

        async def has_left():
            return sample((await http.get("/metrics")).text, "octavo_sse_connections") == 0

        await until(has_left)
        assert [event.type for event in seen[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        response_id = seen[0].response.id
        again = await ai.responses.retrieve(response_id, stream=True, starting_after=seen[-3].sequence_number)
        worker.go.set()
        rest = [event async for event in again]
    assert rest[:2] == seen[-2:]
    whole = await resumed(http, response_id)
    assert whole[-1]["response"]["output"][0]["content"][0]["text"] == whole_text(6)
    numbers = [event.sequence_number for event in seen + rest[2:]]
    assert numbers == list(range(len(whole)))
    told = [event.model_dump(mode="json", exclude_unset=True) for event in seen + rest[2:]]
    assert [event["type"] for event in told] == [event["type"] for event in whole]
    assert [event.get("delta") for event in told] == [event.get("delta") for event in whole]


async def test_the_stream_is_the_same_when_only_the_result_is_left(http, worker):
    events = await events_of(http, json={**HELLO, "stream": True, "background": True, "top_logprobs": 1})
    response_id = events[0]["response"]["id"]
    await worker.expire_stream(job_of(response_id))
    assert await resumed(http, response_id) == events
    assert await resumed(http, response_id, 5) == events[6:]


@pytest.mark.parametrize("after", [-1, 50])
async def test_a_stream_that_is_lost_says_so_at_its_end(after):
    log, mailbox = ResponseLog(ResponseRequest(**HELLO).record([], 1), "g00_" + 26 * "0", after), Mailbox(lambda: None)

    async def lost():
        yield log.begin()
        raise JobNotFound("it is gone")

    await write(mailbox, log, lost())
    *told, last = mailbox.take().decode().removesuffix("\n\n").split("\n\n")
    assert len(told) == (2 if after < 0 else 0)
    event = json.loads(last.partition("data: ")[2])
    assert (event["type"], event["sequence_number"], event["code"]) == ("error", 2, "job_not_found")
    check_event(event)


async def test_refusals_of_a_worker(ai, http, worker):
    long = {"model": MODEL, "input": "x" * (CONTEXT + 1)}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await ai.responses.create(**long, stream=stream)
        assert caught.value.code == "context_length_exceeded"
    accepted = await ai.responses.create(**long, background=True)
    final = await ended(http, accepted.id)
    assert (final["status"], final["error"]["code"]) == ("failed", "context_length_exceeded")
    kinds = [event["type"] for event in await resumed(http, accepted.id)]
    assert kinds == ["response.created", "response.queued", "response.failed"]


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_an_answer_that_is_waited_for_cancels_it(ai, http, redis_url, gateway_url, stream):
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        if stream:
            events = await ai.responses.create(**HELLO, stream=True)
            assert (await anext(events)).type == "response.created"
            await events.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                await ai.with_options(timeout=1.0).responses.create(**HELLO)
        (job,) = (await http.get("/v1/jobs")).json()["data"]

        async def cancelled():
            return (await http.get(f"/v1/jobs/{job['id']}")).json()["status"] == "cancelled"

        await until(cancelled)
        assert not worker.go.is_set()


async def test_the_same_idempotency_key_gives_the_same_response(http, worker):
    request = {"json": {**HELLO, "background": True}, "headers": {"Idempotency-Key": "once"}}
    one, two = [(await http.post("/v1/responses", **request)).json() for _ in range(2)]
    assert (one["id"], one["created_at"]) == (two["id"], two["created_at"])
    other = await http.post("/v1/responses", json={**HELLO, "input": "x"}, headers=request["headers"])
    assert other.status_code == 409


async def test_log_probabilities(ai, worker):
    reply = await ai.responses.create(
        **HELLO, max_output_tokens=2, include=["message.output_text.logprobs"], top_logprobs=2
    )
    logprobs = reply.output[0].content[0].logprobs
    assert [item.token for item in logprobs] == [" 0.0", " 0.1"]
    assert all(len(item.top_logprobs) == 2 for item in logprobs)


REFUSED = [
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"input": []}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0.type"),
    ({"input": [{"type": "computer_call"}]}, "input.0.type"),
    ({"input": [{"type": "message", "content": "x"}]}, "input.0"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0"),
    ({"n": 2}, "n"),
    ({"model": "absent"}, "model"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[param for _, param in REFUSED])
async def test_what_is_not_supported_is_named(http, worker, body, param):
    reply = await http.post("/v1/responses", json={**HELLO, **body})
    assert reply.status_code in (400, 404), reply.text
    assert reply.json()["error"]["param"] == param
    assert worker.seen == []


async def test_null_is_as_good_as_absent(http, worker):
    names = ("stream", "background", "store", "tools", "tool_choice", "conversation", "prompt", "text", "reasoning")
    reply = await http.post("/v1/responses", json={**HELLO, **dict.fromkeys(names), "of_a_later_version": None})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "name", ["resp_", "resp_x", "g00_00000000000000000000000000", "resp_g00_0000000000000000000000000U"]
)
async def test_what_cannot_be_a_response_is_not_found(http, name):
    assert (await http.get(f"/v1/responses/{name}")).status_code == 404
