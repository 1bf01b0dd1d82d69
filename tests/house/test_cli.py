"""The octavo command against a real service with two workers on the bundled model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import redis
from cli_driver import Cli, Up
from loading_server import loading_server
from typer.testing import CliRunner
from waiting import STALL_S, eventually

from octavo import Client
from octavo.cli.app import build_app
from octavo.queue import local
from octavo.service.server import EmbeddedServer


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "words",
    [
        ["gateway", "--api-keys", "acme:a-key,", "globex:sk-mysecret"],
        ["worker", "redis://:sk-mysecret@localhost"],
        ["jobs", "ls", "redis://:sk-mysecret@localhost"],
        ["doctor", "redis://:sk-mysecret@localhost", "more"],
    ],
)
def test_an_argument_too_many_is_not_repeated(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["octavo", *words])
    result = CliRunner().invoke(build_app(), words)
    assert result.exit_code == 2
    assert "more than there is a place for" in result.output
    assert "mysecret" not in result.output


def test_run_streams_the_answer_that_the_result_holds(cli: Cli) -> None:
    text = cli("run", "ROMEO:", "--seed", "7", "--max-tokens", "24")
    result = cli.json("run", "ROMEO:", "--seed", "7", "--max-tokens", "24")
    assert result["status"] == "completed"
    assert text == result["sequences"][0]["text"] + "\n"
    assert len(result["sequences"][0]["token_ids"]) == 24


def test_run_chat_ends_with_the_end_of_turn(cli: Cli) -> None:
    result = cli.json("run", "Who art thou?", "--system", "JULIET", "--seed", "1", "--max-tokens", "400")
    assert result["sequences"][0]["finish_reason"] == "stop"
    assert "<|" not in result["sequences"][0]["text"]


@pytest.mark.full
def test_run_searches_with_beams_and_says_how_far_it_is(cli: Cli) -> None:
    text = cli("run", "ROMEO:", "--beams", "4", "--max-tokens", "200")
    (job,) = cli.json("jobs", "ls", "--limit", "1")["jobs"]
    events = [json.loads(line) for line in cli("jobs", "tail", job["id"], "--json").splitlines()]
    assert "".join("".join(event["chunk"]["texts"]) for event in events if event["chunk"]) + "\n" == text
    process = cli.start("run", "JULIET:", "--beams", "64", "--max-tokens", "1000")
    job_id = eventually(lambda: next((j["id"] for j in cli.json("jobs", "ls", "--status", "running")["jobs"]), None))
    follower = cli.start("jobs", "tail", job_id, "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["progress"]["tokens"] > 0
    cli("jobs", "cancel", job_id)
    for ending in (process, follower):
        ending.communicate(timeout=STALL_S)
        assert ending.returncode == 1


def test_run_shows_several_answers_one_after_the_other(cli: Cli) -> None:
    text = cli("run", "ROMEO:", "--n", "2", "--seed", "1", "--max-tokens", "8")
    assert text.index("--- 0\n") < text.index("--- 1\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "x", "--model", "nosuch"), 1, "known models: demo"),
        (("run", "x", "--temperature", "9"), 2, "temperature must be at most 2"),
        (("run", ""), 2, "error: prompt is empty"),
        (("jobs", "show", "nonsense"), 2, "not a job id"),
        (("jobs", "ls", "--after", "zz"), 2, "not a job id"),
        (("jobs", "ls", "--tenant", "a b"), 2, "tenant must match"),
        (("top", "--interval", "0"), 2, "must be at least 0.2"),
        (("worker", "--model", "/nowhere"), 2, "no folder /nowhere"),
        (("worker", "--max-running", "0"), 2, "--max-running must be greater than 0"),
        (("gateway", "--port", "99999"), 2, "--port must be at most 65535"),
        (("run", "x", "--redis-url", "nonsense"), 2, "no address of"),
        (("run", "x", "--redis-url", "redis://:secret@127.0.0.1:1"), 3, "octavo up"),
        (("nosuch",), 2, "No such command"),
    ],
)
def test_errors_say_what_to_do_next(cli: Cli, arguments: tuple[str, ...], code: int, words: str) -> None:
    said = cli(*arguments, code=code)
    assert words in said
    assert "Traceback" not in said
    assert "secret" not in said


def test_jobs_are_listed_shown_followed_from_any_offset_and_cancelled(cli: Cli) -> None:
    result = cli.json("run", "ROMEO:", "--seed", "3", "--max-tokens", "20")
    listed = cli.json("jobs", "ls", "--limit", "1")["jobs"]
    assert [job["id"] for job in listed] == [result["id"]]
    assert result["id"] in cli("jobs", "ls")
    assert cli.json("jobs", "show", result["id"])["tokens"] == 20
    events = [json.loads(line) for line in cli("jobs", "tail", result["id"], "--after", "8", "--json").splitlines()]
    tokens = [token for event in events if event["chunk"] for token in event["chunk"]["token_ids"]]
    assert tokens == result["sequences"][0]["token_ids"][8:]
    assert events[-1]["end"]["status"] == "completed"
    assert cli.json("jobs", "cancel", result["id"])["status"] == "completed"


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def terminate(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


def read_no_more(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("end", "code"), [(interrupt, 130), (terminate, 143), (read_no_more, 1)])
def test_run_cancels_its_job_when_it_is_ended(
    cli: Cli, end: Callable[[subprocess.Popen[str]], None], code: int
) -> None:
    process = cli.start("run", "ROMEO:", "--max-tokens", "1000")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1)
    end(process)
    assert process.wait(STALL_S) == code
    assert "Traceback" not in process.stderr.read()
    job_id = cli.json("jobs", "ls", "--limit", "1")["jobs"][0]["id"]
    eventually(lambda: cli.json("jobs", "show", job_id)["status"] == "cancelled")


def test_up_has_a_secret_with_which_clients_sign(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for its user alone, and the same at the next start."""
    secret = up.cli.state_dir / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("OCTAVO_STATE_DIR", str(up.cli.state_dir))
    for name in ("REDIS_URL", "OCTAVO_REDIS_URL", "OCTAVO_SECRET", "OCTAVO_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    before = secret.read_text()
    assert local.secret_file() == secret
    assert secret.read_text() == before
    with Client() as client:
        job = client.submit("ROMEO:", model="demo", max_tokens=4)
        url = f"http://127.0.0.1:{up.port}/v1/jobs/{job.id}/log"
        job.result()
        assert httpx.get(url, params={"token": job.read_token()}, timeout=STALL_S).status_code == 200
        assert httpx.get(url, params={"token": "x"}, timeout=STALL_S).status_code == 401
    assert sorted(path.name for path in up.cli.state_dir.glob("secret*")) == ["secret"]


def test_run_outlives_its_terminal_under_nohup(cli: Cli) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = cli.start("run", "ROMEO:", "--max-tokens", "200", preexec_fn=ignore)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=STALL_S)
    assert process.returncode == 0


