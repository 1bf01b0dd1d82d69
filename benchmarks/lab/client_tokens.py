"""What a streamed token costs the client, this checkout beside an earlier one, in turns.

    git worktree add ../before COMMIT && python benchmarks/lab/client_tokens.py --before ../before

Each turn is a process of its own that reads `--streams` streams at once through `AsyncClient.events`; a feeder plays
the worker and appends a token to each of them again and again. Beside it stand encoding and decoding one chunk of a
token. CPU seconds of the reading process, medians over the rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import timeit
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo_worker.bench.report import encode, write

ROOT = Path(__file__).parents[2]
MODEL = "bench"
SIDES = ("before", "after")


def main(
    before: Annotated[Path | None, typer.Option(help="Checkout to compare with.")] = None,
    streams: Annotated[int, typer.Option(help="Streams read at once, 64 at most.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens of each stream.")] = 300,
    rounds: Annotated[int, typer.Option(help="Turns of each checkout.")] = 7,
    out: Annotated[Path | None, typer.Option(help="JSON file to write; stdout always gets it too.")] = None,
    side: Annotated[bool, typer.Option("--side", hidden=True)] = False,
) -> None:
    """Measure and print JSON."""
    if side:
        print(json.dumps({**asyncio.run(read_streams(streams, tokens)), **time_chunk(), **time_import()}))
        return
    checkouts = {"before": before, "after": ROOT} if before is not None else {"after": ROOT}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for turn in range(rounds + 1):  # the first warms up
        for name, folder in checkouts.items():
            figures = one_turn(folder, streams, tokens)
            if turn:
                turns[name].append(figures)
    report = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "arch": platform.machine(), "python": platform.python_version()},
        "commits": {name: commit_of(folder) for name, folder in checkouts.items()},
        "streams": streams, "tokens": tokens, "rounds": rounds,
        **{name: summary(figures) for name, figures in turns.items()},
        "after_over_before": ratios(turns) if before is not None else None,
    }  # fmt: skip
    print(encode(report))
    if out is not None:
        write(report, out)


def one_turn(folder: Path, streams: int, tokens: int) -> dict[str, float]:
    """The figures of one process that imports octavo from `folder`."""
    command = [sys.executable, __file__, "--side", "--streams", str(streams), "--tokens", str(tokens)]
    environment = {**os.environ, "PYTHONPATH": str(folder.resolve() / "shared")}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def commit_of(folder: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


def summary(turns: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "median": round(statistics.median(turn[name] for turn in turns), 3),
            "least": round(min(turn[name] for turn in turns), 3),
            "most": round(max(turn[name] for turn in turns), 3),
        }
        for name in turns[0]
    }


def ratios(turns: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Medians over the rounds of what one turn took by what its neighbour took."""
    pairs = list(zip(turns["after"], turns["before"], strict=True))
    return {
        name: round(statistics.median(after[name] / before[name] for after, before in pairs), 3) for name in pairs[0][0]
    }


async def read_streams(streams: int, tokens: int) -> dict[str, float]:
    """CPU microseconds of this process per token that `events` yields."""
    from octavo import AsyncClient
    from octavo.service.server import EmbeddedServer

    with EmbeddedServer() as server:
        feeder = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name("token_feeder.py")), server.url, str(streams), str(tokens),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "shared")},
        )  # fmt: skip
        assert feeder.stdin is not None
        assert feeder.stdout is not None
        await feeder.stdout.readline()  # the model is known
        async with AsyncClient(server.url) as client:
            jobs = [await client.submit("x", model=MODEL, max_tokens=tokens) for _ in range(streams)]
            readers = [asyncio.create_task(count(job.events())) for job in jobs]
            await asyncio.sleep(0.5)  # all of them follow
            feeder.stdin.write(b"go\n")
            began = time.process_time()
            read = sum(await asyncio.gather(*readers))
            spent = time.process_time() - began
        await feeder.wait()
    assert read == streams * tokens
    return {"client_cpu_us_per_token": spent / read * 1e6}


async def count(events: Any) -> int:
    return sum([len(event.token_ids) async for event in events])


def time_chunk() -> dict[str, float]:
    """Microseconds, the least of several runs: interruptions only ever add."""
    from octavo.queue import wire
    from octavo.terms.messages import Chunk

    chunk = Chunk(index=0, token_ids=(1234,), texts=(" hello",))
    frame = wire.encode_chunk(chunk)
    return {
        "decode_chunk_us": least(lambda: wire.decode_entry(frame)),
        "encode_chunk_us": least(lambda: wire.encode_chunk(chunk)),
    }


def least(work: Any, number: int = 5000) -> float:
    return min(timeit.repeat(work, number=number, repeat=9)) / number * 1e6


def time_import() -> dict[str, float]:
    """CPU milliseconds until a process has a client to submit with, the least of several."""
    code = "import time; from octavo import Client; print(time.process_time() * 1e3)"
    runs = [
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True) for _ in range(5)
    ]
    return {"import_cpu_ms": min(float(run.stdout) for run in runs)}


if __name__ == "__main__":
    typer.run(main)
