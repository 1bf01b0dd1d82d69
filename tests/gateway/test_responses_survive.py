"""A response survives what it runs on: gateways and workers are killed in the middle of its stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from gateway_process import GatewayProcess
from killable_server import killable_server
from response_oracles import check_event
from scripted_worker import MODEL, ScriptedWorker, whole_text
from tool_answers import ANSWERS, TOOLS
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.dialects.openai.responses.record import job_of

TOKENS = 60
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


@contextlib.asynccontextmanager
async def gateway(redis_url: str, log: Path) -> AsyncIterator[tuple[GatewayProcess, openai.AsyncOpenAI]]:
    """A gateway, and the `openai` package on it."""
    with GatewayProcess(redis_url, log) as process:
        url = await process.url()
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=STALL_S) as ai:
            yield process, ai


def plain(event: Any) -> dict[str, Any]:
    found = event.model_dump(mode="json", exclude_unset=True)
    check_event(found)
    return found


async def read(stream: Any, events: list[dict[str, Any]], until_event: int | None = None) -> None:
    """Add what comes, up to the event of a number, or to the end."""
    async for event in stream:
        events.append(plain(event))
        if event.sequence_number == until_event:
            return


async def whole(ai: openai.AsyncOpenAI, response_id: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    await read(await ai.responses.retrieve(response_id, stream=True), events)
    return events


async def test_a_stream_goes_on_at_another_gateway_when_its_own_is_killed(redis_url, tmp_path):
    async with (
        gateway(redis_url, tmp_path / "one") as (process, one),
        gateway(redis_url, tmp_path / "two") as (_, two),
        ScriptedWorker(redis_url, pace=0.01),
    ):
        stream = await one.responses.create(
            model=MODEL, input="hello", max_output_tokens=TOKENS, background=True, stream=True
        )
        events: list[dict[str, Any]] = []
        await read(stream, events, until_event=20)
        process.kill()
        with contextlib.suppress(Exception):  # of whatever HTTP library the package uses
            await read(stream, events)  # what was on its way when it died
        response_id = events[0]["response"]["id"]
        again = await two.responses.retrieve(response_id, stream=True, starting_after=events[-1]["sequence_number"])
        await read(again, events)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events == await whole(two, response_id)
        final = events[-1]["response"]
        assert final["output"][0]["content"][0]["text"] == whole_text(TOKENS)
        assert plain_response(await two.responses.retrieve(response_id)) == final


def plain_response(response: Any) -> dict[str, Any]:
    return response.model_dump(mode="json", exclude_unset=True)


async def test_a_conversation_begun_at_a_gateway_that_died_goes_on_at_another(redis_url, tmp_path):
    async with gateway(redis_url, tmp_path / "two") as (_, two), ScriptedWorker(redis_url) as worker:
        async with gateway(redis_url, tmp_path / "one") as (_, one):
            first = await one.responses.create(model=MODEL, input="hello", max_output_tokens=2)
        second = await two.responses.create(
            model=MODEL, input="and then?", previous_response_id=first.id, max_output_tokens=1
        )
        assert [turn.content for turn in worker.seen[-1].messages] == ["hello", whole_text(2), "and then?"]
        assert (await two.responses.retrieve(second.id)).previous_response_id == first.id


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ["hermes", "harmony"])
async def test_a_worker_that_is_killed_amid_thoughts_and_calls_is_not_noticed(
    redis_url, tmp_path, start_model, own_gateway, name
):
    async with (
        openai.AsyncOpenAI(base_url=f"{own_gateway()}/v1", api_key="none", timeout=STALL_S) as ai,
        AsyncClient(redis_url) as client,
    ):
        fields = {"model": name, "input": "x", "tools": FLAT, "max_output_tokens": 400}
        first = start_model(name, ANSWERS[name].text, step_seconds=0.02)
        undisturbed = await ai.responses.create(**fields)
        events: list[dict[str, Any]] = []
        stream = await ai.responses.create(**fields, background=True, stream=True)
        reading = asyncio.create_task(read(stream, events))

        async def is_inside() -> bool:
            if not events:
                return False
            info = await client.info(job_of(events[0]["response"]["id"]))
            return info.tokens > 25

        await until(is_inside)
        first.send(signal.SIGKILL)
        start_model(name, ANSWERS[name].text, number=1)
        await reading
        response_id = events[0]["response"]["id"]
        assert (await client.info(job_of(response_id))).attempts == 2
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events == await whole(ai, response_id)
        assert said(events[-1]["response"]["output"]) == said(plain_response(undisturbed)["output"])


def said(output: list[dict[str, Any]]) -> str:
    """The items without their ids, which are those of a job."""
    items = [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]
    return json.dumps(items)


async def test_a_response_outlives_the_server(tmp_path):
    with killable_server(tmp_path) as server:
        async with (
            gateway(server.url, tmp_path / "one") as (_, one),
            ScriptedWorker(server.url, hold_after=5) as worker,
        ):
            stream = await one.responses.create(
                model=MODEL, input="hello", max_output_tokens=9, background=True, stream=True, metadata={"a": "b"}
            )
            events: list[dict[str, Any]] = []
            await read(stream, events, until_event=9)
            server.kill()
            server.start()
            response_id = events[0]["response"]["id"]

            async def back() -> bool:
                with contextlib.suppress(openai.APIError):
                    return (await one.responses.retrieve(response_id)).metadata == {"a": "b"}
                return False

            await until(back)
            worker.go.set()
            await read(stream, events)
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert events == await whole(one, response_id)
            assert events[-1]["response"]["output"][0]["content"][0]["text"] == whole_text(9)