def test_top_and_workers_count_what_the_workers_do(cli: Cli) -> None:
    workers = cli.json("workers")["workers"]
    snapshot = cli.json("top", "--once", "--interval", "0.2")
    assert sorted(load["id"] for load in snapshot["workers"]) == sorted(worker["id"] for worker in workers)
    assert len(workers) == 2
    assert snapshot["queued"] == {"demo": 0}
    assert {load["kv_dtype"] for load in snapshot["workers"]} == {"bfloat16"}
    assert "2 workers" in cli("top", "--once", "--interval", "0.2")
    assert "no live worker" in cli("workers", "--host", "elsewhere", code=1)


def test_top_shows_the_blocks_of_each_worker(cli: Cli) -> None:
    cli("run", "ROMEO:", "--max-tokens", "40")
    (first, second) = cli.json("top", "--once", "--memory", "--interval", "0.2")["memory"]
    assert first["blocks"]["cached"] + second["blocks"]["cached"] > 0
    (only,) = cli.json("top", "--once", "--memory", "--worker", first["worker"], "--interval", "0.2")["memory"]
    assert (only["worker"], len(only["cells"])) == (first["worker"], min(512, only["blocks"]["total"]))
    shown = cli("top", "--once", "--memory", "--interval", "0.2")
    assert shown.count("preempted: nothing") == 2
    assert f"{only['blocks']['total']:,} blocks" in shown


