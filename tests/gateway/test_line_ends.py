"""Text may hold what some readers take for the end of a line: it cuts no event of any stream, and no line of a file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_worker import MODEL, ScriptedWorker

from octavo.dialects.openai.batch.answers import encode
from octavo.terms.messages import Chunk
from octavo.terms.models import JobRequest

ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


class Separating(ScriptedWorker):
    """Says the line ends of Unicode."""

    def _chunk(self, request: JobRequest, sequence: int, position: int, total: int) -> Chunk:
        reason = "length" if position == total - 1 else None
        return Chunk(sequence, (position,), (f"{ENDS[position]}x",), None, reason)


TURN = [{"role": "user", "content": "hi"}]
PARTS = [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURN, "max_tokens": 8},
    "/v1/completions": {"prompt": "hi", "max_tokens": 8},
    "/v1/responses": {"input": "hi", "max_output_tokens": 8},
    "/v1/messages": {"messages": TURN, "max_tokens": 8},
    "/v1/chat": {"id": "c", "messages": PARTS, "max_tokens": 8},
}


def check(text: str) -> None:
    """Raises for data that is no JSON to a reader that splits lines as Python does."""
    data = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    said = json.dumps([json.loads(line) for line in data if line.strip() != "[DONE]"], ensure_ascii=False)
    assert all(end in said or json.dumps(end)[1:-1] in said for end in ENDS)
    assert not [
        line for line in text.splitlines() if line and not line.startswith(("data:", "event:", "id:", "retry:"))
    ]


@pytest.mark.parametrize("path", ASKED)
async def test_no_event_of_a_stream_is_cut(http, redis_url, path):
    async with Separating(redis_url):
        check((await http.post(path, json={"model": MODEL, "stream": True, **ASKED[path]})).text)


async def test_no_event_of_a_job_is_cut(http, redis_url):
    async with Separating(redis_url):
        job = {"model": MODEL, "prompt": "hi", "sampling": {"max_tokens": 8}}
        links = (await http.post("/v1/jobs", json=job)).json()["links"]
        check((await http.get(links["stream"])).text)
        check((await http.get(links["log"], params={"offset": "-1", "live": "sse"})).text)


def test_a_batch_writes_an_answer_a_line():
    assert encode({"text": ENDS}).splitlines() == [encode({"text": ENDS}).rstrip("\n")]
    assert json.loads(encode({"text": ENDS})) == {"text": ENDS}
