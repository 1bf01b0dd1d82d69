"""What the queue's scripts cost the server: microseconds a call, beside those of another version of the repository.

    python benchmarks/lab/queue_scripts.py [--before REVISION|FOLDER] [--rounds 10] [--limits LIMITS] [--out FILE]

Jobs of four tenants go from enqueue to finish with a subscriber attached, on an embedded server. The time is that of
the CPU in the server's main thread, by the kernel's account, over all calls of a kind in one pipeline: what else runs on the
machine is in no figure, but for what it does to caches. Beside it are the commands that a call runs. Each version
has a process that imports that version, so its calls are those of its own `Cell`, whatever their arguments. Both take
turns, each in every second round first. A figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import redis

from octavo import JobRequest, JobStatus, Limits, Retention, SamplingParams
from octavo.queue.calls import Call
from octavo.queue.protocol import Append, Cell, ClassRoom
from octavo.queue.scripts import script
from octavo.queue.wire import encode_result
from octavo.service.server import EmbeddedServer
from octavo.terms.messages import Chunk, Terminal, Usage
from octavo.terms.workers import ModelCard
from octavo_worker.bench.report import encode, write

MODEL, SUBSCRIBER, LEASE_MS = "bench", "reader", 60_000
CELL = Cell()
DIGEST = "0123456789abcdef" * 4  # of what the worker serves
CHUNK = Chunk(token_ids=(7,), texts=(" seven",))


class Owned(NamedTuple):
    """A job, and the token of the claim that handed it out."""

    job_id: str
    token: str


class Scripts:
    """All scripts of this version, loaded into the server; times are collected under what was done with them."""

    def __init__(self, connection: redis.Redis, sources: dict[str, str]) -> None:
        self._redis = connection
        pid = connection.info("server")["process_id"]
        self._account = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self._shas = {name: connection.script_load(source) for name, source in sources.items()}
        self.figures: dict[str, tuple[float, float]] = {}

    def run(self, label: str, calls: Iterable[Call[Any]]) -> list[Any]:
        """The calls in one pipeline, and their replies. A label that was used already keeps its figures."""
        pipe = self._redis.pipeline(transaction=False)
        for call in calls:
            pipe.evalsha(self._shas[call.script], len(call.keys), *call.keys, *call.args)
        count = len(pipe)
        commands, spent = self._commands(), self._spent()
        replies = pipe.execute()
        spent, commands = self._spent() - spent, self._commands() - commands
        self.figures.setdefault(label, (spent / 1000 / count, commands / count))
        return replies

    def _spent(self) -> int:
        """Nanoseconds on a CPU."""
        return int(self._account.read_text().split()[0])

    def _commands(self) -> int:
        """Commands that scripts have run."""
        stats = self._redis.info("commandstats")
        own = ("cmdstat_evalsha", "cmdstat_info")
        return sum(of["calls"] for name, of in stats.items() if name not in own)


class Version:
    """A process that has imported a version of the repository, and runs rounds of it when it is asked."""

    def __init__(self, checkout: Path, url: str, jobs: int, limits: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", url, "--jobs", str(jobs), "--limits", limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(checkout / "shared")},
            text=True,
        )
        self.script_bytes: dict[str, int] = self._answer()

    def round(self) -> dict[str, tuple[float, float]]:
        """Microseconds and commands a call, by what was done."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(url: str, jobs: int, limits: str) -> None:
    """Be a `Version`: a round for each line, its times in one."""
    sources = {name: script(name).source for name in names()}
    print(json.dumps({name: len(source) for name, source in sorted(sources.items())}), flush=True)
    with redis.Redis.from_url(url) as connection:
        for _ in sys.stdin:
            for number in range(4 if limits else 0):
                connection.hset(f"{CELL.keys.prefix}:lim:tenant-{number}", "*", f" {limits}")
            scripts = Scripts(connection, sources)
            scenario(scripts, jobs)
            print(json.dumps(scripts.figures), flush=True)


def names() -> list[str]:
    return [path.name[:-4] for path in (files("octavo.queue") / "lua").iterdir() if path.name.endswith(".lua")]


