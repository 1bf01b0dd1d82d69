"""Bad input gets a clear error in OpenAI's shape, and costs nothing."""

from __future__ import annotations

import asyncio
import json
import socket

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scripted_worker import MODEL
from tiers import examples
from waiting import STALL_S

from octavo.dialects.openai.requests import ChatCompletionRequest, CompletionRequest
from octavo.terms.models import JobRequest

CHAT, TEXT, JOBS = "/v1/chat/completions", "/v1/completions", "/v1/jobs"
HELLO = [{"role": "user", "content": "hello"}]
LIMIT = 1 << 20


def chat(**fields) -> dict:
    return {"model": MODEL, "messages": HELLO, "max_tokens": 1, **fields}


def text(**fields) -> dict:
    return {"model": MODEL, "prompt": "hello", "max_tokens": 1, **fields}


def job(**fields) -> dict:
    return {"model": MODEL, "prompt": "hello", **fields}


def assert_refused(reply: httpx.Response, status: int, code: str | None, param: str | None = None) -> None:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (CHAT, chat(model="absent"), 404, "model_not_found", "model"),
        (TEXT, text(model="absent"), 404, "model_not_found", "model"),
        (JOBS, job(model="absent"), 404, "model_not_found", "model"),
        (TEXT, text(prompt=""), 400, "invalid_value", "prompt"),
        (TEXT, text(prompt=[]), 400, "invalid_value", "prompt"),
        (TEXT, text(prompt=[""]), 400, "invalid_value", "prompt.0"),
        (TEXT, text(prompt=[1, -2]), 400, "invalid_value", "prompt.1"),
        (TEXT, text(prompt=None), 400, "invalid_value", "prompt"),
        (TEXT, text(prompt=["a"] * 257), 400, "invalid_value", "prompt"),
        (TEXT, text(prompt=[[]]), 400, "invalid_value", "prompt.0"),
        (JOBS, job(prompt=""), 400, "invalid_value", None),
        (CHAT, chat(messages=[]), 400, "invalid_value", "messages"),
        (CHAT, chat(messages=[{"role": "king", "content": "x"}]), 400, "invalid_value", "messages.0.role"),
        (CHAT, chat(messages=[*HELLO, {**HELLO[0], "refusal": "no"}]), 400, "unknown_parameter", "messages.1.refusal"),
        (
            CHAT,
            chat(messages=[*HELLO, {**HELLO[0], "tool_calls": [{}]}]),
            400,
            "missing_required_parameter",
            "messages.1.tool_calls.0.function",
        ),
        (CHAT, chat(min_tokens=3, max_tokens=2), 400, "invalid_value", None),
        (CHAT, {"model": MODEL}, 400, "missing_required_parameter", "messages"),
        (CHAT, chat(temperature=-1), 400, "invalid_value", "temperature"),
        (CHAT, chat(temperature="hot"), 400, "invalid_value", "temperature"),
        (CHAT, chat(top_p=0), 400, "invalid_value", "top_p"),
        (CHAT, chat(n=0), 400, "invalid_value", "n"),
        (CHAT, chat(max_tokens=-2), 400, "invalid_value", "max_tokens"),
        (CHAT, chat(top_logprobs=3), 400, "invalid_value", None),
        (CHAT, chat(logprobs=True, top_logprobs=21), 400, "invalid_value", "top_logprobs"),
        (CHAT, chat(stop=["x"] * 17), 400, "invalid_value", "stop"),
        (CHAT, chat(logit_bias={"x": 1}), 400, "invalid_value", "logit_bias.x"),
        (CHAT, chat(stream_options={"include_usage": True}), 400, "invalid_value", None),
        (CHAT, chat(tools=[{"type": "function"}]), 400, "missing_required_parameter", "tools.0.function"),
        (CHAT, chat(functions=[{"name": "f"}]), 400, "unknown_parameter", "functions"),
        (CHAT, chat(response_format={"type": "yaml"}), 400, "invalid_value", "response_format.type"),
        (CHAT, chat(response_format={"type": "json_schema"}), 400, "invalid_value", "response_format"),
        (CHAT, chat(guided_regex="a", guided_choice=["a"]), 400, "invalid_value", None),
        (CHAT, chat(structured_outputs={}), 400, "invalid_value", "structured_outputs"),
        (TEXT, text(guided_choice=[]), 400, "invalid_value", "guided_choice"),
        (TEXT, text(guided_whitespace_pattern=" "), 400, "unknown_parameter", "guided_whitespace_pattern"),
        (CHAT, chat(audio={"voice": "x"}), 400, "unknown_parameter", "audio"),
        (TEXT, text(suffix="x"), 400, "unknown_parameter", "suffix"),
        (TEXT, text(top_k=2**70), 400, "invalid_value", "top_k"),
        (TEXT, text(best_of=1, n=2), 400, "invalid_value", None),
        (TEXT, text(beam_width=1, n=2), 400, "invalid_value", None),
        (TEXT, text(beam_width=2, temperature=0.5), 400, "invalid_value", None),
        (TEXT, text(early_stopping=True), 400, "invalid_value", None),
        (TEXT, text(min_tokens=5), 400, "invalid_value", None),
        (TEXT, text(stream=True, echo=True, logprobs=1), 400, "invalid_value", None),
        (TEXT, text(stream=True, max_tokens=0), 400, "invalid_value", None),
        (JOBS, job(sampling={"temperature": 9}), 400, "invalid_value", "sampling.temperature"),
        (JOBS, job(nonsense=1), 400, "unknown_parameter", "nonsense"),
        (JOBS, {"model": MODEL}, 400, "invalid_value", None),
        (JOBS, [], 400, "invalid_value", None),
        (CHAT, "x", 400, "invalid_value", None),
    ],
)
async def test_refused_fields(http, worker, path, body, status, code, param):
    assert_refused(await http.post(path, json=body), status, code, param)
    assert (await http.get("/v1/jobs")).json()["data"] == []


