"""Logs: one readable line an event on a terminal, one form of JSON from every process elsewhere."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from cli_driver import Cli, start_up
from rich.console import Console
from waiting import STALL_S

from octavo.service.service_log import ServiceLog
from octavo.terms.logs import configure_logging
from octavo_gateway.logs import log_config

HOSTILE = "job \x1b]0;owned\x07 \x9b31m\r\nforged"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def tell(process: str, log_format: Any) -> None:
    """An event and a failure in a process of this kind."""
    if process == "gateway":
        logging.config.dictConfig(log_config("info", log_format))
    else:
        configure_logging("octavo_worker", "info", log_format)
    logging.getLogger("octavo_worker.x").info("serving %s", "demo")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("octavo_worker.x").exception(HOSTILE)


@pytest.mark.parametrize("process", ["gateway", "worker"])
@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_every_process_writes_the_same_json(process: str, log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    tell(process, log_format)
    lines = capsys.readouterr().err.splitlines()
    first, second = map(json.loads, lines)
    assert set(first) == {"ts", "level", "logger", "event"}
    assert (first["level"], first["event"]) == ("info", "serving demo")
    assert datetime.fromisoformat(first["ts"]).tzinfo is not None
    assert second["event"] == HOSTILE
    assert "ValueError" in second["exception"]
    assert "".join(lines).isprintable()


@pytest.mark.parametrize("process", ["gateway", "worker"])
def test_text_shows_what_a_terminal_would_obey(process: str, capsys: pytest.CaptureFixture[str]) -> None:
    tell(process, "text")
    first, second, *traceback = capsys.readouterr().err.split("\n")
    assert first.endswith(" serving demo")
    assert "ERROR: job" in second
    assert second.endswith("forged")
    assert "ValueError" in "".join(traceback)
    assert "".join([first, second, *traceback]).isprintable()


def service_log(*, terminal: bool) -> tuple[ServiceLog, io.StringIO]:
    stream = io.StringIO()
    return ServiceLog(Console(file=stream, force_terminal=terminal, color_system=None, width=80)), stream


def test_a_service_on_a_terminal_shows_short_lines() -> None:
    log, stream = service_log(terminal=True)
    assert log.format == "text"
    log.say("starting [2] workers")
    log.child("worker-1", "11:02:03 job \x1b[2J done")
    assert stream.getvalue().splitlines() == ["starting [2] workers", "worker-1 11:02:03 job \\x1b[2J done"]


def test_a_service_elsewhere_writes_json_whatever_its_children_say() -> None:
    log, stream = service_log(terminal=False)
    assert log.format == "json"
    log.say("octavo is up :smile: [bold]")
    log.child("gateway", '{"ts": "2026-01-01T00:00:00.000+00:00", "level": "info", "logger": "l", "event": "e"}')
    log.child("worker-1", "Traceback (most recent call last): 100%")
    log.child("worker-1", "[1, 2]")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["process"] for event in events] == ["up", "gateway", "worker-1", "worker-1"]
    assert [event["event"] for event in events] == [
        "octavo is up :smile: [bold]", "e", "Traceback (most recent call last): 100%", "[1, 2]"
    ]  # fmt: skip
    assert all({"ts", "level", "logger", "event", "process"} == set(event) for event in events)


@pytest.mark.full
def test_up_redirected_is_json_from_its_first_line_to_its_last(tmp_path: Any) -> None:
    running = start_up(Cli(tmp_path), workers=1)
    running.cli("run", "ROMEO:", "--max-tokens", "2")
    running.process.terminate()
    _, said = running.process.communicate(timeout=STALL_S)
    events = [json.loads(line) for line in said.splitlines()]
    assert {"up", "gateway", "worker-1"} == {event["process"] for event in events}
    assert all(datetime.fromisoformat(event["ts"]).tzinfo is not None for event in events)
