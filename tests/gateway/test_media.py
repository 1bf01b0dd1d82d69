"""Images, sound, video and files in a message: a refusal that says so, in every dialect."""

from __future__ import annotations

from typing import Any

import pytest

TEXT = {"type": "text", "text": "What is this?"}
OPENAI = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
    {"type": "file", "file": {"file_id": "file-1"}},
]
ANTHROPIC = [
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
]
RESPONSES = [
    {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
    {"type": "input_file", "file_id": "file-1"},
    {"type": "input_audio", "input_audio": {}},
]


def chat(part: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": [TEXT, part]}]}


def messages(part: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [TEXT, part]}]}


def result(part: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    block = {"type": "tool_result", "tool_use_id": "a", "content": [TEXT, part]}
    return "/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}


def responses(part: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, part]}]}


def ui(part: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/chat", {"id": "a", "messages": [{"id": "b", "role": "user", "parts": [TEXT, part]}]}


CASES = [
    *(chat(part) for part in OPENAI),
    *(messages(part) for part in ANTHROPIC),
    *(result(part) for part in ANTHROPIC),
    *(responses(part) for part in RESPONSES),
    ui({"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA=="}),
]


@pytest.mark.parametrize(("path", "body"), CASES)
async def test_a_part_that_is_no_text_is_refused_by_name(http, worker, path: str, body: dict[str, Any]) -> None:
    reply = await http.post(path, json={"model": "tiny", **body})
    assert reply.status_code == 400, reply.text
    said = reply.json()["error"]["message"]
    assert "is not read here: models read text alone; send text" in said
    assert worker.seen == []
