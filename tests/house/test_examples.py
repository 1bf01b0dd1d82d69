"""Every example of the documentation runs as it is written, in the order of its document, on a real service."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import httpx
import pytest
from cli_driver import Up
from examples import REASONS, ROOT, Example, Session, documents, examples_of
from waiting import STALL_S

from octavo_gateway.operations import OPERATIONS

QUICK = {"README.md", "structured.md", "tools.md", "jobs.md", "streams.md", "metrics.md"}
EXAMPLES = {document: examples for document in documents() if (examples := examples_of(document))}
NODE = shutil.which("node") is not None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def session(up: Up, folder: Path) -> Session:
    """A shell with nothing in it but the service."""
    server = json.loads((up.cli.state_dir / "up.json").read_text())["redis_url"]
    of_server = re.sub(r"^redis://|/\d*$", "", server)
    gateway, own = f"127.0.0.1:{up.port}", str(free_port())
    addresses = {"127.0.0.1:8000": gateway, "127.0.0.1:6379": of_server, "127.0.0.1:8080": f"127.0.0.1:{own}"}
    more = {"ORIGIN": f"http://{gateway}", "OCTAVO_GATEWAY": f"http://{gateway}", "REDIS_URL": server}
    return Session(folder, up.cli.environment | more, addresses | {"--port 8080": f"--port {own}"})


def run_all(session: Session, examples: list[Example]) -> dict[int, str]:
    """Outputs by the numbers of examples. Those that are not for here are left out."""
    return {
        example.number: session.run(example)
        for example in examples
        if example.reason is None and (example.language != "js" or NODE)
    }


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(document, marks=() if document.name in QUICK else pytest.mark.full, id=document.name)
        for document in EXAMPLES
        if document.name != "tutorial.md"
    ],
)
def test_the_examples_of_a_document_run_in_order(up: Up, tmp_path: Path, document: Path) -> None:
    examples = EXAMPLES[document]
    if any("node " in example.source for example in examples) and not NODE:
        pytest.skip("needs node")
    with session(up, tmp_path) as running:
        said = run_all(running, examples)
    told = [example for example in examples if example.number in said and example.file is None]
    answers = [example for example in told if "curl" in example.source.splitlines()[-1]]
    empty = [example.name for example in answers if not said[example.number] and "chat-1/stream" not in example.source]
    assert empty == [], "only a chat that has ended has nothing to resume"
    assert not [text for text in said.values() if "Traceback" in text]


def test_the_tools_of_the_documentation_are_called(up: Up, tmp_path: Path) -> None:
    """The bundled model writes nonsense, which a grammar keeps valid."""
    with session(up, tmp_path) as running:
        client, call, thought = run_all(running, EXAMPLES[ROOT / "docs/tools.md"]).values()
    assert "get_weather" in client
    (choice,) = json.loads(call)["choices"]
    (made,) = [tool["function"] for tool in choice["message"]["tool_calls"]][:1]
    assert (choice["finish_reason"], made["name"]) == ("tool_calls", "get_weather")
    assert isinstance(json.loads(made["arguments"])["city"], str)
    message = json.loads(thought)["choices"][0]["message"]
    assert message["reasoning_content"]
    assert "think>" not in (message["content"] or "")


def events_of(text: str) -> list[tuple[int, str]]:
    """Offsets and texts of server-sent events."""
    return [(int(offset), json.loads(data)) for offset, data in re.findall(r"^id: (\d+)\ndata: (.*)$", text, re.M)]


@pytest.mark.full
def test_the_tutorial_ends_with_a_resumed_stream_and_kept_stories(up: Up, tmp_path: Path) -> None:
    examples = EXAMPLES[ROOT / "docs/tutorial.md"]
    with session(up, tmp_path) as running:
        said = run_all(running, examples)
        if NODE:
            visited = json.loads(running.command("the page", page_of(tmp_path), ORIGIN=f"http://{running.own}"))
            assert visited["same"]
            assert 20 <= visited["left"] < visited["seen"] <= 300  # a story may end by itself
        begun, *_ = [text for number, text in said.items() if "Last-Event-ID" in examples[number - 1].source]
        whole = (tmp_path / "whole.txt").read_text()
    rest = events_of(begun)[6:]
    assert rest[0][0] > 4
    offsets = [offset for offset, _ in events_of(whole)]
    assert offsets == sorted(set(offsets))
    assert whole.rstrip().endswith("data: completed")
    kept = (tmp_path / "stories.txt").read_text().split("\n---\n")
    assert "".join(text for _, text in events_of(whole)).strip() in kept


def page_of(folder: Path) -> list[str]:
    """A command that visits the page which the web server gave out."""
    (code,) = re.findall(r"<script>\n(.*?)</script>", (folder / "page.html").read_text(), flags=re.DOTALL)
    (folder / "page.js").write_text(code)
    parts = [(ROOT / "tests/support" / name).read_text() for name in ("browser.mjs", "page.mjs")]
    (folder / "visit.mjs").write_text("\n".join(parts))
    return ["node", "visit.mjs", "page.js"]


def test_what_is_not_run_says_why() -> None:
    found = [example for examples in EXAMPLES.values() for example in examples]
    assert {mark for example in found for mark in example.marks} == REASONS.keys()
    left_out = [example for example in found if set(example.marks) - {"npm"}]  # whatever is installed here
    assert len(found) - len(left_out) > 3 * len(left_out)
    table = dict(re.findall(r"^\| `([a-z]+)` \| (.+?) \|$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE))
    assert table.items() >= REASONS.items()


OF_KEYS = ("/v1/organization/", "/v1/webhook_endpoints", "/v1/fleet/webhooks/")
"""Paths that need keys, or an address of the receiver: their own tests ask for them."""


@pytest.mark.full
@pytest.mark.parametrize(
    "path",
    sorted({path for _, path in OPERATIONS if OPERATIONS[_, path].examples and not path.startswith(OF_KEYS)}),
)
def test_the_examples_of_the_api_s_own_description_are_answered(up: Up, path: str) -> None:
    address = f"http://127.0.0.1:{up.port}"
    for name, body in OPERATIONS["post", path].examples.items():
        asked = dict(body)
        if "{job_id}" in path:
            job = httpx.post(f"{address}/v1/jobs", json={"model": "demo", "prompt": "x"}, timeout=STALL_S)
            path = path.replace("{job_id}", job.json()["id"])
        if "input_file_id" in asked:
            file = httpx.post(f"{address}/v1/files", data={"purpose": "batch"}, files={"file": b"{}"}, timeout=STALL_S)
            asked["input_file_id"] = file.json()["id"]
        answer = httpx.post(f"{address}{path}", json=asked, timeout=STALL_S)
        assert answer.is_success, f"{name}: {answer.text}"
        if path == "/v1/fleet/lanes":  # others wait in a paused one
            httpx.post(f"{address}{path}", json=asked | {"paused": False}, timeout=STALL_S)
