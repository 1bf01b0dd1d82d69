"""The commands of docs/streams.md follow one job in every dialect."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from cli_driver import Up
from waiting import STALL_S

DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = "127.0.0.1:8000"


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / document).read_text(), flags=re.DOTALL)


def run(up: Up, *command: str, **variables: str) -> str:
    words = [word.replace(ADDRESS, f"127.0.0.1:{up.port}") for word in command]
    done = subprocess.run(
        words, env=os.environ | variables, capture_output=True, text=True, timeout=STALL_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_one_job_in_every_dialect(up: Up) -> None:
    create, events, token, log, live, chat, resume = blocks("streams.md", "sh")
    of_job = {"ID": run(up, "sh", "-c", f'{create}\necho "$ID"').strip()}

    rest = [json.loads(line[6:]) for line in run(up, "sh", "-c", events, **of_job).splitlines() if line[:6] == "data: "]
    assert sum(len(event.get("token_ids", ())) for event in rest) == 20
    assert (rest[-1]["offset"], rest[-1]["status"]) == (40, "completed")

    links = json.loads(run(up, "sh", "-c", token, **of_job))["links"]
    with_token = run(up, "curl", "-sN", f"http://{ADDRESS}{links['stream']}&after=20")
    assert with_token == run(up, "sh", "-c", events, **of_job)

    head, _, body = run(up, "sh", "-c", log, **of_job).replace("\r", "").partition("\n\n")
    messages = json.loads(body)
    assert "stream-closed: true" in head.lower()
    assert [message["offset"] for message in messages] == [*range(1, 41), 40]
    text = "".join(event.get("text", "") for event in rest)
    assert "".join(message.get("text", "") for message in messages[20:]) == text

    data = [line.removeprefix("data:") for line in run(up, "sh", "-c", live, **of_job).splitlines() if "data:" in line]
    assert json.loads(data[0])[: len(messages) - 20] == messages[20:]
    assert json.loads(data[-1])["streamClosed"]

    parts = run(up, "sh", "-c", chat)
    assert parts.startswith('data: {"type":"start"')
    assert parts.rstrip().endswith("data: [DONE]")
    assert run(up, "sh", "-c", resume) == ""  # it has ended