def test_a_prefix_is_pinned_listed_and_dropped(cli: Cli, tmp_path: Path) -> None:
    system = "Thou art a helpful servant of the house of Capulet, and speakest only in rhymes of two lines each."
    file = tmp_path / "system.txt"
    file.write_text(system)
    pinned = cli.json("prefix", "pin", "servant", "--file", str(file))
    assert [outcome["state"] for outcome in pinned["workers"].values()] == ["pinned", "pinned"]
    tokens = {outcome["tokens"] for outcome in pinned["workers"].values()}
    result = cli.json("run", "Who art thou?", "--system", system, "--max-tokens", "2")
    assert tokens == {min(tokens)}
    assert result["usage"]["cached_tokens"] >= min(tokens) > 0
    assert cli.json("jobs", "show", result["id"])["usage"] == result["usage"]
    (listed,) = cli.json("prefix", "ls")["prefixes"]
    assert listed["pin"]["system"] == system
    assert "servant" in cli("prefix", "ls")
    assert "context length is 1024" in cli("prefix", "pin", "huge", "--tokens", ",".join(["7"] * 2000), code=1)
    cli("prefix", "drop", "huge")
    cli("prefix", "drop", "servant")
    assert "octavo prefix ls" in cli("prefix", "drop", "servant", code=1)
    assert "exactly one" in cli("prefix", "pin", "servant", code=2)
    assert cli("prefix", "ls") == "no prefix is pinned\n"


def test_doctor_finds_nothing_to_repair_here(cli: Cli) -> None:
    findings = {finding["name"]: finding for finding in cli.json("doctor")["findings"]}
    assert {"python", "torch", "gpu", "kernels", "redis", "model", "disk"} <= findings.keys()
    assert findings["kernels"]["state"] == "ok"
    assert "in use" in findings["kernels"]["found"]
    assert findings["model"]["found"].endswith("KV cache in bfloat16")


def diagnose(url: str, code: int = 0) -> dict[str, dict[str, str]]:
    """Doctor's findings at `url`, by name: here, because a process of its own would import torch each time."""
    result = CliRunner().invoke(build_app(), ["doctor", "--json", "--redis-url", url])
    assert result.exit_code == code, result.output
    assert "secret" not in result.output
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_doctor_names_the_next_step_when_there_is_no_server() -> None:
    found = diagnose("redis://:secret@127.0.0.1:1", code=1)["redis"]
    assert found["state"] == "error"
    assert "octavo up" in found["next_step"]


@pytest.mark.parametrize(("built_for", "said"), [("AMD", ["builds for AMD, untested on a card"]), ("NVIDIA", [])])
def test_doctor_tells_what_a_build_for_amd_is_worth(
    built_for: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "octavo_kernels._cuda", SimpleNamespace(built_for=built_for))
    result = CliRunner().invoke(build_app(), ["doctor", "--json", "--redis-url", "redis://127.0.0.1:1"])
    findings = [finding for finding in json.loads(result.stdout)["findings"] if finding["name"] == "kernels"]
    assert findings[0]["state"] == "ok"
    assert [finding["found"] for finding in findings[1:]] == said
    assert all(finding["state"] == "warning" for finding in findings[1:])


def test_doctor_asks_for_patience_while_the_server_loads(tmp_path: Path) -> None:
    with loading_server(tmp_path) as url:
        found = diagnose(url)["redis"]
    assert found["state"] == "warning"
    assert "still loading" in found["found"]


