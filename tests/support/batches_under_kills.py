"""Five batches of two tenants, and a fleet whose processes are killed while it runs them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import redis
from gateway_process import GatewayProcess
from killable_server import killable_server
from waiting import until
from worker_process import WorkerProcess

from octavo.service.server import EmbeddedServer, free_port

LEASE_S = 3.0
SPECIMENS = 40
TENANTS = {"acme": "k1", "zoo": "k2"}
WORKER = {"model": "demo", "device": "cpu", "num_blocks": 2048, "max_running": 24, "threads": 1, "lease": LEASE_S}
ENDED = ("completed", "failed", "expired", "cancelled")
CALM_S = 900.0
SCENE = " Enter the lords of England, one after the other.\n" * 6


def specimen(number: int) -> dict[str, Any]:
    """The body of a line: greedy or seeded, some with several prompts or sequences. Four scenes are shuffled, so that
    lines are not submitted as they are in the file."""
    kind = number % SPECIMENS
    prompt: Any = (
        f"SCENE {kind % 4}.{SCENE}KING RICHARD {kind}:\nWhat say you, my lord of {'abcdefgh'[kind % 8] * (kind % 23)}"
    )
    body = {"model": "demo", "max_tokens": 4 + kind % 13, "temperature": (0.0, 0.9)[kind % 2], "seed": kind}
    if kind % 10 == 3:
        return {**body, "prompt": [prompt, "QUEEN:"]}
    return {**body, "prompt": prompt, "n": 2 if kind % 10 == 7 else 1}


def comparable(answer: dict[str, Any]) -> Any:
    usage = answer["usage"]
    choices = [(choice["index"], choice["text"], choice["finish_reason"]) for choice in answer["choices"]]
    return sorted(choices), usage["prompt_tokens"], usage["completion_tokens"]


@dataclass
class Fleet:
    """All processes, each with a way to start it again."""

    server: EmbeddedServer
    folder: Path
    chance: random.Random
    stack: ExitStack
    ports: list[int] = field(default_factory=lambda: [free_port(), free_port()])
    workers: list[WorkerProcess] = field(default_factory=list)
    gateways: list[GatewayProcess] = field(default_factory=list)
    clerks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        for number in (0, 1):
            self.workers.append(self._worker(number))
            self.gateways.append(self._gateway(number))
            self.clerks.append(self._clerk(number))
        self.stack.callback(lambda: [clerk.kill() for clerk in self.clerks])

    def _worker(self, number: int) -> WorkerProcess:
        return self.stack.enter_context(WorkerProcess(self.server.url, self.folder / f"worker{number}.log", **WORKER))

    def _gateway(self, number: int) -> GatewayProcess:
        keys = ",".join(f"{tenant}:{key}" for tenant, key in TENANTS.items())
        flags = ["--files", str(self.folder / "files"), "--no-clerk", "--port", str(self.ports[number])]
        flags += ["--api-keys", keys]
        log = self.folder / f"gateway{number}.log"
        return self.stack.enter_context(GatewayProcess(self.server.url, log, *flags))

    def _clerk(self, number: int) -> subprocess.Popen[bytes]:
        environment = {
            "OCTAVO_REDIS_URL": self.server.url,
            "OCTAVO_FILES": str(self.folder / "files"),
            "OCTAVO_CLERK_LEASE": str(LEASE_S),
        }
        with (self.folder / f"clerk{number}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "octavo.service.clerk"], env=os.environ | environment, stderr=log
            )

    async def disturb(self) -> None:
        """One fault."""
        what = self.chance.choice(("worker", "gateway", "clerk", "clerk", "pause", "server"))
        number = self.chance.randrange(2)
        self.kills[what] += 1
        match what:
            case "worker":
                self.workers[number].process.kill()
                self.workers[number].process.wait()
                self.workers[number] = self._worker(number)
            case "gateway":
                self.gateways[number].kill()
                self.gateways[number] = self._gateway(number)
            case "clerk":
                self.clerks[number].kill()
                self.clerks[number].wait()
                self.clerks[number] = self._clerk(number)
            case "pause":  # beyond its lease: another clerk has its batches when it goes on
                clerk = self.clerks[number]
                clerk.send_signal(signal.SIGSTOP)
                asyncio.get_running_loop().call_later(LEASE_S + 2.0, clerk.send_signal, signal.SIGCONT)
            case "server":
                self.server.kill()
                await asyncio.sleep(self.chance.uniform(0.0, 0.5))
                self.server.start()


@dataclass
class Soak:
    """The batches, and what was found."""

    fleet: Fleet
    lines: int
    expected: dict[int, Any] = field(default_factory=dict)
    batches: dict[str, str] = field(default_factory=dict)  # tenant by batch
    names: dict[str, set[str]] = field(default_factory=dict)  # custom ids by batch
    faults: list[str] = field(default_factory=list)

    async def ask(self, tenant: str, ask: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
        """The answer of whichever gateway answers."""
        deadline = time.monotonic() + 120.0
        while True:
            port = self.fleet.chance.choice(self.fleet.ports)
            base_url = f"http://127.0.0.1:{port}/v1"
            async with openai.AsyncOpenAI(base_url=base_url, api_key=TENANTS[tenant], max_retries=0, timeout=30) as ai:
                try:
                    return await ask(ai)
                except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError):
                    if time.monotonic() > deadline:
                        raise
            await asyncio.sleep(0.3)

    async def learn(self) -> None:
        """The answers without faults."""
        for kind in range(SPECIMENS):
            body = specimen(kind)
            answer = await self.ask("acme", lambda ai, body=body: ai.completions.create(**body))
            self.expected[kind] = comparable(answer.model_dump())

    async def begin(self) -> None:
        share = self.lines // 5
        for number in range(5):
            tenant = list(TENANTS)[number % 2]
            places = range(number * share, (number + 1) * share)
            data = b"".join(self._line(place) for place in places)
            file = await self.ask(tenant, lambda ai, data=data: ai.files.create(file=("in", data), purpose="batch"))
            asked = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
            headers = {"Idempotency-Key": f"batch-{number}"}
            make = lambda ai, a=asked, h=headers: ai.batches.create(**a, extra_headers=h)  # noqa: E731
            batch = await self.ask(tenant, make)
            self.batches[batch.id] = tenant
            self.names[batch.id] = {f"c{place}" for place in places}

    def _line(self, place: int) -> bytes:
        line = {"custom_id": f"c{place}", "method": "POST", "url": "/v1/completions", "body": specimen(place)}
        return json.dumps(line).encode() + b"\n"

    async def state(self, batch_id: str) -> Any:
        return await self.ask(self.batches[batch_id], lambda ai: ai.batches.retrieve(batch_id))

    async def have_all_ended(self) -> bool:
        return all([(await self.state(batch)).status in ENDED for batch in self.batches])

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        while True:
            if await holds():
                return
            await asyncio.sleep(0.5)

    async def _has_begun(self, batch_id: str) -> bool:
        return bool((await self.state(batch_id)).request_counts.completed)

    async def end_two(self) -> None:
        """Cancel one batch, and let another one expire, once they are on their way."""
        *_, late, unwanted = self.batches
        for batch in (late, unwanted):
            await self.until(lambda batch=batch: self._has_begun(batch))
        await self.ask(self.batches[unwanted], lambda ai: ai.batches.cancel(unwanted))
        while True:
            with suppress(redis.RedisError), redis.Redis.from_url(self.fleet.server.url) as server:
                now = int(server.time()[0] * 1000)
                server.hset(f"{{c00}}:bt:{late}", "dl", now)
                for member in server.zrange(f"{{c00}}:bto:{late}", 0, -1):
                    job = member.decode().rpartition(" ")[2]
                    if server.hexists(f"{{c00}}:j:{job}", "st"):
                        server.hset(f"{{c00}}:j:{job}", "dl", now)
                        server.zadd("{c00}:D", {job: now})
                return
            await asyncio.sleep(0.3)

    async def check(self) -> None:
        answered: set[str] = set()
        for batch_id in self.batches:
            await self._check_batch(batch_id, answered)
        with redis.Redis.from_url(self.fleet.server.url) as server:
            ended = [fields for _, fields in server.xrange("{c00}:ev")]
            left = [name for kind in ("bto", "bte", "btp") for name in server.scan_iter(f"{{c00}}:{kind}:*")]
        completed = Counter(fields[b"id"].decode() for fields in ended if fields[b"st"] == b"completed")
        if again := [job for job, count in completed.items() if count > 1]:
            self.faults.append(f"{len(again)} jobs ended twice")
        wasted = len(completed) - SPECIMENS - sum(1 for kind in range(SPECIMENS) if kind % 10 == 3) - len(answered)
        print(f"{len(completed)} jobs completed, {len(answered)} lines have an answer", flush=True)
        if wasted > self._further_jobs():
            self.faults.append(f"{wasted} jobs completed beyond those that the files name")
        if left:
            self.faults.append(f"left behind: {left[:5]}")

    def _further_jobs(self) -> int:
        """Jobs of lines with two prompts, beside the one that names the line."""
        return sum(1 for names in self.names.values() for name in names if int(name[1:]) % SPECIMENS % 10 == 3)

    async def _check_batch(self, batch_id: str, answered: set[str]) -> None:
        batch, tenant = await self.state(batch_id), self.batches[batch_id]
        found: Counter[str] = Counter()
        used = Counter[str]()
        counts = Counter[str]()
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id is None:
                continue
            content = await self.ask(tenant, lambda ai, file_id=file_id: ai.files.content(file_id))
            for text in content.content.splitlines():
                line = json.loads(text)
                found[line["custom_id"]] += 1
                response = line["response"]
                if response is None:
                    counts["undone"] += 1
                elif response["status_code"] != 200:
                    counts["failed"] += 1
                    self.faults.append(f"{line['custom_id']}: {response['body']}")
                else:
                    counts["completed"] += 1
                    answered.add(response["request_id"])
                    used["in"] += response["body"]["usage"]["prompt_tokens"]
                    used["out"] += response["body"]["usage"]["completion_tokens"]
                    kind = int(line["custom_id"][1:]) % SPECIMENS
                    if comparable(response["body"]) != self.expected[kind]:
                        self.faults.append(f"{line['custom_id']} has another answer than undisturbed")
        print(f"{batch_id}: {batch.status}, {dict(counts)}", flush=True)
        self._compare(batch, found, counts, used)

    def _compare(self, batch: Any, found: Counter[str], counts: Counter[str], used: Counter[str]) -> None:
        if set(found) != self.names[batch.id] or any(count > 1 for count in found.values()):
            twice = [name for name, count in found.items() if count > 1]
            missing = self.names[batch.id] - set(found)
            self.faults.append(f"{batch.id}: {len(missing)} lines in no file, {len(twice)} in two places")
        told = batch.request_counts
        if (told.completed, told.failed) != (counts["completed"], counts["failed"]):
            self.faults.append(f"{batch.id}: counts {told} and not {counts}")
        if (batch.usage.input_tokens, batch.usage.output_tokens) != (used["in"], used["out"]):
            self.faults.append(f"{batch.id}: usage {batch.usage} and not {used}")


async def soak(folder: Path, *, lines: int, kills: int, seconds: float, seed: int) -> list[str]:
    """The faults that were found."""
    with ExitStack() as stack:
        server = stack.enter_context(killable_server(folder))
        fleet = Fleet(server, folder, random.Random(seed), stack)
        fleet.start()
        run = Soak(fleet, lines)
        await until(lambda: all("listening" in log.read_text() for log in folder.glob("gateway*.log")))
        while True:
            with suppress(openai.NotFoundError):  # until a worker has registered the model
                await run.learn()
                break
            await asyncio.sleep(0.5)
        await run.begin()
        ending = asyncio.create_task(run.end_two())
        began = time.monotonic()
        while sum(fleet.kills.values()) < kills or (
            time.monotonic() - began < seconds and not await run.have_all_ended()
        ):
            await asyncio.sleep(fleet.chance.uniform(2.0, 5.0))
            await fleet.disturb()
        print(f"faults: {dict(fleet.kills)}, {time.monotonic() - began:.0f} s", flush=True)
        await asyncio.wait_for(ending, CALM_S)
        async with asyncio.timeout(CALM_S):
            await run.until(run.have_all_ended)
        await run.check()
        return run.faults
