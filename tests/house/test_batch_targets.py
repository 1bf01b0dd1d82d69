"""Targets of `octavo batch`: files that one run has for itself, pipes and devices."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.dialects.openai.batch.answers import encode
from octavo.service.batches.files import BatchFileError
from octavo.service.batches.lines import BatchLine, parse_lines
from octavo.service.batches.target import open_target
from octavo.service.server import die_with_parent

LINES = parse_lines(['{"prompt": "one"}', '{"prompt": "two"}'], "toy")
HOLD = """
import sys
from pathlib import Path
from octavo.service.batches.target import open_target
with open_target(Path(sys.argv[1]), []) as (output, done):
    print("open", flush=True)
    sys.stdin.read()
"""


def answer(line: BatchLine, *, failed: bool = False) -> str:
    response = None if failed else {"body": {}}
    error = {"code": "x"} if failed else None
    return encode({"id": line.id, "custom_id": line.custom_id, "response": response, "error": error})


@contextmanager
def another_run(target: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def refused(target: Path) -> str:
    with pytest.raises(BatchFileError) as raised, open_target(target, LINES):
        pass
    return str(raised.value)


@pytest.mark.parametrize("begun", [False, True])
def test_a_second_run_is_refused_while_the_first_lives(tmp_path: Path, begun: bool) -> None:
    """Also where the first has replaced the file, as failures leave it. However it ends, the next one goes on."""
    target, link = tmp_path / "out.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(target)
    if begun:
        target.write_text(answer(LINES[0]) + answer(LINES[1], failed=True))
    with another_run(link) as first:
        before = target.read_bytes()
        for name in (target, link):
            assert "another run writes to" in refused(name)
        assert target.read_bytes() == before
        first.send_signal(signal.SIGKILL)
        first.wait()
        with open_target(target, LINES) as (_, done):
            assert done == ({LINES[0].id} if begun else set())
            assert "another run writes to" in refused(target)
    assert link.is_symlink()


def test_a_run_that_opened_a_file_before_it_was_replaced_writes_to_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text(answer(LINES[0], failed=True))
    lock, others = fcntl_flock(), iter([True])

    def late(descriptor: int, how: int) -> None:
        if next(others, False):  # meanwhile another run has begun and ended
            with open_target(target, LINES) as (output, _):
                output.write(answer(LINES[1]))
        lock(descriptor, how)

    monkeypatch.setattr("octavo.service.batches.target.fcntl.flock", late)
    with open_target(target, LINES) as (output, done):
        assert done == {LINES[1].id}
        output.write(answer(LINES[0]))
    assert target.read_text() == answer(LINES[1]) + answer(LINES[0])


def fcntl_flock() -> Any:
    import fcntl

    return fcntl.flock


def test_a_file_keeps_its_rights_when_answers_leave_it(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text(answer(LINES[0]) + answer(LINES[1], failed=True))
    target.chmod(0o640)
    (tmp_path / "out.jsonl.part").write_text("left by a run that was killed")
    with open_target(target, LINES) as (output, done):
        assert done == {LINES[0].id}
        output.write(answer(LINES[1]))
    assert target.read_text() == answer(LINES[0]) + answer(LINES[1])
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_answers_to_lines_that_are_not_there_do_not_count(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("".join(map(answer, LINES)))
    with open_target(target, LINES[:1]) as (_, done):
        assert done == {LINES[0].id}


@pytest.mark.parametrize("reader_first", [False, True])
def test_a_pipe_gets_the_answers(tmp_path: Path, reader_first: bool, capfd: pytest.CaptureFixture[str]) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    if reader_first:
        descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    else:
        threading.Timer(0.2, reader.start).start()
    with open_target(pipe, LINES) as (output, done):
        assert done == set()
        output.write(answer(LINES[0]))
        output.flush()
        assert "another run writes to" in refused(pipe)
    if reader_first:
        read.append(os.read(descriptor, 9999).decode())
        os.close(descriptor)
    else:
        reader.join()
    assert read == [answer(LINES[0])]
    assert ("waiting for a reader" in capfd.readouterr().err) == (not reader_first)


def test_devices_get_the_answers_of_any_number_of_runs() -> None:
    with open_target(Path("/dev/null"), LINES) as (output, done), open_target(Path("/dev/null"), LINES):
        output.write(answer(LINES[0]))
        assert done == set()


def test_what_cannot_take_lines_is_refused_at_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert "is a socket" in refused(tmp_path / "socket")
    with pytest.raises(IsADirectoryError), open_target(tmp_path, LINES):
        pass
    with pytest.raises(FileNotFoundError), open_target(tmp_path / "missing" / "out.jsonl", LINES):
        pass


@pytest.mark.parametrize("how", ["a pipe", "a file"])
def test_the_command_writes_to_its_own_output(tmp_path: Path, redis_url: str, how: str) -> None:
    """A line that is no request is answered without a worker."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("no request\n")
    command = [
        sys.executable,
        "-c",
        "from octavo.cli import main; main()",
        "batch",
        "run",
        str(source),
        "/dev/stdout",
        "--redis-url",
        redis_url,
    ]
    if how == "a pipe":
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        written = done.stdout
    else:
        with out.open("w") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
        written = out.read_text()
    assert done.returncode == 1, done.stderr
    (line,) = [json.loads(text) for text in written.splitlines()]
    assert (line["custom_id"], line["response"]["status_code"]) == ("line-1", 400)
    assert "1 failed" in done.stderr
