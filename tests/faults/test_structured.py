"""Structured output with nothing faked: a gateway, a server, two workers on the bundled model, and kills."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pydantic
import pytest
from cli_driver import Cli
from generated_schemas import drawn
from serving import serving
from structured_asks import PERSON
from waiting import STALL_S
from worker_process import WorkerProcess

from octavo import AsyncClient
from octavo.service.server import EmbeddedServer
from octavo.terms.messages import JobStatus
from octavo.terms.models import Result
from octavo.terms.structured import Grammar
from octavo_gateway.settings import GatewaySettings

FLAGS = {"model": "demo", "num_blocks": 2048, "max_running": 32, "threads": 1, "device": "cpu", "lease": 1.0}


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a server and of a gateway, with a worker on the demo model."""
    folder = tmp_path_factory.mktemp("structured")
    with EmbeddedServer() as server, ExitStack() as stack:
        stack.enter_context(WorkerProcess(server.url, folder / "worker.log", **FLAGS)).wait_ready()
        yield server.url, stack.enter_context(serving(GatewaySettings(redis_url=server.url)))


@pytest.fixture
async def client(service: tuple[str, str]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(service[0]) as client:
        yield client


@pytest.fixture
async def ai(service: tuple[str, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{service[1]}/v1", api_key="none", max_retries=0, timeout=STALL_S) as ai:
        yield ai


def is_valid(text: str, schema: Any) -> bool:
    jsonschema.validate(json.loads(text), schema)
    return True


async def test_every_kind_over_the_client(client: AsyncClient) -> None:
    jobs = {
        "schema": await client.submit("A: ", model="demo", seed=1, max_tokens=200, json_schema=PERSON),
        "model": await client.submit("B: ", model="demo", seed=2, max_tokens=200, json_schema=Person),
        "object": await client.submit("C: ", model="demo", seed=3, max_tokens=400, json_object=True),
        "regex": await client.submit("D: ", model="demo", seed=4, regex="[0-9]{3}-[a-z]{2,5}"),
        "choice": await client.submit("E: ", model="demo", seed=5, n=3, choice=["yes", "no", "naïve"]),
        "lark": await client.submit("F: ", model="demo", seed=6, lark='start: "f(" /[a-z]{1,3}/ ")"'),
    }
    results = {name: await job.result() for name, job in jobs.items()}
    assert {result.status for result in results.values()} == {JobStatus.COMPLETED}
    assert is_valid(results["schema"].text, PERSON)
    Person.model_validate_json(results["model"].text)
    if results["object"].sequences[0].finish_reason == "stop":
        assert isinstance(json.loads(results["object"].text), dict)
    assert re.fullmatch("[0-9]{3}-[a-z]{2,5}", results["regex"].text)
    assert {sequence.text for sequence in results["choice"].sequences} <= {"yes", "no", "naïve"}
    assert re.fullmatch(r"f\([a-z]{1,3}\)", results["lark"].text)


async def test_cut_by_max_tokens_says_length(client: AsyncClient) -> None:
    job = await client.submit("A: ", model="demo", seed=1, max_tokens=5, json_schema=PERSON)
    (sequence,) = (await job.result()).sequences
    assert sequence.finish_reason == "length"
    assert len(sequence.token_ids) == 5


async def test_neighbours_of_grammars_are_as_without(client: AsyncClient) -> None:
    async def ask(beside: int) -> list[Result]:
        free = [
            await client.submit(f"Free {i}: ", model="demo", seed=i, max_tokens=60, temperature=(0.0, 0.9)[i % 2])
            for i in range(6)
        ]
        for i in range(beside):
            await client.submit(f"Bound {i}: ", model="demo", seed=i, max_tokens=60, json_schema=PERSON)
        return [await job.result() for job in free]

    alone, beside = await ask(0), await ask(6)
    assert [r.sequences for r in alone] == [r.sequences for r in beside]


async def test_with_all_that_a_job_may_ask(client: AsyncClient) -> None:
    for number, fields in enumerate(
        [
            {"logprobs": 2, "temperature": 0.0},
            {"n": 3, "temperature": 1.3, "top_p": 0.9, "top_k": 50},
            {"best_of": 3},
            {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
            {"logit_bias": {5: -50.0, 9: 20.0}, "min_tokens": 30},
            {"ignore_eos": True},
            {"beam_width": 3, "n": 2},
        ]
    ):
        job = await client.submit("A: ", model="demo", seed=number, max_tokens=250, json_schema=PERSON, **fields)
        result = await job.result()
        assert result.status is JobStatus.COMPLETED, result.error
        for sequence in result.sequences:
            assert sequence.finish_reason == "stop"
            assert is_valid(sequence.text, PERSON)
            assert (sequence.logprobs is not None) == ("logprobs" in fields)


async def test_a_bad_grammar_fails_its_job_by_name(client: AsyncClient) -> None:
    job = await client.submit("A: ", model="demo", json_schema={"type": "object", "not": {}})
    result = await client.result(job.id)
    assert result.status is JobStatus.FAILED
    assert result.error is not None
    assert (result.error.code, result.error.param) == ("invalid_grammar", "grammar")
    assert "#/not" in result.error.message


async def test_a_cancelled_job_ends(client: AsyncClient) -> None:
    job = await client.submit("A: ", model="demo", max_tokens=4000, regex="[a-z]{9000}")
    async with aclosing(job.events()) as events:
        async for event in events:
            if event.offset > 20:
                break
    await job.cancel()
    assert (await client.result(job.id)).status is JobStatus.CANCELLED


async def test_random_schemas_at_once(client: AsyncClient) -> None:
    wanted = drawn(60)
    jobs = [
        await client.submit(f"JSON {i}: ", model="demo", seed=i, max_tokens=500, json_schema=schema)
        for i, schema in enumerate(wanted)
    ]
    finished = 0
    for schema, job in zip(wanted, jobs, strict=True):
        result = await job.result()
        assert result.status is JobStatus.COMPLETED, (schema, result.error)
        if result.sequences[0].finish_reason == "stop":
            finished += 1
            assert is_valid(result.text, schema)
    assert finished > 50


# Over HTTP


async def test_the_openai_package_parses(ai: openai.AsyncOpenAI) -> None:
    hello: Any = [{"role": "user", "content": "Who is it?"}]
    parsed = await ai.beta.chat.completions.parse(
        model="demo", messages=hello, response_format=Person, seed=3, max_tokens=300
    )
    message = parsed.choices[0].message
    assert isinstance(message.parsed, Person)
    assert message.refusal is None
    as_object = await ai.chat.completions.create(
        model="demo", messages=hello, seed=4, max_tokens=600, response_format={"type": "json_object"}
    )
    if as_object.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(as_object.choices[0].message.content or ""), dict)


async def test_the_openai_package_parses_responses(ai: openai.AsyncOpenAI) -> None:
    extra = {"seed": 3}
    parsed = await ai.responses.parse(
        model="demo", input="Who is it?", text_format=Person, max_output_tokens=300, extra_body=extra
    )
    assert isinstance(parsed.output_parsed, Person)
    accepted = await ai.responses.create(
        model="demo",
        input="Who is it?",
        text=parsed.text.model_dump(mode="json", by_alias=True),  # type: ignore[union-attr, arg-type]
        max_output_tokens=300,
        background=True,
        extra_body=extra,
    )
    events = [event async for event in await ai.responses.retrieve(accepted.id, stream=True)]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == parsed.output_text  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(
            model="demo",
            input="x",
            text={"format": {"type": "json_schema", "name": "s", "schema": {"type": "strin"}}},
        )
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", "text.format")
    assert "#/type" in caught.value.message


async def test_vllms_spellings(ai: openai.AsyncOpenAI) -> None:
    for extra, matches in (
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"regex": "[0-9]{4}"}}, "[0-9]{4}"),
        ({"structured_outputs": {"grammar": 'start: "a" | "b"'}}, "a|b"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_regex": "[0-9]{4}"}, "[0-9]{4}"),
    ):
        answer = await ai.completions.create(model="demo", prompt="x", seed=1, extra_body=extra)
        assert re.fullmatch(matches, answer.choices[0].text), extra


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("extra", "param", "code", "place"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "strin"}}}},
            "response_format",
            "invalid_grammar",
            "#/type",
        ),
        ({"guided_json": {"properties": {"a": {"not": {}}}}}, "guided_json", "invalid_grammar", "#/properties/a/not"),
        ({"guided_regex": "(?=a)"}, "guided_regex", "invalid_grammar", ""),
        ({"guided_grammar": "start: a"}, "guided_grammar", "invalid_grammar", "line 1"),
        ({"guided_json": {"type": "integer", "multipleOf": 9999991}}, "guided_json", None, "make it simpler"),
        ({"guided_regex": "a" * 300_000}, None, "invalid_value", "262144 are allowed"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_bad_grammar_is_a_400_with_its_place(
    ai: openai.AsyncOpenAI, extra: Any, param: str | None, code: str | None, place: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.completions.create(model="demo", prompt="x", extra_body=extra)
    assert caught.value.param == param
    assert caught.value.code == code or (code is None and caught.value.code in ("invalid_grammar", "grammar_too_slow"))
    assert place in caught.value.message


async def test_the_jobs_api_takes_a_schema_as_json(service: tuple[str, str], ai: openai.AsyncOpenAI) -> None:
    http = ai._client
    body = {"model": "demo", "prompt": "x", "grammar": {"kind": "json_schema", "text": PERSON}, "sampling": {"seed": 1}}
    reply = await http.post(f"{service[1]}/v1/jobs", json=body)
    assert reply.status_code == 202
    async with AsyncClient(service[0]) as client:
        assert is_valid((await client.result(reply.json()["id"])).text, PERSON)
    bad = await http.post(f"{service[1]}/v1/jobs", json={**body, "grammar": {"kind": "regex", "text": "("}})
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "grammar"


def test_batch_files(service: tuple[str, str], tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = {"messages": [{"role": "user", "content": "x"}], "seed": 1, "max_tokens": 300}
    formats = [
        {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}} for schema in (PERSON, {"not": 1})
    ]
    lines: list[dict[str, Any]] = [
        {"custom_id": "plain", "prompt": "x", "seed": 1, "json_schema": PERSON},
        *(
            {
                "custom_id": str(i),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {**chat, "response_format": form},
            }
            for i, form in enumerate(formats)
        ),
    ]
    source.write_text("\n".join(map(json.dumps, lines)))
    Cli(tmp_path)("batch", "run", str(source), str(target), f"--redis-url={service[0]}", code=1)
    answers = {answer["custom_id"]: answer for answer in map(json.loads, target.read_text().splitlines())}
    assert is_valid(answers["plain"]["response"]["body"]["choices"][0]["text"], PERSON)
    assert is_valid(answers["0"]["response"]["body"]["choices"][0]["message"]["content"], PERSON)
    error = answers["1"]["response"]["body"]["error"]
    assert (error["code"], error["param"]) == ("invalid_grammar", "response_format")


# Kills


@pytest.mark.full
async def test_killed_workers_are_not_noticed(tmp_path: Path) -> None:
    wanted = drawn(24)
    grammars = [Grammar("json_schema", json.dumps(schema)) for schema in wanted]
    grammars += [Grammar("regex", "[a-z ]{120}"), Grammar("json_schema", json.dumps(PERSON))] * 6

    async def submit(client: AsyncClient) -> list[Any]:
        return [
            await client.submit(
                f"{i}: ",
                model="demo",
                seed=i,
                max_tokens=200,
                grammar=grammar,
                n=1 + i % 2,
                temperature=(0, 1)[i % 3 > 0],
            )
            for i, grammar in enumerate(grammars)
        ]

    async def followed(job: Any) -> tuple[list[Any], Result]:
        seen = []
        async with aclosing(job.events()) as events:
            async for event in events:
                assert not event.reset
                seen.append((event.offset, event.index, event.token_ids))
        return seen, await job.result()

    with EmbeddedServer() as server, ExitStack() as stack:
        workers = [
            stack.enter_context(WorkerProcess(server.url, tmp_path / f"{i}.log", **FLAGS)).wait_ready()
            for i in range(2)
        ]
        async with AsyncClient(server.url) as client:
            undisturbed = [await job.result() for job in await submit(client)]
            following = [asyncio.create_task(followed(job)) for job in await submit(client)]
            for number in range(4):
                await asyncio.sleep(0.3)
                workers[number % 2].process.kill()
                workers[number % 2].process.wait()
                workers[number % 2] = stack.enter_context(
                    WorkerProcess(server.url, tmp_path / f"again{number}.log", **FLAGS)
                )
                await asyncio.to_thread(workers[number % 2].wait_ready)
            streams = await asyncio.gather(*following)
        for (seen, result), before in zip(streams, undisturbed, strict=True):
            assert result.status is JobStatus.COMPLETED, result.error
            assert result.sequences == before.sequences
            end = 0
            for offset, _, tokens in seen:
                assert offset == end + len(tokens)
                end = offset
        for schema, (_, result) in zip(wanted, streams, strict=False):
            for sequence in result.sequences:
                assert sequence.finish_reason != "stop" or is_valid(sequence.text, schema)
