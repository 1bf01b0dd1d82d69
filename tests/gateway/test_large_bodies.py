"""A body costs what its bytes are worth: errors do not multiply, values are counted before they are made, and the event
loop does not wait for a large one. How long it waits is measured by tests/fuzz/api.py."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
import msgpack
import msgspec
import pytest
from largest_bodies import ROUTES, body_of
from pydantic import BaseModel, ValidationError
from scripted_worker import MODEL, ScriptedWorker

from octavo.dialects.anthropic.body import TABLES as ANTHROPIC
from octavo.dialects.anthropic.body import CountRequest, MessagesRequest
from octavo.dialects.field_table import FieldTable
from octavo.dialects.ignored import Ignored
from octavo.dialects.openai.problems import problem
from octavo.dialects.openai.requests import TABLES, ChatCompletionRequest, CompletionRequest
from octavo.dialects.openai.responses.requests import TABLE, ResponseRequest
from octavo.dialects.sieve import sift
from octavo.dialects.ui.body import UiChatRequest
from octavo.queue import wire
from octavo.terms.errors import InvalidRequest, MalformedMessage
from octavo.terms.models import JobRequest
from octavo_gateway.http import body as module
from octavo_gateway.http.body import MAX_CONTAINERS, MAX_MEMBERS, MAX_VALUES, parsed
from octavo_gateway.tokenizer import DetokenizeRequest, TokenizeRequest

MODELS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponseRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/chat": UiChatRequest,
    "/v1/jobs": JobRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
FIELDS: dict[str, FieldTable] = {
    "/v1/chat/completions": TABLES[ChatCompletionRequest],
    "/v1/completions": TABLES[CompletionRequest],
    "/v1/responses": TABLE,
    "/v1/messages": ANTHROPIC[MessagesRequest],
    "/v1/messages/count_tokens": ANTHROPIC[CountRequest],
}
BODIES = [(path, name) for path, _, bodies in ROUTES for name in bodies]
FEW = 16


def errors_of(path: str, name: str, count: int, *, strict: bool) -> int:
    """The errors of a body with so many of what it has many of, or of the job that it asks for."""
    data = msgspec.json.encode(body_of(path, name, count))
    sieve = partial(sift, FIELDS[path], ignored=Ignored(), strict=strict) if path in FIELDS else None
    try:
        body: Any = parsed(MODELS[path], data, sieve)
        if hasattr(body, "completion"):
            body = body.completion()
        if hasattr(body, "jobs"):
            body.jobs()
    except ValidationError as error:
        return error.error_count()
    except (InvalidRequest, ValueError):
        return 1
    return 0


@pytest.mark.parametrize(("path", "name"), BODIES, ids=[f"{path} {name}" for path, name in BODIES])
def test_errors_do_not_grow_with_the_body(path: str, name: str) -> None:
    assert errors_of(path, name, 2000, strict=False) <= FEW
    assert errors_of(path, name, 2000, strict=True) <= FEW


class Looked(Mapping[str, Any]):
    """An error that counts how often it is looked at."""

    times = 0

    def __init__(self, loc: tuple[str, ...]) -> None:
        self._error = {"loc": loc, "type": "extra_forbidden", "msg": "Extra inputs are not permitted"}

    def __getitem__(self, name: str) -> Any:
        Looked.times += 1
        return self._error[name]

    def __iter__(self) -> Any:
        return iter(self._error)

    def __len__(self) -> int:
        return len(self._error)


def test_an_error_is_found_among_very_many_without_comparing_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Looked, "times", 0)
    found = problem([Looked(("sampling", f"a{i}")) for i in range(50_000)])
    assert found.param == "sampling.a0"
    assert Looked.times < 50_000


def test_a_message_does_not_repeat_a_body() -> None:
    long = {"loc": ("tools", 0), "type": "value_error", "msg": "Value error, no " + "x" * (1 << 20)}
    assert len(problem([long]).message) < 1000


@pytest.mark.parametrize("open_close", ["{}", "[]"])
def test_more_objects_and_arrays_than_a_body_may_have_are_refused_before_they_are_made(
    open_close: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = ("[" + ",".join([open_close] * (MAX_CONTAINERS + 1)) + "]").encode()
    monkeypatch.delattr(module, "from_json")
    with pytest.raises(InvalidRequest) as caught:
        parsed(JobRequest, body)
    assert caught.value.code == "too_many_values"


def test_so_are_more_members_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    body = ("{" + ",".join(f'"{i}":0' for i in range(MAX_MEMBERS + 1)) + "}").encode()
    monkeypatch.delattr(module, "from_json")
    with pytest.raises(InvalidRequest):
        parsed(JobRequest, body)


def test_so_are_more_values(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = ",".join(["1"] * (MAX_VALUES + 1))
    monkeypatch.delattr(module, "from_json")
    with pytest.raises(InvalidRequest):
        parsed(JobRequest, f'{{"model": "m", "prompt": [{prompt}]}}'.encode())


@pytest.mark.parametrize("piece", [",", "{", "[", ":", '{\\"a\\": [', "\\\\", '\\\\\\"{'])
def test_what_stands_in_a_text_is_not_counted(piece: str) -> None:
    prompt = piece * (MAX_VALUES + 1)
    job = parsed(JobRequest, f'{{"model": "m", "prompt": "{prompt}"}}'.encode())
    assert job.prompt == msgspec.json.decode(f'"{prompt}"')


async def test_nested_lists_in_msgpack_are_refused(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    job = {"model": MODEL, "prompt": [[]] * (wire.MAX_CONTAINERS + 1)}
    frame = msgpack.packb([1, "job", job])
    with pytest.raises(MalformedMessage, match="maps and arrays"):
        wire.decode_request(frame)
    refused = await http.post("/v1/jobs", content=frame, headers={"Content-Type": "application/msgpack"})
    assert refused.status_code == 400


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_thread_reads_large_bodies_and_they_alone(
    http: httpx.AsyncClient, worker: ScriptedWorker, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []
    from_json = module.from_json

    def noted(data: bytes) -> Any:
        readers.append(threading.current_thread().name)
        return from_json(data)

    monkeypatch.setattr(module, "from_json", noted)
    await http.post("/v1/jobs", json={"model": MODEL, "prompt": "x" * size})
    assert [name.startswith("reader") for name in readers] == [size > 10]


CODINGS = ["gzip", "br", "deflate", "zstd", "gzip, br", "GZIP", "x" * 300]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/jobs"])
async def test_a_compressed_body_is_an_unsupported_type(http: httpx.AsyncClient, path: str, coding: str) -> None:
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
    refused = await http.post(path, content=b"\x1f\x8b\x08\x00" * 10, headers=headers)
    assert (refused.status_code, refused.headers["accept-encoding"]) == (415, "identity")
    assert coding[:4].lower() in refused.json()["error"]["message"]


async def test_a_body_as_it_is_may_say_so(http: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    job = {"model": MODEL, "prompt": "x"}
    assert (await http.post("/v1/jobs", json=job, headers={"Content-Encoding": "identity"})).status_code == 202
