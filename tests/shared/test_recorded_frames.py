"""What earlier versions wrote into a Redis is read as they meant it, and written the same way."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import pytest

from octavo import wire

DATA = Path(__file__).parent / "data"
RECORDED = [row for file in sorted(DATA.glob("frames-*.json")) for row in json.loads(file.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def recorder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_frames", DATA / "record_frames.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("kind", "frame", "value"), RECORDED)
def test_a_recorded_frame_says_the_same(recorder: ModuleType, kind: str, frame: str, value: Any) -> None:
    decoded = getattr(wire, f"decode_{kind}")(bytes.fromhex(frame))
    assert json.loads(json.dumps(recorder.plain(decoded))) == value


def test_frames_are_written_as_they_were(recorder: ModuleType) -> None:
    """To the byte where frames are compared (requests under an idempotency key); maps in any order elsewhere."""
    recorded = [bytes.fromhex(frame) for _, frame, _ in RECORDED]
    contents = [msgpack.unpackb(frame, raw=True) for frame in recorded]
    for kind, frame, _ in recorder.made_here():
        assert frame in recorded if kind == "request" else msgpack.unpackb(frame, raw=True) in contents
