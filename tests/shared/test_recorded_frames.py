"""Frames that earlier versions wrote into a Redis are read as they meant them, and written the same way."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack
import pytest

from octavo.queue import wire
from octavo.terms.errors import MalformedMessage
from octavo.terms.sampling import NEUTRAL

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
    decoded = json.loads(json.dumps(recorder.plain(getattr(wire, f"decode_{kind}")(bytes.fromhex(frame)))))
    assert known_then(decoded, value) == value


def known_then(decoded: Any, value: Any) -> Any:
    """Without the fields that the recorded value does not have, as its version did not know them. What was not written
    down, because it was the default, is now the model's to say."""
    if isinstance(value, dict):
        return {
            name: item if decoded[name] is None and NEUTRAL.get(name) == item else known_then(decoded[name], item)
            for name, item in value.items()
        }
    if isinstance(value, list) and len(value) == len(decoded):
        return [known_then(there, item) for there, item in zip(decoded, value, strict=True)]
    return decoded


def test_frames_are_written_as_they_were(recorder: ModuleType) -> None:
    """To the byte where frames are compared (requests under an idempotency key); maps in any order elsewhere."""
    recorded = [bytes.fromhex(frame) for _, frame, _ in RECORDED]
    contents = [msgpack.unpackb(frame, raw=True) for frame in recorded]
    for kind, frame, _ in recorder.made_here():
        assert frame in recorded if kind == "request" else msgpack.unpackb(frame, raw=True) in contents


def test_a_heartbeat_may_lack_figures_and_have_unknown_ones() -> None:
    fields = {"id": "w", "model": "m", "host": "h", "pid": 1, "started_at": 1.0, "stats": {"running": 2, "later": 1.5}}
    stats = wire.decode_worker(msgpack.packb([1, "worker", fields])).stats
    assert (stats.running, stats.waiting, stats.kv_dtype) == (2, 0, "")


@pytest.mark.parametrize("stats", [{"running": "2"}, {"running": True}, {"kv_dtype": 1}, [2]])
def test_a_heartbeat_with_a_figure_of_another_type_is_malformed(stats: Any) -> None:
    fields = {"id": "w", "model": "m", "host": "h", "pid": 1, "started_at": 1.0, "stats": stats}
    with pytest.raises(MalformedMessage):
        wire.decode_worker(msgpack.packb([1, "worker", fields]))