MANY = 10_000


@pytest.mark.parametrize("bad", [-1, "", None, [], {}, [-1], 1.5], ids=repr)
@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (CompletionRequest, lambda many: text(prompt=many)),
        (CompletionRequest, lambda many: text(stop=[7, *many])),
        (CompletionRequest, lambda many: text(stop_token_ids=["x", *many])),
        (ChatCompletionRequest, lambda many: chat(messages=many)),
        (ChatCompletionRequest, lambda many: chat(messages=[{"role": "user", "content": many}])),
        (JobRequest, lambda many: job(prompt=many)),
        (JobRequest, lambda many: {"model": MODEL, "messages": many}),
        (JobRequest, lambda many: job(sampling={"stop": [7, *many], "stop_token_ids": ["x", *many]})),
    ],
)
def test_a_list_of_nothing_but_mistakes_is_not_listed(body, fields, bad):
    """A body of a megabyte would have a million errors, which take ten seconds and gigabytes."""
    with pytest.raises(ValidationError) as caught:
        body.model_validate_json(json.dumps(fields([bad] * MANY)))
    assert caught.value.error_count() < 10


DEEP = b'{"model":' * 100_000


@pytest.mark.parametrize("path", [CHAT, TEXT, JOBS])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"model": "\xc3\x28"}',
        b'{"model": "\\ud800"}',
        b"[" * 500_000,
        DEEP,
        b"NaN",
        b"\x00" * 100,
    ],
    ids=["empty", "cut", "bytes", "utf8", "surrogate", "deep-list", "deep-map", "nan", "zeros"],
)
async def test_bodies_that_are_no_json(http, worker, path, body):
    reply = await http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x93\x01\xa3job", b"\x91" * 9999, b"\x80", b"\x93\x01\xa1c\x00"),
        *(b"\x93\x01\xa3job\x81\xa6" + name + b"\x91" * 1000 + b"\xc0" for name in (b"prompt", b"nobody")),
        b"\x93" + b"\x91" * 400 + b"\xc0\xa3job\x80",
    ],
)
async def test_malformed_msgpack(http, worker, body):
    reply = await http.post(JOBS, content=body, headers={"Content-Type": "application/msgpack"})
    assert_refused(reply, 400, "malformed_message")


async def test_wrong_content_type(http, worker):
    for path, kind in (
        (CHAT, "text/plain"),
        (CHAT, "application/msgpack"),
        (JOBS, "application/x-www-form-urlencoded"),
    ):
        reply = await http.post(path, content=json.dumps(chat()), headers={"Content-Type": kind})
        assert_refused(reply, 415, "unsupported_media_type")


async def test_a_huge_body_is_refused_unread(http, worker):
    async def body():
        for _ in range(100):
            yield b" " * (1 << 20)

    for path in (CHAT, JOBS):
        declared = await http.post(path, content=b" " * (LIMIT + 1), headers={"Content-Type": "application/json"})
        assert_refused(declared, 413, "body_too_large")
        streamed = await http.post(path, content=body(), headers={"Content-Type": "application/json"})
        assert_refused(streamed, 413, "body_too_large")


async def test_a_declared_giant_is_answered_before_it_is_sent(gateway_url, worker):
    host, port = gateway_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), family=socket.AF_INET)
    writer.write(
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 104857600\r\n\r\n{"
    )
    async with asyncio.timeout(STALL_S):
        assert b" 413 " in await reader.readline()
    writer.close()


async def test_unknown_paths_and_methods(http, worker):
    assert_refused(await http.get("/v1/nothing"), 404, "not_found")
    assert_refused(await http.put("/v1/jobs"), 405, "method_not_allowed")
    assert_refused(await http.get(CHAT), 405, "method_not_allowed")


async def test_bad_query_and_headers(http, worker):
    submitted = (await http.post(JOBS, json=job())).json()
    stream = submitted["links"]["stream"]
    assert_refused(await http.get(JOBS, params={"limit": 0}), 400, "invalid_value", "limit")
    assert_refused(await http.get(JOBS, params={"status": "lost"}), 400, "invalid_value", "status")
    assert_refused(await http.get(stream, params={"after": "-1"}), 400, "invalid_value", "after")
    assert_refused(await http.get(stream, params={"after": "x"}), 400, "invalid_value", "after")
    assert_refused(await http.get(stream, headers={"Last-Event-ID": "x"}), 400, "invalid_value", "last-event-id")
    long_key = {"Idempotency-Key": "k" * 256}
    assert_refused(await http.post(JOBS, json=job(), headers=long_key), 400, "invalid_value", "idempotency-key")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9) | st.just(MODEL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    sorted({*CompletionRequest.model_fields, *ChatCompletionRequest.model_fields, *JobRequest.model_fields})
)


@pytest.fixture
def sync_http(gateway_url):
    with httpx.Client(base_url=gateway_url, timeout=STALL_S) as client:
        yield client


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from([CHAT, TEXT, JOBS]), fields=st.dictionaries(FIELDS, VALUES, max_size=3))
def test_no_body_is_a_server_error(sync_http, path, fields):
    """No worker runs, no model is known: a valid body ends as 404, anything else as 400."""
    base = {CHAT: chat(), TEXT: text(), JOBS: job()}[path]
    body = json.dumps({**base, **fields})
    reply = sync_http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code in (400, 404), reply.text
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
