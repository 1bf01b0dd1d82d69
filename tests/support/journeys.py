"""One request through a whole service on the demo model, and the modules that it enters in each process.

`python tests/support/journeys.py` prints them in order, to bring `docs/architecture.md` up to date.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import httpx
import pytest
from cli_driver import Cli, start_up
from waiting import STALL_S

RECORDER = Path(__file__).parent / "recorder"
PROCESSES = {"octavo_gateway": "gateway", "octavo_worker": "agent", "octavo_worker.assembly.engine_process": "engine"}
BODY = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is love, and why does it take more than a block of tokens?"}],
    "max_tokens": 40,
    "temperature": 0.8,
    "seed": 7,
    "stream": True,
}


def record(folder: Path) -> dict[str, list[str]]:
    """Modules by process, in the order of their first entry between a new service's first request and the last event of
    its stream."""
    recordings = folder / "recordings"
    recordings.mkdir()
    switch = recordings / "on"
    switch.write_bytes(b"\0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(RECORDER))
        patch.setenv("RECORDER_FOLDER", str(recordings))
        patch.setenv("OCTAVO_DEVICE", "cpu")
        up = start_up(Cli(folder / "state"), workers=1)
    try:
        with switch.open("r+b", buffering=0) as file:
            file.write(b"\1")
            last = _last_line(f"http://127.0.0.1:{up.port}/v1/chat/completions")
            file.seek(0)
            file.write(b"\0")
    finally:
        up.stop()
    assert last == "data: [DONE]"
    return _by_process(recordings)


def _last_line(url: str) -> str:
    with httpx.stream("POST", url, json=BODY, timeout=STALL_S) as response:
        response.raise_for_status()
        return [line for line in response.iter_lines() if line][-1]


def _by_process(recordings: Path) -> dict[str, list[str]]:
    found = {}
    for path in recordings.glob("*.jsonl"):
        command, *modules = (json.loads(line) for line in path.read_text().splitlines())
        for program in PROCESSES.keys() & set(command):
            found[PROCESSES[program]] = modules
    return {process: found[process] for process in PROCESSES.values()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for process, modules in record(Path(name)).items():
            print(process, *modules, sep="\n    ")
