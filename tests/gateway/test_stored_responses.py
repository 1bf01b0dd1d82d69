"""Stored responses: conversations, items, cancellations, deletions, and their owners."""

from __future__ import annotations

import openai
import pytest
from response_oracles import check_item
from responses_http import has_tokens, resumed, with_status
from scripted_worker import MODEL, ScriptedWorker, whole_text
from waiting import until

from octavo.dialects.openai.responses.record import job_of
from octavo.terms.errors import InvalidRequest
from octavo_gateway.openai import stored

HELLO = {"model": MODEL, "input": "hello"}


async def test_a_conversation_goes_on_from_a_stored_response(ai, http, worker):
    first = await ai.responses.create(**HELLO, instructions="be brief", max_output_tokens=2)
    second = await ai.responses.create(
        model=MODEL, input="and then?", previous_response_id=first.id, max_output_tokens=1
    )
    third = await ai.responses.create(
        model=MODEL,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "so"}]}],
        previous_response_id=second.id,
        max_output_tokens=1,
    )
    assert [(turn.role, turn.content) for turn in worker.seen[-1].messages] == [
        ("user", "hello"),
        ("assistant", whole_text(2)),
        ("user", "and then?"),
        ("assistant", whole_text(1)),
        ("user", "so"),
    ]
    assert third.previous_response_id == second.id
    await ai.responses.delete(first.id)  # later ones have all they need
    fourth = await ai.responses.create(model=MODEL, input="on", previous_response_id=third.id, max_output_tokens=1)
    assert len(worker.seen[-1].messages) == 7
    items = (await http.get(f"/v1/responses/{fourth.id}/input_items?order=asc")).json()["data"]
    for item in items:
        check_item(item)
    assert [item["role"] for item in items] == ["user", "assistant"] * 3 + ["user"]


async def test_an_answer_sent_back_is_part_of_the_next_input(ai, worker):
    turns = [{"role": "user", "content": "hello"}]
    for _ in range(2):
        reply = await ai.responses.create(model=MODEL, input=turns, max_output_tokens=2, store=False)
        turns += [*reply.output, {"role": "user", "content": "and then?"}]
    assert [turn.role for turn in worker.seen[-1].messages] == ["user", "assistant", "user"]
    assert worker.seen[-1].messages[1].content == whole_text(2)


async def test_a_response_is_read_once_for_all_items_that_are_referred_to(monkeypatch):
    read = []

    async def output(client, job_id, tenant):
        read.append(job_id)
        return {f"msg_{job_id}_{i}": {"id": f"msg_{job_id}_{i}"} for i in range(3)}

    monkeypatch.setattr(stored, "_output", output)
    names = [f"msg_{job}_{i}" for i in range(3) for job in ("a", "b")]
    found = await stored.referred(None, names, {"msg_c_0": {"id": "msg_c_0"}}, "t")
    assert (list(found), read) == (names, ["a", "b"])
    read.clear()
    with pytest.raises(InvalidRequest) as caught:
        await stored.referred(None, [f"msg_{i}_0" for i in range(1000)], {}, "t")
    assert (caught.value.code, len(read)) == ("too_many_references", 256)


async def test_a_reference_without_an_id_refers_to_nothing(http, worker):
    body = {"model": MODEL, "input": [{"type": "item_reference", "id": ""}]}
    refused = await http.post("/v1/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")


