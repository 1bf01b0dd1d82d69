"""Errors in the shape that a client reads: by the path, and by the header that Anthropic's clients send."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker

from octavo.dialects.anthropic.body import MessagesRequest

MESSAGES = "/v1/messages"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/messages", 405),
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/messages/batches/x", 404),
        ("PUT", "/v1/messages/count_tokens", 405),
    ],
)
async def test_paths_below_messages_answer_in_anthropic_s_shape(
    http: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    reply = await http.request(method, path)
    assert reply.status_code == status
    assert (reply.json()["type"], set(reply.json()["error"])) == ("error", {"type", "message"})


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/vector_stores", "/v1/skills", "/v1/messagesx", "/nothing"])
async def test_other_paths_answer_in_the_shape_of_the_client(http: httpx.AsyncClient, path: str) -> None:
    ours = await http.post(path)
    assert (ours.status_code, ours.json()["error"]["code"]) == (404, "not_found")
    theirs = await http.post(path, headers={"anthropic-version": "2023-06-01"})
    assert (theirs.status_code, theirs.json()["error"]["type"]) == (404, "not_found_error")


async def test_every_error_of_messages_has_anthropic_s_shape(
    http: httpx.AsyncClient, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = {"content-type": "application/json"}
    refusals = [
        await http.post(MESSAGES, content=b"{", headers=kind),
        await http.post(MESSAGES, content=b" " * ((1 << 20) + 1), headers=kind),
        await http.post(MESSAGES, content=b"x", headers={"content-type": "text/plain"}),
        await http.post(MESSAGES, json=ASKED, headers={"origin": "https://elsewhere.example"}),
        await http.post(MESSAGES, json=ASKED, headers={"idempotency-key": "x" * 300}),
    ]
    assert [reply.status_code for reply in refusals] == [400, 413, 415, 403, 400]
    monkeypatch.setattr(MessagesRequest, "completion", lambda _: 1 / 0)
    refusals.append(await http.post(MESSAGES, json=ASKED | {"invented": 1}))
    assert (refusals[-1].status_code, refusals[-1].headers["octavo-ignored"]) == (500, "invented")
    for reply in refusals:
        assert (reply.json()["type"], set(reply.json()["error"])) == ("error", {"type", "message"}), reply.text
