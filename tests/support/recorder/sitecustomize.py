"""Records which modules a process runs. Python imports this at its start where PYTHONPATH names the folder.

`RECORDER_FOLDER` has a file `on` of one byte, which every process maps. While the byte is 1, the first entry into each
module of octavo's packages is written to the process's own file, `<pid>.jsonl`. Chores are left out: the clock starts
them, with a job or without one. A module that a chore has entered still counts when a job enters it.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGES = ("octavo", "octavo_gateway", "octavo_worker", "octavo_kernels")
CHORES = {
    "Agent.on_heartbeat": "the answer to a heartbeat",
    "Heartbeat._run": "a worker's leases",
    "Inbox.run": "questions about a worker's memory",
    "Membership.reap": "leases that ran out",
    "Membership.stay_known": "the model's registration",
    "Supervisor._watch": "an engine that hangs",
    "TokenizerDesk.run": "questions to the tokenizer",
    "reap_forever": "leases that ran out",
}


class Recorder:
    def __init__(self, folder: Path) -> None:
        with (folder / "on").open("r+b") as file:
            self._on = mmap.mmap(file.fileno(), 1)
        self._out = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self._names: dict[str, str | None] = {}
        self._seen: set[str] = set()
        self._write(sys.orig_argv)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profile function of each thread."""
        if not self._on[0]:
            return
        file = frame.f_code.co_filename
        if file not in self._names:
            self._names[file] = _module(file)
        name = self._names[file]
        if name is None or name in self._seen or frame.f_code.co_name == "<module>" or _is_chore(frame):
            return
        self._seen.add(name)
        self._write(name)

    def _write(self, line: Any) -> None:
        self._out.write(json.dumps(line) + "\n")


def _module(file: str) -> str | None:
    """`package/.../module.py` of a file in one of the packages, else None."""
    path = Path(file)
    starts = [index for index, part in enumerate(path.parts) if part in PACKAGES]
    if not starts or path.stem in ("__init__", "__main__"):
        return None
    return "/".join(path.parts[starts[-1] :])


def _is_chore(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_qualname in CHORES:
            return True
        frame = frame.f_back
    return False


if "RECORDER_FOLDER" in os.environ:
    recorder = Recorder(Path(os.environ["RECORDER_FOLDER"]))
    threading.setprofile(recorder)
    sys.setprofile(recorder)