async def test_items_of_earlier_responses_can_be_referred_to(ai, http, worker):
    first = await ai.responses.create(**HELLO, max_output_tokens=2)
    reference = {"type": "item_reference", "id": first.output[0].id}
    await ai.responses.create(model=MODEL, input=[reference, {"role": "user", "content": "so"}], max_output_tokens=1)
    assert [turn.content for turn in worker.seen[-1].messages] == [whole_text(2), "so"]
    for unknown in ("msg_x", first.output[0].id[:-1] + "7"):
        reply = await http.post("/v1/responses", json={"model": MODEL, "input": [{**reference, "id": unknown}]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "item_not_found")


async def test_what_is_sent_again_is_not_said_twice(ai, worker):
    first = await ai.responses.create(**HELLO, max_output_tokens=2)
    again = [*first.output, {"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "so"}]
    await ai.responses.create(model=MODEL, input=again, previous_response_id=first.id, max_output_tokens=1)
    assert [turn.content for turn in worker.seen[-1].messages] == ["hello", whole_text(2), "so"]


async def test_a_conversation_that_cannot_be_stored_is_refused(http, worker):
    turns = [{"role": "user", "content": ""}] * 9000
    reply = await http.post("/v1/responses", json={"model": MODEL, "input": turns})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "conversation_too_long")
    assert worker.seen == []


async def test_input_items_come_in_pages(ai, worker):
    turns = [{"role": "user", "content": f"turn {i}"} for i in range(5)]
    reply = await ai.responses.create(model=MODEL, input=turns, max_output_tokens=1)
    texts = [item.content[0].text async for item in ai.responses.input_items.list(reply.id, limit=2)]
    assert texts == [f"turn {i}" for i in reversed(range(5))]
    page = await ai.responses.input_items.list(reply.id, limit=2, order="asc")
    assert (page.has_more, [item.content[0].text for item in page.data]) == (True, ["turn 0", "turn 1"])
    with pytest.raises(openai.BadRequestError):
        await ai.responses.input_items.list(reply.id, after="msg_absent")


async def test_cancelling_keeps_what_there_is_and_can_be_repeated(ai, http, redis_url, gateway_url):
    async with ScriptedWorker(redis_url, hold_after=3):
        accepted = await ai.responses.create(**HELLO, background=True)
        events = resumed(http, accepted.id)
        await until(lambda: has_tokens(http, accepted.id, 3))
        reply = await ai.responses.cancel(accepted.id)
        assert reply.status == "cancelled"
        assert reply.output_text.startswith(whole_text(3))
        assert reply.output[0].status == "incomplete"
        assert await ai.responses.cancel(accepted.id) == reply
        last = (await events)[-1]
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        following = await ai.responses.create(
            model=MODEL, input="go on", previous_response_id=accepted.id, background=True
        )
        assert following.status == "queued"


async def test_a_queued_response_is_cancelled_at_once(ai, http, redis_url, gateway_url):
    async with ScriptedWorker(redis_url):
        pass
    accepted = await ai.responses.create(**HELLO, background=True)
    assert (await ai.responses.cancel(accepted.id)).status == "cancelled"
    kinds = [event["type"] for event in await resumed(http, accepted.id)]
    assert kinds == ["response.created", "response.queued", "response.incomplete"]


async def test_a_deleted_response_is_gone(ai, http, worker):
    reply = await ai.responses.create(**HELLO, max_output_tokens=2)
    deleted = await http.delete(f"/v1/responses/{reply.id}")
    assert deleted.json() == {"id": reply.id, "object": "response", "deleted": True}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        gone = await http.request(method, f"/v1/responses/{reply.id}{path}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")
    assert (await http.get(f"/v1/jobs/{job_of(reply.id)}/result")).status_code == 404
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(**HELLO, previous_response_id=reply.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_deleting_a_running_response_stops_it(ai, http, redis_url, gateway_url):
    async with ScriptedWorker(redis_url, hold_after=2):
        accepted = await ai.responses.create(**HELLO, background=True)
        await until(lambda: with_status(ai, accepted.id, "in_progress"))
        await ai.responses.delete(accepted.id)
        assert (await http.get(f"/v1/responses/{accepted.id}")).status_code == 404

        async def cancelled():
            return (await http.get(f"/v1/jobs/{job_of(accepted.id)}")).json()["status"] == "cancelled"

        await until(cancelled)


async def test_what_is_not_stored_cannot_be_had(ai, http, worker):
    reply = await ai.responses.create(**HELLO, store=False)
    assert reply.store is False
    assert (await http.get(f"/v1/responses/{reply.id}")).status_code == 404
    job = await http.post("/v1/jobs", json={"model": MODEL, "prompt": "no response"})
    assert (await http.get(f"/v1/responses/resp_{job.json()['id']}")).status_code == 404
    refused = await http.post("/v1/responses", json={**HELLO, "background": True, "store": False})
    assert (refused.status_code, "store: true" in refused.json()["error"]["message"]) == (400, True)


async def test_a_response_goes_on_only_once_it_is_over(ai, redis_url, gateway_url):
    async with ScriptedWorker(redis_url, hold_after=1):
        accepted = await ai.responses.create(**HELLO, background=True)
        with pytest.raises(openai.BadRequestError) as caught:
            await ai.responses.create(**HELLO, previous_response_id=accepted.id)
        assert caught.value.code == "previous_response_unfinished"


async def test_tenants_never_see_each_other_s_responses(own_gateway, redis_url):
    url = own_gateway(api_keys="acme:a-key,globex:g-key")
    async with (
        ScriptedWorker(redis_url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="a-key", max_retries=0) as acme,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="g-key", max_retries=0) as globex,
    ):
        reply = await acme.responses.create(**HELLO, max_output_tokens=1)
        for ask in (
            globex.responses.retrieve(reply.id),
            globex.responses.retrieve(reply.id, stream=True),
            globex.responses.cancel(reply.id),
            globex.responses.delete(reply.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await ask
        with pytest.raises(openai.NotFoundError):
            await globex.responses.input_items.list(reply.id)
        for body in (
            {"input": "x", "previous_response_id": reply.id},
            {"input": [{"type": "item_reference", "id": reply.output[0].id}]},
        ):
            with pytest.raises(openai.BadRequestError):
                await globex.responses.create(model=MODEL, **body)
        assert (await acme.responses.retrieve(reply.id)).id == reply.id