def extracted(revision: str, folder: Path) -> Path:
    archive = subprocess.run(["git", "archive", revision, "shared"], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")
    return folder


def enqueues(ids: Iterable[str]) -> Iterator[Call[Any]]:
    for number, job_id in enumerate(ids):
        request = JobRequest(
            model=MODEL,
            prompt=tuple(range(200)),
            sampling=SamplingParams(max_tokens=100),
            priority=("high", "normal", "batch")[number % 3],
            timeout_s=600,
            metadata={"n": str(number)},
        )
        yield CELL.enqueue(
            job_id,
            request,
            seed=number,
            tenant=f"tenant-{number % 4}",
            idempotency_key=f"key-{number}" if number % 2 else None,
            limits=Limits(),
            retention=Retention(),
            subscriber_id=SUBSCRIBER,
        )


def claim_call(max_jobs: int) -> Call[Any]:
    """As a worker claims, with the same room for each class."""
    room = ClassRoom(max_jobs, 1 << 20)
    options: dict[str, Any] = {"max_jobs": room.jobs, "max_tokens": room.tokens, "rooms": (room,) * 3}
    return CELL.claim(MODEL, "worker", lease_ms=LEASE_MS, idle=False, digest=DIGEST, **options)


def claims(scripts: Scripts, label: str, calls: int, max_jobs: int) -> list[Owned]:
    """What was handed out. Of a reply only the rows, and in these the ids, are the same in all versions."""
    asked = [claim_call(max_jobs) for _ in range(calls)]
    replies = scripts.run(label, asked)
    rows = [(call, row) for call, reply in zip(asked, replies, strict=True) for row in reply if isinstance(row, list)]
    return [Owned(row[0].decode(), str(call.args[2])) for call, row in rows]


def appends(owned: list[Owned], rounds: Iterable[int], width: int) -> list[Call[Any]]:
    groups = [owned[at : at + width] for at in range(0, len(owned), width)]
    return [CELL.append([Append(job.job_id, job.token, n, CHUNK) for job in group]) for n in rounds for group in groups]


def scenario(scripts: Scripts, jobs: int) -> None:
    """One round: every transition of a job's life, each kind by itself."""
    card = ModelCard(name=MODEL, max_model_len=4096, vocab_size=256, has_tokenizer=True, created_at=time.time())
    scripts.run("register_model", [CELL.register_model(card)])
    scripts.run("enqueue", enqueues([CELL.keys.new_job_id() for _ in range(jobs)]))
    owned = claims(scripts, "claim of 1", jobs // 4, 1) + claims(scripts, "claim of 8", jobs * 3 // 32, 8)
    scripts.run("claim of an empty queue", [claim_call(8) for _ in range(jobs)])
    scripts.run("append to 1", appends(owned, [0], 1))
    scripts.run("append to 64", appends(owned, range(1, 9), 64))
    pairs = [(job.job_id, job.token) for job in owned]
    beats = [pairs[at : at + 64] for at in range(0, len(pairs), 64)] * 8
    scripts.run(
        "heartbeat of 64", [CELL.heartbeat("worker", beat, lease_ms=LEASE_MS, info=b"i" * 500) for beat in beats]
    )
    scripts.run("reap, nothing due", [CELL.reap() for _ in range(64)])
    scripts.run("attach", [CELL.attach(job_id, "other") for job_id, _ in pairs])
    scripts.run("detach", [CELL.detach(job_id, "other") for job_id, _ in pairs])
    scripts.run("release", [CELL.release([pair], why="back") for pair in pairs[:64]])
    owned = claims(scripts, "claim of 8 that come back", 8, 8) + owned[64:]
    terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage(completion_tokens=9))
    result = encode_result(terminal, [])
    ended = scripts.run("finish", [CELL.finish(job.job_id, job.token, terminal, result) for job in owned])
    assert all(reply[0] == b"ok" for reply in ended)
    ids = [CELL.keys.new_job_id() for _ in range(64)]
    scripts.run("enqueue", enqueues(ids))
    scripts.run("cancel", [CELL.cancel(job_id) for job_id in ids])


def measure(checkouts: dict[str, Path], rounds: int, jobs: int, limits: str) -> dict[str, Any]:
    figures: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        connection = stack.enter_context(redis.Redis.from_url(server.url))
        versions = {name: Version(checkout, server.url, jobs, limits) for name, checkout in checkouts.items()}
        for version in versions.values():
            stack.callback(version.close)
        reader = stack.enter_context(connection.pubsub())
        reader.subscribe(CELL.keys.channel(SUBSCRIBER))
        for number in range(rounds + 1):
            for name in sorted(versions, reverse=number % 2 == 1):
                connection.flushall()
                spent = versions[name].round()
                for label in spent if number else ():  # the first is a warm-up
                    figures[label][name].append(spent[label])
                while reader.get_message():
                    pass
        server_version = connection.info("server").get("valkey_version")
    return {
        "script_bytes": {name: version.script_bytes for name, version in versions.items()},
        "server": f"valkey {server_version}",
        "microseconds_a_call": medians(figures, 0),
        "commands_a_call": medians(figures, 1),
    }


def medians(figures: dict[str, dict[str, list[tuple[float, float]]]], which: int) -> dict[str, dict[str, float]]:
    return {
        label: {name: round(statistics.median(row[which] for row in rows), 2) for name, rows in sides.items()}
        for label, sides in figures.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--before", metavar="REVISION", help="a revision of this repository, or a checkout, to measure beside this one"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=256, help="jobs a round, a multiple of 64")
    parser.add_argument("--limits", default="", help="limits of every tenant, such as 'tokens_per_day=1000000000'")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.jobs, options.limits)
        return
    with tempfile.TemporaryDirectory() as folder:
        checkouts = {"after": Path.cwd()}
        if options.before:
            given = Path(options.before)
            checkouts["before"] = given if given.is_dir() else extracted(options.before, Path(folder))
        measured = measure(checkouts, options.rounds, options.jobs, options.limits)
    report = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": psutil.cpu_count(), "load": round(os.getloadavg()[0], 1)},
        **measured,
    }
    print(encode(report))
    if options.out:
        write(report, options.out)


if __name__ == "__main__":
    main()
