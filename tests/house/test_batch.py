"""`octavo batch` between two runs: what people, editors and shells do to both files, and jobs that failed before."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import Result
from scripted_worker import CONTEXT, MODEL, ScriptedWorker, whole_text
from typer.testing import CliRunner
from waiting import STALL_S, eventually

from octavo import AsyncClient, Client, QueueFull, ServerUnavailable
from octavo.cli.app import build_app
from octavo.queue import wire
from octavo.queue.calls import run_sync
from octavo.queue.protocol import Cell
from octavo.service.batches.run import window_for
from octavo.terms.errors import OctavoError
from octavo.terms.stats import WorkerStats
from octavo.terms.workers import WorkerInfo

WORDS = ("one", "two", "three")


@contextmanager
def working(url: str) -> Iterator[ScriptedWorker]:
    """A scripted worker in a thread of its own."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    found: list[ScriptedWorker] = []
    stop = asyncio.Event()

    async def serve() -> None:
        async with ScriptedWorker(url) as worker:
            found.append(worker)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(STALL_S)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(STALL_S)
    loop.close()


class Folder:
    """The two files of a batch, and runs over them."""

    def __init__(self, path: Path, url: str, worker: ScriptedWorker) -> None:
        self.source, self.target = path / "in.jsonl", path / "out.jsonl"
        self.worker = worker
        self._url = url

    def write(self, *lines: dict[str, Any]) -> None:
        self.source.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def invoke(self, *options: str, model: str = MODEL) -> Result:
        arguments = ["batch", "run", str(self.source), str(self.target), "--model", model, "--redis-url", self._url]
        return CliRunner().invoke(build_app(), [*arguments, *options, "--json"])

    def run(self, code: int = 0) -> dict[str, int]:
        result = self.invoke()
        assert result.exit_code == code, result.output
        found: dict[str, int] = json.loads(result.stdout)
        return found

    def refusal(self, code: int = 1) -> str:
        """The refusal in one sentence."""
        result = self.invoke()
        assert result.exit_code == code
        assert isinstance(result.exception, SystemExit)
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    def answers(self) -> dict[str, Any]:
        lines = [json.loads(line) for line in self.target.read_text(encoding="utf-8").splitlines()]
        answers = {line["custom_id"]: line["response"] for line in lines}
        assert len(answers) == len(lines)
        return answers

    def prompt_lengths(self) -> dict[str, int]:
        return {name: answer["body"]["usage"]["prompt_tokens"] for name, answer in self.answers().items()}


@pytest.fixture
def folder(tmp_path: Path, redis_url: str) -> Iterator[Folder]:
    with working(redis_url) as worker:
        yield Folder(tmp_path, redis_url, worker)


