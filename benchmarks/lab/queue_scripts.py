"""What the queue's scripts cost the server: microseconds a call, beside those of another version of the repository.

    python benchmarks/lab/queue_scripts.py [--before REVISION] [--rounds 10] [--out benchmarks/results/queue-scripts.json]

Jobs of four tenants go from enqueue to finish with a subscriber attached, on an embedded server. The time is the
server's own (`INFO commandstats`), without client and network. Both versions get the same calls and take turns, each in
every second round first; `--before` must know the same arguments. A figure is the mean of the middle half of all calls
of its kind: a call that was interrupted is not in it.
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
from datetime import UTC, datetime
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import redis

from octavo.queue.calls import Call
from octavo.queue.protocol import Append, Cell, Claim
from octavo.queue.wire import encode_result
from octavo.service.server import EmbeddedServer
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import Chunk, JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingParams
from octavo.terms.workers import ModelCard
from octavo_worker.bench.report import encode, write

MODEL, SUBSCRIBER, LEASE_MS = "bench", "reader", 60_000
CELL = Cell()
CHUNK = Chunk(token_ids=(7,), texts=(" seven",))
LIST_SOURCES = """
import json
from importlib.resources import files
from octavo.queue.scripts import script
names = [path.name for path in (files("octavo.queue") / "lua").iterdir() if path.name.endswith(".lua")]
print(json.dumps({name[:-4]: script(name[:-4]).source for name in names if name != "common.lua"}))
"""


class Scripts:
    """All scripts of one version, loaded into the server; times are collected under what was done with them."""

    def __init__(self, connection: redis.Redis, sources: dict[str, str]) -> None:
        self._redis = connection
        self._shas = {name: connection.script_load(source) for name, source in sources.items()}
        self.microseconds: dict[str, list[int]] = defaultdict(list)

    def run(self, label: str, calls: Iterable[Call[Any]]) -> list[Any]:
        """The calls in one pipeline, and their replies."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.info("commandstats")
        for call in calls:
            pipe.evalsha(self._shas[call.script], len(call.keys), *call.keys, *call.args)
            pipe.info("commandstats")
        replies = pipe.execute()
        spent = [stats.get("cmdstat_evalsha", {"usec": 0})["usec"] for stats in replies[::2]]
        self.microseconds[label] += [after - before for before, after in pairwise(spent)]
        return replies[1::2]


def sources_at(revision: str) -> dict[str, str]:
    """The scripts of a revision as its own loader builds them."""
    archive = subprocess.run(["git", "archive", revision, "shared"], check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as tree:
            tree.extractall(folder, filter="data")
        return sources_in(Path(folder))


def sources_in(checkout: Path) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "shared")}
    command = [sys.executable, "-c", LIST_SOURCES]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)


def enqueues(jobs: int) -> Iterator[Call[Any]]:
    for number in range(jobs):
        request = JobRequest(
            model=MODEL,
            prompt=tuple(range(200)),
            sampling=SamplingParams(max_tokens=100),
            priority=("high", "normal", "batch")[number % 3],
            timeout_s=600,
            metadata={"n": str(number)},
        )
        yield CELL.enqueue(
            CELL.keys.new_job_id(),
            request,
            seed=number,
            tenant=f"tenant-{number % 4}",
            idempotency_key=f"key-{number}" if number % 2 else None,
            limits=Limits(),
            retention=Retention(),
            subscriber_id=SUBSCRIBER,
        )


def claims(scripts: Scripts, label: str, calls: int, max_jobs: int) -> list[Claim]:
    asked = [
        CELL.claim(MODEL, "worker", max_jobs=max_jobs, max_tokens=1 << 20, lease_ms=LEASE_MS, idle=False)
        for _ in range(calls)
    ]
    replies = scripts.run(label, asked)
    return [job for call, reply in zip(asked, replies, strict=True) for job in call.parse(reply).jobs]


def appends(owned: list[Claim], rounds: Iterable[int], width: int) -> list[Call[Any]]:
    groups = [owned[at : at + width] for at in range(0, len(owned), width)]
    return [CELL.append([Append(job.job_id, job.token, n, CHUNK) for job in group]) for n in rounds for group in groups]


def scenario(scripts: Scripts, jobs: int) -> None:
    """One round: every transition of a job's life, each kind by itself."""
    card = ModelCard(name=MODEL, max_model_len=4096, vocab_size=256, has_tokenizer=True, created_at=time.time())
    scripts.run("register_model", [CELL.register_model(card)])
    scripts.run("enqueue", enqueues(jobs))
    owned = claims(scripts, "claim of 1", jobs // 4, 1) + claims(scripts, "claim of 8", jobs * 3 // 32, 8)
    scripts.run("claim of an empty queue", [
        CELL.claim(MODEL, "worker", max_jobs=8, max_tokens=1 << 20, lease_ms=LEASE_MS, idle=False) for _ in range(jobs)
    ])  # fmt: skip
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
    queued = list(enqueues(64))
    scripts.run("enqueue", queued)
    scripts.run("cancel", [CELL.cancel(str(call.args[0])) for call in queued])


def measure(versions: dict[str, dict[str, str]], rounds: int, jobs: int) -> dict[str, Any]:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as connection:
        scripts = {name: Scripts(connection, sources) for name, sources in versions.items()}
        with connection.pubsub() as reader:
            reader.subscribe(CELL.keys.channel(SUBSCRIBER))
            for number in range(rounds + 1):
                for name in sorted(scripts, reverse=number % 2 == 1):
                    connection.flushall()
                    scenario(scripts[name], jobs)
                    while reader.get_message():
                        pass
                    if number == 0:  # a warm-up
                        scripts[name].microseconds.clear()
        version = connection.info("server").get("valkey_version")
    times = {
        label: {name: middle(side.microseconds[label]) for name, side in scripts.items()}
        for label in next(iter(scripts.values())).microseconds
    }
    return {"server": f"valkey {version}", "microseconds_a_call": times}


def middle(times: list[int]) -> float:
    """The mean of the middle half."""
    quarter = len(times) // 4
    return round(statistics.mean(sorted(times)[quarter : len(times) - quarter]), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--before", metavar="REVISION", help="a revision of this repository to measure beside the checkout"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=256, help="jobs a round, a multiple of 64")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    versions = {"after": sources_in(Path.cwd())}
    if options.before:
        versions["before"] = sources_at(options.before)
    report = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": psutil.cpu_count(), "load": round(os.getloadavg()[0], 1)},
        "script_bytes": {
            name: {script: len(source) for script, source in sorted(sources.items())}
            for name, sources in versions.items()
        },
        **measure(versions, options.rounds, options.jobs),
    }
    print(encode(report))
    if options.out:
        write(report, options.out)


if __name__ == "__main__":
    main()
