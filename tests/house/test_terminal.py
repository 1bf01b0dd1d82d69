"""Texts of models, clients and servers are shown by a terminal, never obeyed; redirected, they are exact."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pty
import tempfile
from typing import Any

import pytest
import scripted_worker
from cli_driver import OCTAVO
from forked import Forked, light_server
from rich.console import Group
from rich.panel import Panel
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S

from octavo import AsyncClient, cli
from octavo.service.console import QuotingConsole
from octavo.terms.errors import OctavoError

HOSTILE = "a\tb\x1b]0;owned\x07\x1b[31m\x9b2J\x08\x7f\rc\n"
SHOWN = "a\tb\\x1b]0;owned\\x07\\x1b[31m\\x9b2J\\x08\\x7f\\rc\n"
SAID = HOSTILE * 2


def on_terminal(*arguments: str) -> str:
    """Output on a terminal that is standard output."""
    ours, theirs = pty.openpty()
    got = b""
    process = Forked(light_server().address, [str(OCTAVO), *arguments], out=theirs)
    os.close(theirs)
    with contextlib.suppress(OSError):  # how Linux tells the end
        while block := os.read(ours, 4096):
            got += block
    assert process.wait(STALL_S) == 0
    os.close(ours)
    return got.decode().replace("\r\n", "\n")


def redirected(*arguments: str) -> str:
    with tempfile.TemporaryFile() as out:
        process = Forked(light_server().address, [str(OCTAVO), *arguments], out=out.fileno())
        assert process.wait(STALL_S) == 0
        out.seek(0)
        return out.read().decode()


async def test_texts_of_a_model(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_worker, "text_of", lambda sequence, position: HOSTILE)
    run = ("run", "x", "--model", MODEL, "--max-tokens", "2", "--redis-url", redis_url)

    def compare(job_id: str) -> None:
        for command in (run, ("jobs", "tail", job_id, "--redis-url", redis_url)):
            assert on_terminal(*command) == SHOWN * 2 + "\n"
            assert redirected(*command) == SAID + "\n"
        assert on_terminal(*run, "--n", "2") == f"--- 0\n{SHOWN * 2}\n--- 1\n{SHOWN * 2}\n"
        line = on_terminal(*run, "--json")
        assert json.loads(line)["sequences"][0]["text"] == SAID
        assert line.rstrip("\n").isprintable()

    async with ScriptedWorker(redis_url), AsyncClient(redis_url) as client:
        job = await client.submit("x", model=MODEL, max_tokens=2)
        await job.result(timeout=STALL_S)
        await asyncio.to_thread(compare, job.id)


def renderables() -> Any:
    """As the commands make them: tables, panels, progress, messages."""
    table = Table("id", "model", box=None)
    table.add_row(HOSTILE, Text(HOSTILE))
    progress = Progress(TextColumn(HOSTILE))
    progress.add_task(HOSTILE)
    return Group(table, Panel(Text(HOSTILE), title="t"), progress.get_renderable(), HOSTILE)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_tables_panels_and_messages(is_terminal: bool) -> None:
    file = io.StringIO()
    console = QuotingConsole(file=file, force_terminal=is_terminal, color_system=None, width=200)
    console.print(renderables())
    text = file.getvalue()
    assert ("\x1b[31m" in text) != is_terminal
    assert ("\\x1b]0;" in text) == is_terminal
    if is_terminal:
        assert text.replace("\n", "").replace("\t", "").isprintable()


def test_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OctavoError(HOSTILE)

    monkeypatch.setattr("octavo.cli.app.build_app", lambda: fail)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == f"error: {SHOWN}\n"
