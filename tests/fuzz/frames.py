"""Mutated frames through every decoder of the queue: only MalformedMessage may come of it, and nothing may stay behind.

    python tests/fuzz/frames.py [--frames 5000000] [--jobs N] [--seed N]

The frames are those that tests/shared/data has recorded. Exit code 1, with the frame in hexadecimal, if a decoder
raises something else, or if the process has grown.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import psutil

from octavo.queue import wire
from octavo.terms.errors import MalformedMessage

DATA = Path(__file__).parents[1] / "shared" / "data"
DECODERS = {name.removeprefix("decode_"): getattr(wire, name) for name in dir(wire) if name.startswith("decode_")}
TELLING = bytes.fromhex("00017f80818f90919fa0a1bfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d3d4d6d8d9dadbdcdddedfe0ff")
"""Bytes that msgpack gives a meaning of their own."""
MOST_GROWTH = 32 << 20

RUBBISH = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64 - 1, -(2**63), 1.5, math.nan, math.inf,
    "", "x", "\x00", "\ud7ff", b"", b"\xff",
    [], [[]], {}, {"": None}, [None] * 40,
)  # fmt: skip

Mutation = Callable[[random.Random, bytearray], object]


def recorded() -> list[tuple[str, bytes]]:
    """Kind and frame."""
    rows = [row for file in sorted(DATA.glob("frames-*.json")) for row in json.loads(file.read_text(encoding="utf-8"))]
    return [(kind, bytes.fromhex(frame)) for kind, frame, _ in rows]


def flip(chance: random.Random, frame: bytearray) -> None:
    frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)


def overwrite(chance: random.Random, frame: bytearray) -> None:
    frame[chance.randrange(len(frame))] = chance.choice(TELLING)


def insert(chance: random.Random, frame: bytearray) -> None:
    frame.insert(chance.randrange(len(frame) + 1), chance.choice(TELLING))


def drop(chance: random.Random, frame: bytearray) -> None:
    begin = chance.randrange(len(frame))
    del frame[begin : begin + chance.randrange(1, 9)]


def repeat(chance: random.Random, frame: bytearray) -> None:
    begin = chance.randrange(len(frame))
    frame[begin:begin] = frame[begin : begin + chance.randrange(1, 33)]


def truncate(chance: random.Random, frame: bytearray) -> None:
    del frame[chance.randrange(len(frame)) :]


MUTATIONS: tuple[Mutation, ...] = (flip, flip, overwrite, overwrite, insert, drop, repeat, truncate)


def altered(chance: random.Random, value: Any) -> Any:
    """A message with rubbish in one place."""
    if isinstance(value, (list, dict)) and value and chance.random() < 0.9:
        copy = value.copy()
        place = chance.choice(range(len(copy)) if isinstance(copy, list) else list(copy))
        if chance.random() < 0.1:
            del copy[place]
        else:
            copy[place] = altered(chance, copy[place])
        return copy
    return chance.choice(RUBBISH)


def mutated(chance: random.Random, frames: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    """A frame with rubbish in a field, or with other bytes, and the kind to read it as: mostly its own."""
    kind, original = chance.choice(frames)
    if chance.random() < 0.5:
        return kind, msgpack.packb(altered(chance, msgpack.unpackb(original, raw=kind == "live")))
    frame = bytearray(original)
    if chance.random() < 0.1:
        other = chance.choice(frames)[1]
        frame[chance.randrange(len(frame)) :] = other[chance.randrange(len(other)) :]
    for _ in range(chance.randint(1, 4)):
        if frame:
            chance.choice(MUTATIONS)(chance, frame)
    return (chance.choice(tuple(DECODERS)) if chance.random() < 0.05 else kind), bytes(frame)


def run(count: int, seed: int) -> tuple[Counter[str], int]:
    """Outcomes of `count` frames, and the bytes by which the process has grown since a tenth of them. Raises ValueError
    with the frame at fault."""
    chance, frames, outcomes = random.Random(seed), recorded(), Counter[str]()
    process, before = psutil.Process(), 0
    for number in range(count):
        if number == count // 10:
            before = process.memory_info().rss
        kind, frame = mutated(chance, frames)
        try:
            DECODERS[kind](frame)
            outcomes["read"] += 1
        except MalformedMessage:
            outcomes["malformed"] += 1
        except BaseException as error:
            raise ValueError(f"decode_{kind} of {frame.hex()}: {type(error).__name__}: {error}") from error
    return outcomes, process.memory_info().rss - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=5_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began, share = time.monotonic(), -(-options.frames // options.jobs)
    with ProcessPoolExecutor(options.jobs) as pool:
        try:
            parts = list(pool.map(run, [share] * options.jobs, range(options.seed, options.seed + options.jobs)))
        except ValueError as error:
            print(error)
            return 1
    outcomes = sum((counts for counts, _ in parts), Counter[str]())
    growth = max(grown for _, grown in parts)
    seconds = time.monotonic() - began
    print(f"{outcomes.total()} frames, {outcomes.total() / seconds:.0f} a second: {outcomes['malformed']} malformed, "
          f"{outcomes['read']} read; grown by {growth / 2**20:.1f} MiB")  # fmt: skip
    return int(growth > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
