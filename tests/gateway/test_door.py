"""Every dialect enters the queue by one door: its requests are checked, submitted and counted alike."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from exposition import sample
from scripted_worker import MODEL

MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "no such type"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
PART = {"messages": [{"role": "user", "parts": [{"type": "text", "text": "hello"}]}]}

REQUESTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "job": ("/v1/jobs", {"prompt": "x"}, {"grammar": {"kind": "json_schema", "text": SCHEMA}}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3}, {"response_format": FORMAT}),
    "completion": ("/v1/completions", {"prompt": "x"}, {"response_format": FORMAT}),
    "prompts": ("/v1/completions", {"prompt": ["x", "y"]}, {"response_format": FORMAT}),
    "response": (
        "/v1/responses",
        {"input": "hello", "max_output_tokens": 3},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    ),
    "message": (
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": 3},
        {"tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}]},
    ),
    "ui": ("/v1/chat", {"id": "c", **PART}, {"response_format": FORMAT}),
}
JOBS = {"prompts": 2}

pytestmark = pytest.mark.usefixtures("worker")


async def submitted(http: httpx.AsyncClient) -> float:
    return sample((await http.get("/metrics")).text, "octavo_jobs_submitted_total", model=MODEL)


@pytest.mark.parametrize("kind", REQUESTS)
async def test_accepted_jobs_are_counted_once_each(http: httpx.AsyncClient, kind: str) -> None:
    path, body, _ = REQUESTS[kind]
    before = await submitted(http)
    assert (await http.post(path, json={"model": MODEL, **body})).is_success
    assert await submitted(http) - before == JOBS.get(kind, 1)


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_grammar_that_cannot_be_compiled_is_refused(http: httpx.AsyncClient, kind: str) -> None:
    path, body, grammar = REQUESTS[kind]
    before = await submitted(http)
    answer = await http.post(path, json={"model": MODEL, **body, **grammar})
    assert answer.status_code == 400, answer.text
    assert "no such type" in answer.json()["error"]["message"]
    assert await submitted(http) == before


@pytest.mark.parametrize("kind", ["job", "response", "ui"])
async def test_a_job_that_was_there_before_is_not_counted_again(http: httpx.AsyncClient, kind: str) -> None:
    path, body, _ = REQUESTS[kind]
    before = await submitted(http)
    for _ in range(2):
        answer = await http.post(path, json={"model": MODEL, **body}, headers={"Idempotency-Key": kind})
        assert answer.is_success
    assert await submitted(http) - before == 1
