"""Guests that mean harm, and schemathesis over the gateway's own description of its API.

    pip install 'octavo[fuzz]'
    python tests/fuzz/api.py [--examples 200] [--seed N] [--only hostile]

A real gateway over a real server; the model behind it is scripted, and ends every answer after four tokens.

The largest bodies of every route come first: none may keep `/livez` waiting for 50 ms of CPU time. A hundred guests of
each kind (pipelined requests, answers that are never read, heads and bodies without end) may leave 60 MiB behind at
most. Schemathesis follows: no answer may be a server's fault, nothing may grow. A job that expires is a 504, which is
the answer that its `timeout_s` asks for. Exit code 1 for anything else, or a traceback in the gateway's log.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from hostile import MOST_HELD_S, MOST_KEPT_BYTES, Target, bodies_hold, guests_cost
from largest_bodies import largest_bodies
from scripted_worker import ScriptedWorker
from waiting import until

from octavo.queue.protocol import Claim
from octavo.service.ports import free_port
from octavo.service.server import EmbeddedServer, die_with_parent
from octavo.terms.messages import Chunk, JobError, JobStatus, TokenLogprob
from octavo.terms.models import JobRequest

MOST_TOKENS = 4
MOST_GROWTH = 128 << 20
SHOWN = 12
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 504]
"""


class BriefWorker(ScriptedWorker):
    """One that takes any request that the gateway lets through."""

    async def _tokens(self, claim: Claim, chunks: list[Chunk]) -> JobStatus:
        sampling = claim.request.sampling
        most = MOST_TOKENS if sampling.max_tokens is None else min(sampling.max_tokens, MOST_TOKENS)
        request = claim.request.model_copy(update={"sampling": sampling.model_copy(update={"max_tokens": most})})
        return await super()._tokens(dataclasses.replace(claim, request=request), chunks)

    def _refusal(self, request: JobRequest, prompt: int) -> JobError | None:
        if prompt == 0:
            return JobError(code="empty_prompt", message="the prompt has no tokens", param="prompt")
        return super()._refusal(request, prompt)

    def _prompt_logprobs(self, request: JobRequest, prompt: list[bytes]) -> tuple[TokenLogprob, ...] | None:
        return super()._prompt_logprobs(request, prompt) if prompt else None


def gateway(redis_url: str, port: int, log: Path, *more: str) -> subprocess.Popen[bytes]:
    flags = [f"--redis-url={redis_url}", f"--port={port}", "--host=127.0.0.1", *more]
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "octavo_gateway", *flags],
            stdout=stderr,
            stderr=stderr,
            preexec_fn=die_with_parent(),
        )


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tool() -> str:
    beside = shutil.which("schemathesis", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if beside is None:
        sys.exit("schemathesis is not installed: pip install 'octavo[fuzz]'")
    return beside


async def hostile(folder: Path) -> int:
    """Guests that mean harm. The number of those that cost too much."""
    log, port, key = folder / "hostile.log", free_port(), "fuzz-key"
    with EmbeddedServer() as server:
        process = gateway(server.url, port, log, f"--api-keys=fuzz:{key}")
        target = Target(port, process.pid, server.url, key)
        try:
            async with BriefWorker(server.url):
                await until(lambda: answers(port))
                held = await bodies_hold(target, list(largest_bodies()))
                kept = await guests_cost(target)
        finally:
            process.terminate()
            process.wait()
    for one in held[:SHOWN]:
        print(f"held {1000 * one.seconds:6.1f} ms, status {one.status}: {one.body.path}, {one.body.name}")
    for guests in kept:
        sizes = f"{guests.most / 2**20:6.1f} MiB at most, {guests.stayed / 2**20:6.1f} MiB stay"
        print(f"{sizes}, /livez held {1000 * guests.held_s:.0f} ms: {guests.name}")
    tracebacks = log.read_text(errors="replace").count("Traceback")
    slow = [one for one in held if one.seconds >= MOST_HELD_S or one.status >= 500]
    large = [guests for guests in kept if guests.stayed > MOST_KEPT_BYTES]
    print(
        f"{len(held)} bodies, {len(slow)} too dear; {len(kept)} kinds, {len(large)} too large; {tracebacks} tracebacks"
    )
    return len(slow) + len(large) + tracebacks


async def run(options: argparse.Namespace, folder: Path) -> int:
    config, log, port = folder / "schemathesis.toml", folder / "gateway.log", free_port()
    config.write_text(CONFIG)
    command: list[Any] = [tool(), f"--config-file={config}", "run", f"http://127.0.0.1:{port}/openapi.json"]
    command += ["--checks=not_a_server_error", "--continue-on-failure", "--warnings=off", "--request-timeout=300"]
    command += [f"--max-examples={options.examples}", f"--seed={options.seed}", "--suppress-health-check=all"]
    with EmbeddedServer() as server:
        process = gateway(server.url, port, log)
        try:
            async with BriefWorker(server.url):
                await until(lambda: answers(port))
                before = psutil.Process(process.pid).memory_info().rss
                found = await (await asyncio.create_subprocess_exec(*command)).wait()
                growth = psutil.Process(process.pid).memory_info().rss - before
        finally:
            process.terminate()
            process.wait()
    tracebacks = log.read_text(errors="replace").count("Traceback")
    print(f"schemathesis: exit code {found}; gateway: {tracebacks} tracebacks, grown by {growth / 2**20:.1f} MiB")
    if tracebacks:
        print(log.read_text(errors="replace")[-4000:])
    return int(found != 0 or tracebacks > 0 or growth > MOST_GROWTH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200, help="test cases an operation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("hostile", "schemathesis"), help="one of the two parts")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="octavo-fuzz-") as folder:
        if options.only != "schemathesis":
            failed += asyncio.run(hostile(Path(folder)))
        if options.only != "hostile":
            failed += asyncio.run(run(options, Path(folder)))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
