"""The command line as a newcomer meets it: its list, its help, its version, and what it says of wrong values."""

from __future__ import annotations

import io
import json
import re
import shutil
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from queue_client import known_queue
from rich.console import Console
from typer.testing import CliRunner
from waiting import STALL_S

import octavo
from octavo.cli import answers, doctor
from octavo.cli.answers import Answer, Screen
from octavo.cli.app import build_app
from octavo.cli.listed import LISTED
from octavo.queue.calls import run_sync
from octavo.service.ports import refusal

NARROW = {"COLUMNS": "80"}
HELP = [(name,) for name in LISTED if name not in ("jobs", "batch", "prefix", "bench")]
HELP += [("jobs", "ls"), ("jobs", "show"), ("batch", "run"), ("prefix", "pin"), ("bench", "replay")]


def invoke(*words: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), words, env={"REDIS_URL": None, **NARROW, **environment})
    return result.exit_code, result.output


def test_it_says_its_version() -> None:
    assert invoke("--version") == (0, f"octavo {version('octavo')}\n")


def test_the_list_imports_no_command_and_no_library_of_a_worker() -> None:
    program = "import sys; from octavo.cli.app import build_app; build_app()(['--help'], standalone_mode=False);"
    program += "print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=STALL_S, check=True)
    loaded = set(done.stderr.split())
    commands = {listed.module for listed in LISTED.values()}
    assert loaded.isdisjoint({"redis", "fastapi", "torch", "msgpack", "asyncio", "octavo.client", *commands} - {""})
    assert all(name in done.stdout for name in LISTED)


def test_the_documentation_shows_the_list_as_80_columns_have_it() -> None:
    text = (Path(__file__).parents[2] / "docs/install.md").read_text()
    head = "╭─ Commands"  # what is above it is Typer's own
    documented, shown = text.partition(head)[2].partition("```")[0], invoke()[1].partition(head)[2]
    assert shown.splitlines() == documented.splitlines(), "rewrite it: COLUMNS=80 octavo"


@pytest.mark.parametrize("name", LISTED)
def test_a_command_is_listed_with_the_beginning_of_its_help(name: str) -> None:
    code, said = invoke(name, "--help", COLUMNS="200")
    assert code == 0
    words = re.sub(r"[^\w]+", " ", said)
    assert re.sub(r"[^\w]+", " ", LISTED[name].line).strip() in words


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_has_room_in_80_columns(words: tuple[str, ...]) -> None:
    code, said = invoke(*words, "--help")
    assert code == 0
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said
    assert "\\" not in said


def test_a_package_that_is_missing_is_named_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.cli.app.find_spec", lambda name: None)
    monkeypatch.setattr("octavo.cli.app.sys", SimpleNamespace(modules={}))
    assert "not installed: pip install 'octavo[gateway]'" in invoke("--help")[1]


def test_a_name_that_is_nearly_right_is_no_command() -> None:
    code, said = invoke("job")
    assert code == 2
    assert "No such command 'job'" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("jobs", "ls", "--limit", "0"), "it must be at least 1"),
        (("jobs", "cancel", "x"), "is not a job id"),
        (("run", "x", "--redis-url", "http://localhost"), "no address of a Redis server"),
        (("batch", "run", __file__, "out", "--tenant", "a b"), "tenant must match"),
        (("up", "--workers", "-1"), "it must be at least 0"),
    ],
)
def test_a_wrong_value_is_wrong_usage_in_words_of_ours(words: tuple[str, ...], said: str) -> None:
    code, shown = invoke(*words)
    assert code == 2
    assert said in re.sub(r"[\s│]+", " ", shown)
    assert "Input should" not in shown


def test_a_used_port_names_the_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = invoke("gateway", "--port", str(port), "--redis-url", "redis://127.0.0.1:1")
        assert code == 1
        assert f"cannot listen on 127.0.0.1:{port}" in said
        assert "--port" in said
        assert "--port" in (refusal("127.0.0.1", port) or "")
    assert refusal("127.0.0.1", port) is None
    assert "--host" in (refusal("203.0.113.7", 0) or "")


def test_a_request_is_shown_while_it_is_kept(redis_url: str, redis_sync: redis.Redis) -> None:
    queue = known_queue(redis_sync)
    job_id = queue.submit()
    words = ("jobs", "show", job_id, "--request", "--redis-url", redis_url)
    shown = json.loads(invoke(*words, "--json")[1])
    assert {"model", "prompt", "sampling"} <= shown.keys()
    assert shown["prompt"] is not None
    assert "prompt" in invoke(*words)[1]
    assert "prompt" not in json.loads(invoke("jobs", "show", job_id, "--json", "--redis-url", redis_url)[1])
    run_sync(redis_sync, queue.cell.cancel(job_id))
    result = CliRunner().invoke(build_app(), words)
    assert "its request was kept until then" in str(result.exception)


def usage(free: int) -> Any:
    return lambda folder: shutil._ntuple_diskusage(10**12, 10**12 - free, free)


@pytest.mark.parametrize(
    ("free", "state", "said"),
    [(10**6, "error", "is full"), (10**9, "warning", "1.0 GB free"), (10**11, "ok", "100.0 GB free")],
)
def test_doctor_looks_at_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, state: str, said: str
) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", usage(free))
    found = doctor._disk(tmp_path)
    assert found.state == state
    assert said in found.found
    assert str(tmp_path) in found.found


def test_doctor_tries_to_write_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    found = doctor._disk(tmp_path / "not" / "there")
    assert (found.state, "No space left on device" in found.found) == ("error", True)
    assert "--data-dir" in found.next_step


def test_doctor_says_that_the_server_cannot_write() -> None:
    failing = {"aof_enabled": 1, "aof_last_write_status": "err", "maxmemory_policy": "noeviction"}
    assert doctor._safety(failing).state == "error"
    assert doctor._safety(failing | {"aof_last_write_status": "ok"}).state == "ok"


@pytest.mark.parametrize(("width", "height", "side_by_side"), [(80, 24, 2), (120, 40, 3), (200, 50, 3), (40, 24, 1)])
def test_the_panels_of_the_demo_take_the_terminal_s_width(
    monkeypatch: pytest.MonkeyPatch, width: int, height: int, side_by_side: int
) -> None:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    monkeypatch.setattr(answers, "out", console)
    job: Any = SimpleNamespace(id="g00_x")
    told = [Answer(job, f"SPEAKER {n}:\n", n, text="words of some length " * 40) for n in range(3)]
    screen = Screen(told)
    screen.say("SIGKILL")
    console.print(screen._panels())
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0].count("╭") == side_by_side
    assert len(lines[0].rstrip()) == width
    assert len(lines) < height
    assert all(f"SPEAKER {n}" in "".join(lines) for n in range(3))


def test_the_package_lists_what_it_has() -> None:
    assert dir(octavo) == sorted(octavo.__all__)
    assert all(hasattr(octavo, name) for name in dir(octavo))