def prompt(text: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": text, "max_tokens": 1, **fields}


def test_answers_stay_with_their_requests_when_lines_move(folder: Folder) -> None:
    folder.write(*map(prompt, WORDS))
    folder.run()
    folder.write(prompt("inserted"), *map(prompt, WORDS))
    assert folder.run() == {"lines": 4, "skipped": 3, "failed": 0}
    assert folder.prompt_lengths() == {"line-1": 8, "line-2": 3, "line-3": 3, "line-4": 5}
    folder.write(prompt("three"), prompt("inserted"))
    assert folder.run() == {"lines": 2, "skipped": 2, "failed": 0}
    assert folder.prompt_lengths() == {"line-1": 5, "line-2": 8, "line-3": 3}  # that of a line that is gone stays
    assert len(folder.worker.seen) == 4


def test_a_batch_goes_on_from_jobs_whose_lines_have_moved(folder: Folder) -> None:
    folder.write(*map(prompt, WORDS))
    folder.run()
    folder.target.unlink()
    folder.write(*map(prompt, reversed(WORDS)))
    folder.run()
    assert folder.prompt_lengths() == {"line-1": 5, "line-2": 3, "line-3": 3}
    assert len(folder.worker.seen) == 3


def test_an_edited_line_is_answered_anew_and_the_old_answer_is_kept_aside(folder: Folder) -> None:
    folder.write(prompt("one", custom_id="a"), prompt("two", custom_id="b"))
    folder.run()
    folder.write(prompt("one", custom_id="a"), prompt("second", custom_id="b"))
    assert folder.run() == {"lines": 2, "skipped": 1, "failed": 0}
    assert folder.prompt_lengths() == {"a": 3, "b": 6}
    assert len((folder.target.parent / "out.jsonl.old").read_text().splitlines()) == 2


def test_equal_lines_are_jobs_of_their_own(folder: Folder) -> None:
    folder.write(prompt("same"), prompt("same"), prompt("same", custom_id="c"))
    folder.run()
    assert len({answer["request_id"] for answer in folder.answers().values()}) == 3
    folder.write(prompt("same"), prompt("same"), prompt("same"), prompt("same", custom_id="c"))
    assert folder.run() == {"lines": 4, "skipped": 3, "failed": 0}
    assert len({answer["request_id"] for answer in folder.answers().values()}) == 4


def test_another_model_is_another_request(folder: Folder) -> None:
    folder.write(prompt("one", model="nosuch"))
    folder.run(code=1)
    folder.write(prompt("one"))
    folder.run()
    folder.write(prompt("one", model=MODEL))
    assert folder.run()["failed"] == 0


def test_failed_lines_are_tried_again_and_never_get_an_old_failure(folder: Folder) -> None:
    folder.write(prompt("x" * (CONTEXT + 1)), prompt("y"))
    for tries in (1, 2, 3):
        assert folder.run(code=1) == {"lines": 2, "skipped": 0 if tries == 1 else 1, "failed": 1}
        assert len(folder.worker.seen) == tries + 1


def test_a_cancelled_job_is_not_the_answer_of_the_next_run(folder: Folder, redis_url: str) -> None:
    folder.write(prompt("one"))
    folder.worker.hold_after = 0

    def cancel_it() -> None:
        with Client(redis_url) as client:
            while not (running := [job for job in client.jobs() if not job.status.is_terminal]):
                pass
            client.cancel(running[0].id)

    canceller = threading.Thread(target=cancel_it)
    canceller.start()
    assert folder.run(code=1)["failed"] == 1
    canceller.join()
    folder.worker.hold_after = None
    assert folder.run() == {"lines": 1, "skipped": 0, "failed": 0}


ENCODINGS: tuple[Callable[[str], bytes], ...] = (
    lambda text: codecs.BOM_UTF8 + text.encode(),
    lambda text: text.encode("utf-16"),
    lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    lambda text: text.encode("utf-32"),
    lambda text: text.replace("\n", "\r\n").encode(),
    lambda text: text.replace("\n", "\r").encode(),
    lambda text: b"".join(codecs.BOM_UTF8 + line.encode() for line in re.findall("[^\n]*\n", text)),
    lambda text: text.replace("\n", "\n \t\n\n").encode(),
    lambda text: text.rstrip("\n").encode(),
)


@pytest.mark.parametrize("written", range(len(ENCODINGS)))
def test_both_files_are_read_however_an_editor_wrote_them(folder: Folder, written: int) -> None:
    folder.write(prompt("Grüße\u2028", custom_id="ä"), prompt("two", custom_id="b"))
    text = folder.source.read_text().replace("\\u00fc", "ü").replace("\\u2028", "\u2028")
    folder.source.write_bytes(ENCODINGS[written](text))
    assert folder.run() == {"lines": 2, "skipped": 0, "failed": 0}
    answered = folder.target.read_text(encoding="utf-8")
    folder.target.write_bytes(ENCODINGS[written](answered))
    folder.source.write_text(text + json.dumps(prompt("three", custom_id="c")), encoding="utf-8")
    assert folder.run() == {"lines": 3, "skipped": 2, "failed": 0}
    assert folder.prompt_lengths() == {"ä": 6, "b": 3, "c": 5}
    assert len(folder.worker.seen) == 3


def test_answers_may_be_removed_moved_and_formatted_between_two_runs(folder: Folder) -> None:
    folder.write(*map(prompt, WORDS))
    folder.run()
    lines = folder.target.read_text().splitlines()
    formatted = [json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")) for line in reversed(lines[1:])]
    folder.target.write_text("\n".join(formatted))
    assert folder.run() == {"lines": 3, "skipped": 2, "failed": 0}
    assert folder.prompt_lengths() == {"line-1": 3, "line-2": 3, "line-3": 5}


def test_what_cannot_be_read_or_written_is_said_in_one_sentence(folder: Folder) -> None:
    folder.write(prompt("one"))
    target = folder.target
    folder.target = target.parent / "missing" / "out.jsonl"
    assert "cannot write" in folder.refusal()
    folder.target = target.parent
    assert "Is a directory" in folder.refusal()
    folder.target = folder.source
    assert "something else than answers" in folder.refusal()
    folder.target = target
    folder.source.write_bytes('{"prompt": "Grüße"}'.encode("latin-1"))
    assert "save it as UTF-8" in folder.refusal()
    folder.source.write_bytes(b"\xff\xfe\x00")
    assert "text" in folder.refusal()
    assert not target.exists()
    assert folder.worker.seen == []


@pytest.mark.parametrize("written", ['{"custom_id": null, "prompt": "x"}', '{"custom_id": 7, "prompt": "x"}'])
def test_ids_that_are_no_strings(folder: Folder, written: str) -> None:
    folder.source.write_text(written)
    folder.run()
    assert set(folder.answers()) <= {"line-1", "7"}


def test_an_answer_of_another_model_is_none(folder: Folder) -> None:
    folder.write(prompt("one"))
    folder.run()
    again = folder.invoke(model="nosuch")
    assert json.loads(again.stdout) == {"lines": 1, "skipped": 0, "failed": 1}


def test_another_output_has_jobs_of_its_own(folder: Folder) -> None:
    folder.write(prompt("one"))
    folder.run()
    folder.target = folder.target.with_name("other.jsonl")
    assert folder.run() == {"lines": 1, "skipped": 0, "failed": 0}
    assert len(folder.worker.seen) == 2


def test_a_line_of_several_prompts_fails_with_one_of_them(folder: Folder) -> None:
    body = {"prompt": ["fine", "x" * (CONTEXT + 1), "fine"], "max_tokens": 1}
    folder.write({"custom_id": "a", "url": "/v1/completions", "body": body}, prompt("fine", custom_id="b"))
    assert folder.run(code=1) == {"lines": 2, "skipped": 0, "failed": 1}
    answers = folder.answers()
    assert answers["a"]["status_code"] == 400
    assert answers["a"]["body"]["error"]["code"] == "context_length_exceeded"
    assert answers["b"] is not None


def test_prompts_of_a_line_are_answered_in_their_order_whichever_ends_first(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, others = ScriptedWorker._tokens, asyncio.Event()

    async def late(worker: ScriptedWorker, claim: Any, chunks: Any) -> Any:
        if claim.request.prompt == "late":
            await others.wait()
            longer = claim.request.sampling.model_copy(update={"max_tokens": 2})
            claim = replace(claim, request=claim.request.model_copy(update={"sampling": longer}))
        status = await generate(worker, claim, chunks)
        others.set()
        return status

    monkeypatch.setattr(ScriptedWorker, "_tokens", late)
    body = {"prompt": ["late", "b", "c"], "max_tokens": 1}
    folder.write({"custom_id": "a", "url": "/v1/completions", "body": body})
    folder.run()
    choices = folder.answers()["a"]["body"]["choices"]
    assert [choice["text"] for choice in choices] == [whole_text(tokens) for tokens in (2, 1, 1)]


@pytest.mark.parametrize("error", [QueueFull("full", retry_after_s=0.01), ServerUnavailable("away")])
def test_a_full_queue_is_waited_for_and_a_server_that_is_away_fails_no_line(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, error: OctavoError
) -> None:
    submit, refusals = AsyncClient.submit, [error]

    async def refused(*arguments: Any, **fields: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await submit(*arguments, **fields)

    monkeypatch.setattr(AsyncClient, "submit", refused)
    folder.write(prompt("one"))
    if isinstance(error, ServerUnavailable):
        assert folder.invoke().exit_code != 0
        assert folder.target.read_text() == ""
    assert folder.run() == {"lines": 1, "skipped": 0, "failed": 0}


def test_a_custom_id_that_stands_twice_is_refused(folder: Folder) -> None:
    folder.write(prompt("one", custom_id="a"), prompt("two", custom_id="a"))
    assert "'a' stands on several lines" in folder.refusal(2)
    assert folder.worker.seen == []


def test_an_answer_that_was_torn_is_given_again(folder: Folder) -> None:
    folder.write(*map(prompt, WORDS))
    folder.run()
    whole = folder.target.read_text()
    folder.target.write_text(whole[:-40])
    assert folder.run() == {"lines": 3, "skipped": 2, "failed": 0}
    assert set(folder.answers()) == {"line-1", "line-2", "line-3"}


# class and window


def test_a_batch_is_of_the_class_batch(folder: Folder) -> None:
    folder.write(prompt("one"), {"url": "/v1/completions", "body": prompt("two")}, prompt("three", priority="high"))
    folder.run()
    assert sorted((r.prompt, r.priority) for r in folder.worker.seen) == [
        ("one", "batch"), ("three", "high"), ("two", "batch"),
    ]  # fmt: skip


def test_a_batch_may_be_of_another_class(folder: Folder) -> None:
    folder.write(prompt("one"))
    assert folder.invoke("--priority", "normal").exit_code == 0
    assert [request.priority for request in folder.worker.seen] == ["normal"]


def worker_of(model: str, max_running: int) -> WorkerInfo:
    stats = WorkerStats(max_running=max_running)
    return WorkerInfo(id=model, model=model, host="h", pid=1, started_at=0.0, stats=stats)


def test_the_window_follows_from_what_live_workers_run() -> None:
    workers = [worker_of("a", 100), worker_of("a", 50), worker_of("b", 1000)]
    assert window_for(workers, {"a"}) == 300
    assert window_for(workers, {"a", "b"}) == 2300
    assert window_for(workers, {"c"}) == 256
    assert window_for([worker_of("a", 9000)], {"a"}) == 10_000


def test_without_a_window_no_more_jobs_wait_than_workers_run_twice(folder: Folder, redis_sync: redis.Redis) -> None:
    info = worker_of(MODEL, 2)
    run_sync(redis_sync, Cell().heartbeat(info.id, [], lease_ms=60_000, info=wire.encode_worker(info)))
    folder.worker.hold_after = 0
    folder.write(*[prompt(f"{number}", max_tokens=2) for number in range(12)])
    running = threading.Thread(target=folder.run)
    running.start()
    eventually(lambda: len(folder.worker.seen) >= 4)
    time.sleep(0.2)
    held = len(folder.worker.seen)
    folder.worker.hold_after = None
    folder.worker.loop.call_soon_threadsafe(folder.worker.go.set)
    running.join()
    assert held == 4
    assert len(folder.answers()) == 12
