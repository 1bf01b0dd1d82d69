"""Events on their way to receivers of every kind, while clerks and the server are killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from couriers import SECRET, secrets
from killable_server import killable_server
from receivers import Receiver, receiving
from standardwebhooks import Webhook
from waiting import STALL_S, until

from octavo.client.webhooks import WebhookClient
from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo.queue.protocol import Cell
from octavo.service.server import EmbeddedServer
from octavo.terms.errors import OctavoError
from octavo.terms.limits import Limits, Retention
from octavo.terms.messages import JobStatus, Terminal, Usage
from octavo.terms.models import JobRequest
from octavo.terms.workers import ModelCard

CELL, KEYS = Cell(), Keys()
TENANTS = ("acme", "zoo")
KINDS = ("200", "204", "500", "redirect", "410", "hang", "close", "lie", "garbage")
TAKEN = ("200", "204", "lie")
CALM_S = 600.0


@dataclass
class Soak:
    """The endpoints, the events that were noted, and what was found."""

    server: EmbeddedServer
    folder: Path
    chance: random.Random
    receiver: Receiver
    clerks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    endpoints: dict[str, tuple[str, str]] = field(default_factory=dict)  # tenant and path by id
    events: dict[str, str] = field(default_factory=dict)  # tenant by event
    owners: dict[str, str] = field(default_factory=dict)  # tenant by job

    def clerk(self, number: int) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name != "OCTAVO_FILES"} | {
            "OCTAVO_REDIS_URL": self.server.url,
            "OCTAVO_SECRET": SECRET,
            "OCTAVO_WEBHOOK_HTTP": "1",
            "OCTAVO_WEBHOOK_NETWORKS": "127.0.0.0/8",
        }
        with (self.folder / f"clerk{number}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "octavo.service.clerk"], env=environment, stderr=log)

    async def begin(self) -> None:
        async with WebhookClient(self.server.url) as client, connect(self.server.url) as connection:
            card = ModelCard(name="m", max_model_len=64, vocab_size=256, has_tokenizer=True, created_at=1.0)
            await run(connection, CELL.register_model(card))
            for tenant in TENANTS:
                for kind in KINDS:
                    path = f"/{kind}/{tenant}"
                    made = await client.create(tenant, kind, self.receiver.url(path), ["job.completed"])
                    self.endpoints[made] = (tenant, path)

    async def note(self, number: int) -> None:
        """A job that ends, whatever becomes of the server meanwhile."""
        tenant = TENANTS[number % len(TENANTS)]
        job_id = KEYS.new_job_id()
        self.owners[job_id] = tenant
        request = JobRequest(model="m", prompt="p", notify=True)
        enqueue = CELL.enqueue(
            job_id, request, seed=1, tenant=tenant, idempotency_key=None, limits=Limits(), retention=Retention()
        )
        async with WebhookClient(self.server.url) as client:
            await self._insist(client, enqueue)
            ended = await until(partial(self._end_one, client), CALM_S)
        self.events[f"evt_{ended}"] = self.owners[ended]  # another task may have submitted it

    async def _end_one(self, client: WebhookClient) -> str | None:
        """Ends a job that waits. None if there is none, or the lease of this one ran out meanwhile."""
        terminal = Terminal(status=JobStatus.COMPLETED, usage=Usage())
        claim = CELL.claim("m", "w", max_jobs=1, max_tokens=1 << 20, lease_ms=60_000, idle=True)
        for job in (await self._insist(client, claim)).jobs:
            finish = CELL.finish(job.job_id, job.token, terminal, wire.encode_result(terminal, []))
            if await self._insist(client, finish):
                return str(job.job_id)
        return None

    async def _insist(self, client: WebhookClient, call: Any) -> Any:
        while True:
            try:
                return await client.run(call)
            except OctavoError:
                await asyncio.sleep(0.1)

    async def disturb(self) -> None:
        what = self.chance.choice(("clerk", "clerk", "server"))
        self.kills[what] += 1
        if what == "clerk":
            number = self.chance.randrange(len(self.clerks))
            self.clerks[number].kill()
            self.clerks[number].wait()
            self.clerks[number] = self.clerk(number)
        else:
            self.server.kill()
            await asyncio.sleep(self.chance.uniform(0.0, 0.5))
            self.server.start()

    def waits_on(self) -> int:
        """Deliveries that every working receiver still has to get."""
        got = self._got()
        return sum(
            event not in got[path]
            for tenant, path in self.endpoints.values()
            if path.split("/")[1] in TAKEN
            for event, owner in self.events.items()
            if owner == tenant
        )

    async def is_settled(self) -> bool:
        """True if every working receiver has what it is to get, and the server knows. A clerk that is killed between
        the two leaves a delivery that another one repeats once its lease has run out."""
        if self.waits_on():
            return False
        working = [one for one, (_, path) in self.endpoints.items() if path.split("/")[1] in TAKEN]
        return not any([await self._known(endpoint) for endpoint in working])

    async def _known(self, endpoint: str) -> set[str]:
        """Events with a delivery to an endpoint that is not done."""
        async with WebhookClient(self.server.url) as client, connect(self.server.url) as connection:
            kept: Any = await connection.keys(client.keys.delivery(endpoint, "*"))
        return {name.decode().rpartition(":")[2] for name in kept}

    def _got(self) -> dict[str, Counter[str]]:
        got: dict[str, Counter[str]] = defaultdict(Counter)
        for one in self.receiver.received:
            got[one.path][one.headers["webhook-id"]] += 1
        return got

    async def faults(self) -> list[str]:
        """Lost: an event that is neither taken nor known. Twice: one that came under two ids."""
        found, got = [], self._got()
        for endpoint, (tenant, path) in self.endpoints.items():
            own = {event for event, owner in self.events.items() if owner == tenant}
            known = await self._known(endpoint)
            kind = path.split("/")[1]
            if kind == "410":
                continue  # switched off at its first answer: what ends later is not for it
            lost = own - set(got[path]) - known if kind in TAKEN else own - known
            if lost:
                found.append(f"{path}: {len(lost)} of {len(own)} lost")
            if kind in TAKEN and known:
                found.append(f"{path}: {len(known)} are taken and not done")
            if others := set(got[path]) - own:
                found.append(f"{path}: {len(others)} ids of no event")
        return found + self._bodies()

    def _bodies(self) -> list[str]:
        ids_of: dict[str, set[str]] = defaultdict(set)
        by_path = {path: endpoint for endpoint, (_, path) in self.endpoints.items()}
        wrong = 0
        for one in self.receiver.received:
            body = json.loads(one.body)
            ids_of[body["data"]["id"]].add(one.headers["webhook-id"])
            wrong += body["id"] != one.headers["webhook-id"]
            secret = secrets().current(by_path[one.path], 1)
            signed = Webhook(secret).sign(one.headers["webhook-id"], _time(one.headers), one.body.decode())
            wrong += signed not in one.headers["webhook-signature"].split(" ")
        twice = [of for of, ids in ids_of.items() if len(ids) > 1]
        return [f"{len(twice)} events under two ids"] * bool(twice) + [f"{wrong} messages are wrong"] * bool(wrong)


def _time(headers: dict[str, str]) -> Any:
    return datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)


async def soak(folder: Path, *, events: int, kill_every_s: float, kills: int, seed: int) -> list[str]:
    """The faults that were found, with so many kills at least."""
    with ExitStack() as stack:
        server = stack.enter_context(killable_server(folder))
        async with receiving() as receiver:
            run_ = Soak(server, folder, random.Random(seed), receiver)
            await run_.begin()
            stack.callback(lambda: [clerk.kill() for clerk in run_.clerks])
            run_.clerks += [run_.clerk(number) for number in range(2)]
            began = time.monotonic()
            noting = asyncio.create_task(_note_all(run_, events))
            while not noting.done() or sum(run_.kills.values()) < kills:
                await asyncio.sleep(kill_every_s)
                await run_.disturb()
            await noting
            print(f"{events} events, kills {dict(run_.kills)}, {time.monotonic() - began:.0f} s", flush=True)
            with suppress(TimeoutError):
                await until(run_.is_settled, CALM_S)
            for clerk in run_.clerks:  # what was answered is told
                clerk.terminate()
            await asyncio.to_thread(lambda: [clerk.wait(STALL_S) for clerk in run_.clerks])
            await asyncio.sleep(0.1)
            requests = Counter(one.path.split("/")[1] for one in receiver.received)
            print(f"requests by kind of receiver: {dict(requests)}", flush=True)
            return await run_.faults()


async def _note_all(run_: Soak, events: int) -> None:
    for start in range(0, events, 8):
        await asyncio.gather(*(run_.note(number) for number in range(start, min(start + 8, events))))