def test_doctor_tells_whether_the_server_keeps_jobs(tmp_path: Path) -> None:
    with EmbeddedServer(data_dir=tmp_path) as server, redis.Redis.from_url(server.url) as connection:
        assert diagnose(server.url)["safety"]["state"] == "ok"
        connection.config_set("maxmemory-policy", "allkeys-lru")
        assert diagnose(server.url)["safety"]["next_step"] == "set maxmemory-policy noeviction"
        connection.config_set("appendonly", "no")
        assert diagnose(server.url)["safety"]["next_step"] == "set appendonly yes"


def test_batch_answers_both_kinds_of_lines_and_reports_bad_ones(cli: Cli, tmp_path: Path) -> None:
    chat = {"model": "demo", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hail!"}]}]}
    lines = [
        {"prompt": "ROMEO:", "max_tokens": 8, "seed": 1},
        {
            "custom_id": "c",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**chat, "max_completion_tokens": 8},
        },
        {
            "custom_id": "d",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "demo", "prompt": "A", "n": 2},
        },
        {"custom_id": "bad", "prompt": "x", "temperature": 99},
        {"custom_id": "unknown", "prompt": "x", "colour": "red"},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join([*map(json.dumps, lines), "not json", ""]))
    summary = cli.json("batch", "run", str(source), str(target), code=1)
    assert summary == {"lines": 6, "skipped": 0, "failed": 3}
    answers = {answer["custom_id"]: answer for answer in read_jsonl(target)}
    assert answers.keys() == {"line-1", "c", "d", "bad", "unknown", "line-6"}
    assert answers["line-1"]["response"]["body"]["usage"]["completion_tokens"] == 8
    assert answers["c"]["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert [choice["index"] for choice in answers["d"]["response"]["body"]["choices"]] == [0, 1]
    assert answers["bad"]["response"]["status_code"] == 400
    assert answers["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert "colour" in json.dumps(answers["unknown"]["response"]["body"])


@pytest.mark.full
def test_a_batch_killed_in_the_middle_goes_on_and_generates_nothing_twice(cli: Cli, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"custom_id": f"n{i}", "prompt": f"Line {i}", "max_tokens": 40, "ignore_eos": True} for i in range(60)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("batch", "run", str(source), str(target), "--window", "6", "--tenant", "batch-test")
    process = cli.start(*command)
    eventually(lambda: target.exists() and len(target.read_text().splitlines()) >= 8)
    process.kill()
    process.communicate()
    before = {answer["custom_id"]: answer for answer in map(json.loads, target.read_text().splitlines()[:8])}
    with target.open("a") as output:
        output.write('{"id": "batch_req_x", "custom_id": "n59", "respo')  # a torn line, as a crash leaves it
    cli(*command)
    answers = read_jsonl(target)
    assert sorted(answer["custom_id"] for answer in answers) == sorted(line["custom_id"] for line in lines)
    assert all(answer["response"]["body"]["usage"]["completion_tokens"] == 40 for answer in answers)
    assert before.items() <= {answer["custom_id"]: answer for answer in answers}.items()
    assert len(cli.json("jobs", "ls", "--tenant", "batch-test", "--limit", "1000")["jobs"]) == 60
    assert cli.json(*command) == {"lines": 60, "skipped": 60, "failed": 0}


def test_a_repeated_custom_id_is_refused_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"custom_id": "a", "prompt": "x"}\n{"custom_id": "a", "prompt": "y"}\n')
    assert "'a' stands on several lines" in cli("batch", "run", str(source), str(target), code=2)
    assert not target.exists()


def test_up_refuses_a_second_instance(cli: Cli) -> None:
    assert "already up" in cli("up", code=1)


@pytest.mark.full
def test_up_starts_a_killed_worker_again(cli: Cli) -> None:
    victim = cli.json("workers")["workers"][0]
    os.kill(victim["pid"], signal.SIGKILL)
    eventually(lambda: victim["id"] not in [worker["id"] for worker in cli.json("workers")["workers"]])
    eventually(lambda: len(cli.json("workers")["workers"]) == 2)
