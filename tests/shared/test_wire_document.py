"""docs/wire.md says what the code does: its frames are recorded ones, its tables name what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from octavo.queue import wire
from octavo.queue.keys import JobHash, Keys
from octavo.terms.limits import Retention
from octavo.terms.messages import JobStatus

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
RECORDED = {
    (kind, frame): value
    for kind, frame, value in json.loads((ROOT / "tests/shared/data/frames-0.1.json").read_text(encoding="utf-8"))
}
MET = {"entry", "result", "error", "usage", "metadata", "progress", "live"}


def frame_of(block: str) -> bytes:
    """The bytes of an example: what stands before two spaces in each line."""
    return bytes.fromhex("".join(line.partition("  ")[0] for line in block.splitlines()))


EXAMPLES = [(kind, frame_of(block)) for kind, block in re.findall(r"```hex (\w+)\n(.*?)```", TEXT, flags=re.DOTALL)]


def test_every_kind_that_a_reader_meets_has_an_example() -> None:
    assert {kind for kind, _ in EXAMPLES} == MET
    assert TEXT.count("```hex") == len(EXAMPLES) > len(MET)


@pytest.mark.parametrize(("kind", "frame"), EXAMPLES)
def test_an_example_is_a_recorded_frame_and_decodes(kind: str, frame: bytes) -> None:
    assert (kind, frame.hex()) in RECORDED
    assert getattr(wire, f"decode_{kind}")(frame)


@pytest.mark.parametrize(("kind", "block"), re.findall(r"```hex (\w+)\n(.*?)```", TEXT, flags=re.DOTALL))
def test_the_words_beside_an_example_are_in_it(kind: str, block: str) -> None:
    frame = frame_of(block)
    for word in re.findall(r'"([^"\n]*)"', block):
        assert word.encode() in frame


def test_the_hash_is_documented() -> None:
    table = TEXT[TEXT.index("| field | holds") : TEXT.index("A status that is an end")]
    named = {
        name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1] if row else "")
    }
    of_submitters = {JobHash.REQUEST, JobHash.SEED, JobHash.IDEMPOTENCY_KEY}
    of_attempts = {JobHash.TRIES, JobHash.FIRST_TOKEN_MS}
    of_tenants = {JobHash.COST, JobHash.API_KEY, JobHash.NOTIFY}
    inner = {
        *of_submitters,
        *of_attempts,
        *of_tenants,
        JobHash.RETENTION,
        JobHash.ERASED,
    }  # the queue's, not a reader's
    assert named == {field.value for field in JobHash} - inner
    assert all(f"`{status.value}`" in table for status in JobStatus)


def test_keys_and_times_are_the_codes() -> None:
    keys = Keys()
    for name in (keys.job("<id>"), keys.stream("<id>"), keys.result("<id>")):
        assert f"`{name}`" in TEXT
    assert (Retention().stream_s, Retention().result_s) == (3600, 86400)  # an hour and a day
    assert (wire.VERSION, wire.MAX_BYTES, wire.MAX_DEPTH) == (1, 64 << 20, 12)
