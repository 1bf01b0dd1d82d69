"""Responses over HTTP, each event and object as the schemas want it."""

from __future__ import annotations

import json

from response_oracles import check_event, check_response
from waiting import until

from octavo.dialects.openai.responses.record import job_of


async def events_of(http, method="POST", path="/v1/responses", **request):
    """All events of a stream, each as the schemas want it, and the end that they want as well."""
    async with http.stream(method, path, **request) as response:
        assert response.status_code == 200, await response.aread()
        found = [event async for event in _read(response)]
    assert found[-1] == "[DONE]"
    for event in found[:-1]:
        check_event(event)
    return found[:-1]


async def _read(response):
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line == "data: [DONE]":
            yield "[DONE]"
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == name
            yield event


def resumed(http, response_id, after=None):
    """All events behind number `after`."""
    query = {"stream": "true"} | ({} if after is None else {"starting_after": after})
    return events_of(http, "GET", f"/v1/responses/{response_id}", params=query)


async def ended(http, response_id):
    """The response once it is over."""

    async def over():
        reply = (await http.get(f"/v1/responses/{response_id}")).json()
        check_response(reply)
        return reply if reply["status"] not in ("queued", "in_progress") else None

    return await until(over)


async def with_status(ai, response_id, status):
    """The response if it has this status."""
    reply = await ai.responses.retrieve(response_id)
    return reply if reply.status == status else None


async def has_tokens(http, response_id, count):
    """True if its job has stored so many."""
    return (await http.get(f"/v1/jobs/{job_of(response_id)}")).json()["tokens"] >= count
