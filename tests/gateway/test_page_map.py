"""The page's script, given a worker's map: a part for each kind of memory. In Node, without a browser."""

from __future__ import annotations

import json
import subprocess
from array import array
from pathlib import Path
from typing import Any

import pytest

import octavo_gateway
from octavo.terms.messages import WorkerMap
from octavo_gateway.live.block_map import BlockMap

pytestmark = pytest.mark.node

SCRIPT = Path(octavo_gateway.__file__).parent / "page/static/live/blocks.js"
PROGRAM = """
import { readFileSync } from "node:fs";
const { Blocks } = await import(process.argv[1]);
const blocks = new Blocks();
const shown = JSON.parse(readFileSync(0, "utf8")).map((news) => {
  for (const region of blocks.regions) region.redraw = false, region.changed = [];
  blocks.take(news);
  return blocks.regions.map((region) => ({
    all: region.all, redraw: region.redraw, changed: region.changed, counts: region.counts(), extent: region.extent(),
    words: [...region.cells.keys()].map((block) => region.describe(block)),
  }));
});
console.log(JSON.stringify(shown));
"""


def shown(maps: list[WorkerMap]) -> list[list[dict[str, Any]]]:
    """The kinds of memory after each map, as changes of the one before."""
    known = BlockMap()
    news = json.dumps([known.take(found) for found in maps])
    told = subprocess.run(
        ["node", "--input-type=module", "-e", PROGRAM, SCRIPT.as_uri()],
        input=news, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def a_map(cells: list[int], device: int, host: int, **beside: tuple[int, int]) -> WorkerMap:
    codes, lengths = array("H", cells), array("I", [1] * len(cells))
    return WorkerMap("w", 1.0, 16, device, host, ("j", "k"), codes.tobytes(), lengths.tobytes(), **beside)


def test_windows_and_slots_are_beside_the_blocks() -> None:
    """A run of changes goes on from one kind to the next."""
    before = a_map([16, 17, 0, 16, 0, 0, 0, 0, 0x4001], 3, 1, windows=(2, 1), states=(1, 1))
    after = a_map([16, 17, 0, 17, 17, 17, 17, 0x8010, 0x4001], 3, 1, windows=(2, 1), states=(1, 1))
    first, (blocks, windows, slots) = shown([before, after])
    assert [kind["all"] for kind in first] == ["KV blocks", "blocks of layers with a window", "slots for states"]
    assert all(kind["redraw"] for kind in first)
    assert first[0]["words"] == ["block 0, job j", "block 1, job k", "block 2, free", "host block 0, job j, swapped"]
    assert (blocks["changed"], windows["changed"], slots["changed"]) == ([3, 4], [0, 3], [0, 1])
    assert windows["words"] == ["window block 0, job k", "window block 1, job k", "host window block 0, job k, swapped"]
    assert slots["words"] == ["slot 0, job j, shared", "host slot 0, cached, pinned"]
    assert {kind: count for kind, count in windows["counts"].items() if count} == {"used": 2, "swapped": 1}


def test_blocks_alone_are_one_map() -> None:
    ((blocks,), (again,)) = shown([a_map([16, 17, 0, 1], 4, 0), a_map([16, 16, 16, 1], 4, 0)])
    assert blocks["words"][1] == "block 1, job k"
    assert again["words"] == ["block 0, job j", "block 1, job j", "block 2, job j", "block 3, cached"]
    assert (again["changed"], again["redraw"], again["extent"]) == ([1, 3], False, 4)
