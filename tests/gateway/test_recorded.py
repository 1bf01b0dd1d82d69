"""The requests that programs send: each is answered, and what changes nothing is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker, whole_text

FOLDER = Path(__file__).parent / "recorded"
RECORDED = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
LIMITS = ("max_tokens", "max_completion_tokens")  # the scripted worker writes as many tokens as it may
TOKENS = 16
END = {"/v1/messages": "message_stop", "/v1/responses": "response.incomplete", "/v1/chat/completions": "[DONE]"}


def test_there_are_recordings() -> None:
    assert len(RECORDED) >= 8
    assert {asked["body"]["model"] for asked in RECORDED.values()} == {MODEL}


@pytest.mark.parametrize("name", RECORDED)
async def test_a_recorded_request_is_answered(http: httpx.AsyncClient, worker: ScriptedWorker, name: str) -> None:
    asked = RECORDED[name]
    path = asked["path"].partition("?")[0]
    body = asked["body"] | {limit: TOKENS for limit in LIMITS if limit in asked["body"]}
    reply = await http.post(asked["path"], json=body, headers=asked["headers"])
    assert reply.status_code == 200, reply.text
    assert reply.headers.get("octavo-ignored", "") == asked["ignored"]
    assert END[path] in reply.text[-2000:]
    assert "".join(texts(reply.text)) == whole_text(TOKENS)
    (job,) = worker.seen
    wanted = [tool for tool in body.get("tools", ()) if tool.get("type") in (None, "function", "custom")]
    assert [tool.name for tool in job.tools] == [tool.get("name") or tool["function"]["name"] for tool in wanted]
    form = body.get("output_config", {}).get("format")
    assert (job.grammar and json.loads(job.grammar.text)) == (form and form["schema"])


def texts(stream: str) -> Iterator[str]:
    """Pieces of text of a streamed answer, whichever dialect it is in."""
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        event: dict[str, Any] = json.loads(line.removeprefix("data: "))
        delta = event.get("delta", {})
        if event.get("type") == "response.output_text.delta":
            yield delta
        elif isinstance(delta, dict):
            yield delta.get("text", "")
        yield from (choice["delta"].get("content") or "" for choice in event.get("choices", ()))
