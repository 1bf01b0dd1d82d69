"""`octavo batch submit`, `status`, `cancel` and `fetch` against a gateway."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clerks import encoded, line, working
from click.testing import Result
from scripted_worker import ScriptedWorker
from typer.testing import CliRunner
from waiting import STALL_S

from octavo import ServerUnavailable
from octavo.cli.app import build_app
from octavo.service.batches.remote import Refused


@pytest.fixture
def service(redis_url: str, folder: Path) -> Iterator[None]:
    """A clerk and a worker in a thread of their own."""
    loop, stop, started = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def serve() -> None:
        async with working(redis_url, folder), ScriptedWorker(redis_url):
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(STALL_S)
    yield
    loop.call_soon_threadsafe(stop.set)
    thread.join(STALL_S)
    loop.close()


@pytest.fixture
def octavo(gateway: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("OCTAVO_URL", gateway)
    monkeypatch.setenv("OCTAVO_API_KEY", "k1")
    return lambda *words: CliRunner().invoke(build_app(), ["batch", *map(str, words)])


def found(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout)


def test_a_file_is_submitted_watched_and_fetched(octavo, service: None, tmp_path: Path) -> None:
    source, target, errors = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "err.jsonl"
    source.write_bytes(encoded(line("a"), line("b", temperature=9)))
    result = octavo("submit", source, "--watch", "--json")
    batch = found(result)
    assert (result.exit_code, batch["status"]) == (1, "completed")
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert octavo("status", batch["id"]).exit_code == 1
    assert octavo("fetch", batch["id"], target, "--errors", errors).exit_code == 1
    assert [json.loads(one)["custom_id"] for one in target.read_text().splitlines()] == ["a"]
    assert [json.loads(one)["custom_id"] for one in errors.read_text().splitlines()] == ["b"]
    source.write_bytes(encoded(line("a")))
    again = found(octavo("submit", source, "--window", "2d", "--watch", "--json"))
    assert again["completion_window"] == "2d"
    assert octavo("fetch", again["id"], target).exit_code == 0


def test_a_batch_is_cancelled_and_not_fetched_before_its_end(octavo, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(encoded(line("a")))
    batch = found(octavo("submit", source, "--json"))
    assert batch["status"] == "validating"
    early = octavo("fetch", batch["id"], tmp_path / "out")
    assert (early.exit_code, "validating" in early.output) == (1, True)
    assert found(octavo("cancel", batch["id"], "--json"))["status"] == "cancelling"


def test_what_goes_wrong_is_said(octavo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n')
    assert "no batch line" in octavo("submit", source).output
    assert isinstance(octavo("status", "batch_nonsense").exception, Refused)
    monkeypatch.setenv("OCTAVO_URL", "http://127.0.0.1:1")
    assert isinstance(octavo("status", "batch_nonsense").exception, ServerUnavailable)
    monkeypatch.setenv("OCTAVO_URL", "nonsense")
    assert isinstance(octavo("status", "batch_nonsense").exception, ServerUnavailable)
