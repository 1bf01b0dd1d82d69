"""Answers by schemas and tools, over real workers, a gateway and the `openai` package, without and with kills.

    python tests/faults/structured_soak.py [--maskbench .../jsonschemabench/maskbench/data] [--schemas 1000]
    [--streams 300] [--kill-every 2] [--workers 3] [--out benchmarks/results/structured-faults.json]

First random schemas, and 200 of MaskBench's if its folder is given (github.com/guidance-ai/jsonschemabench), with free
requests between them: what ends by itself must be valid for `jsonschema`, a schema that is refused must be a 400 that
says where, and the free ones must say what they say without any grammar. Then streams that are bound to a schema or
call tools, undisturbed, and again while a worker is killed all the time: each must be valid, without gap or repeat, and
as undisturbed. The model of these is the bundled one with a template for tools. Exit code 1 for anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openai

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import structured_asks as asks
from gateway_process import GatewayProcess
from generated_schemas import drawn
from structured_asks import Answer, Ask, Unchecked, obeys, streamed
from tool_model import write_tool_model
from waiting import STALL_S
from worker_process import WorkerProcess

from octavo import AsyncClient
from octavo.service.server import EmbeddedServer
from octavo.terms.messages import JobStatus
from octavo_worker.bench.report import encode, report, write

IN_FLIGHT = 32
MASKBENCH = 200
MAX_TOKENS = 800
FLAGS = {"device": "cpu", "num_blocks": 2048, "max_running": 16, "threads": 1, "lease": 1.0}
OF_SCHEMAS = (
    "valid",
    "cut_by_length",
    "refused",
    "refused_as_a_whole",
    "unchecked",
    "invalid",
    "failed",
    "refused_otherwise",
)
OF_NEIGHBOURS = ("same", "different", "failed")
OF_KILLS = ("calls", "valid", "cut_by_length", "unchecked", "invalid", "different", "repeated", "lost")
FAULTS = ("invalid", "failed", "refused_otherwise", "different", "repeated", "lost")


@dataclass
class Service:
    """A server, a gateway, workers of one model."""

    url: str
    ai: openai.AsyncOpenAI
    client: AsyncClient
    start_worker: Callable[[], WorkerProcess]
    workers: list[WorkerProcess] = field(default_factory=list)


@asynccontextmanager
async def serving(folder: Path, model: str, workers: int) -> AsyncIterator[Service]:
    numbers = iter(range(1 << 20))
    with EmbeddedServer() as server, ExitStack() as stack:

        def start_worker() -> WorkerProcess:
            log = folder / f"worker{next(numbers)}.log"
            return stack.enter_context(WorkerProcess(server.url, log, model=model, **FLAGS))

        started = [start_worker() for _ in range(workers)]
        gateway = stack.enter_context(GatewayProcess(server.url, folder / "gateway.log"))
        url = f"{await gateway.url()}/v1"
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=STALL_S) as ai,
            AsyncClient(server.url) as client,
        ):
            for worker in started:
                await asyncio.to_thread(worker.wait_ready)
            yield Service(server.url, ai, client, start_worker, started)


async def answers(ai: openai.AsyncOpenAI, asked: list[Ask]) -> list[Answer | Exception]:
    """As many at once as the workers take."""
    turns = asyncio.Semaphore(IN_FLIGHT)

    async def one(ask: Ask) -> Answer | Exception:
        async with turns:
            try:
                return await streamed(ai, ask)
            except (openai.OpenAIError, AssertionError) as error:
                return error

    return await asyncio.gather(*map(one, asked))


def note(found: Counter[str], kind: str, detail: object) -> None:
    found[kind] += 1
    if kind in (*FAULTS, "unchecked", "refused_as_a_whole"):
        print(f"{kind}: {str(detail)[:1000]}", flush=True)


def check_form(found: Counter[str], answer: Answer, ask: Ask) -> None:
    """Checks the form of an answer that ended by itself."""
    if answer.finish_reason == "length":
        found["cut_by_length"] += 1
        return
    try:
        note(found, "valid" if obeys(answer, ask) else "invalid", (answer, ask))
    except Unchecked as error:
        note(found, "unchecked", (error, ask.schema))


def check_bound(found: Counter[str], answer: Answer | Exception, ask: Ask) -> None:
    if isinstance(answer, Answer):
        check_form(found, answer, ask)
    elif not isinstance(answer, openai.BadRequestError):
        note(found, "failed", (repr(answer), ask))
    elif answer.code not in ("invalid_grammar", "grammar_too_slow") or answer.param is None:
        note(found, "refused_otherwise", (answer.code, answer.param, answer.message, ask))
    else:
        note(found, "refused" if "(at #" in answer.message else "refused_as_a_whole", answer.message)


def between(bound: list[Ask], free: list[Ask]) -> list[tuple[str, int]]:
    """An order in which every few of the first are followed by one of the second."""
    every = max(1, len(bound) // len(free))
    order: list[tuple[str, int]] = []
    for number in range(len(bound)):
        order.append(("bound", number))
        if number % every == 0 and number // every < len(free):
            order.append(("free", number // every))
    return order


async def schemas(service: Service, sets: dict[str, list[Any]], model: str) -> list[dict[str, Any]]:
    """Rows of what became of each set of schemas, and of the free requests between them."""
    every = [(name, schema) for name, found in sets.items() for schema in found]
    bound = [
        asks.bound(
            number,
            schema,
            model,
            max_tokens=MAX_TOKENS,
            logit_bias=asks.early_ends(number) if name == "MaskBench" else {},
        )
        for number, (name, schema) in enumerate(every)
    ]
    free = [asks.free(number, model) for number in range(max(1, len(bound) // 4))]
    alone = await answers(service.ai, free)
    print(f"{len(free)} free requests ran alone", flush=True)
    order = between(bound, free)
    both = await answers(service.ai, [bound[at] if kind == "bound" else free[at] for kind, at in order])
    counts = {name: Counter[str]() for name in (*sets, "neighbours")}
    for (kind, at), answer in zip(order, both, strict=True):
        if kind == "bound":
            check_bound(counts[every[at][0]], answer, bound[at])
            continue
        before, found = alone[at], counts["neighbours"]
        if isinstance(answer, Exception) or isinstance(before, Exception):
            note(found, "failed", (before, answer))
        else:
            note(found, "same" if answer.said == before.said else "different", (before, answer))
    columns = dict.fromkeys(sets, OF_SCHEMAS) | {"neighbours": OF_NEIGHBOURS}
    return [
        {"part": name, "asked": found.total(), **{kind: found[kind] for kind in columns[name]}}
        for name, found in counts.items()
    ]


async def kill(service: Service, chance: random.Random, every_s: float, killed: list[int]) -> None:
    """One worker after the other, whether it serves already or not; the next one starts at once."""
    due = time.monotonic()
    while True:
        due += every_s
        await asyncio.sleep(due - time.monotonic())
        place = chance.randrange(len(service.workers))
        victim = service.workers[place]
        killed.append(victim.pid)
        victim.process.kill()
        victim.wait()
        service.workers[place] = service.start_worker()


async def check_log(service: Service, found: Counter[str], answer: Answer) -> int:
    """The job's stream, as it is stored. Gives the number of its takeovers."""
    info = await service.client.info(answer.job_id)
    if info.status is not JobStatus.COMPLETED:
        note(found, "lost", (info.status, answer))
    offset, resets = 0, 0
    async for event in service.client.events(answer.job_id):
        resets += event.reset
        if event.chunk is not None:
            offset += len(event.token_ids)
            if event.offset != offset or resets:
                note(found, "repeated", (answer.job_id, event))
                break
    return info.attempts - 1


async def kills(service: Service, streams: list[Ask], every_s: float, seed: int) -> dict[str, Any]:
    """A row of what became of streams while workers were killed."""
    undisturbed = await answers(service.ai, streams)
    print(f"{len(streams)} streams ran undisturbed", flush=True)
    found, killed, takeovers, began = Counter[str](), list[int](), list[int](), time.monotonic()
    killing = asyncio.create_task(kill(service, random.Random(seed), every_s, killed))
    disturbed = await answers(service.ai, streams)
    seconds = time.monotonic() - began
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    for ask, before, answer in zip(streams, undisturbed, disturbed, strict=True):
        if isinstance(before, Exception) or isinstance(answer, Exception):
            note(found, "lost", (repr(before), repr(answer), ask))
            continue
        takeovers.append(await check_log(service, found, answer))
        if answer.said != before.said:
            note(found, "different", (before, answer))
        if answer.counts != sorted(answer.counts):
            note(found, "repeated", answer)
        found["calls"] += len(answer.calls)
        check_form(found, answer, ask)
    return {
        "part": "kills",
        "streams": len(streams),
        "of_a_schema": sum(ask.schema is not None for ask in streams),
        "with_tools": sum(bool(ask.tools) for ask in streams),
        "kills": len(killed),
        "seconds": round(seconds, 1),
        "streams_taken_over": sum(count > 0 for count in takeovers),
        "takeovers": sum(takeovers),
        **{name: found[name] for name in OF_KILLS},
    }


async def main(options: argparse.Namespace, folder: Path) -> int:
    rows: list[dict[str, Any]] = []
    sets = {"random schemas": drawn(options.schemas)} if options.schemas else {}
    if options.maskbench is not None:
        sets["MaskBench"] = asks.maskbench(options.maskbench, MASKBENCH)
    if sets:
        async with serving(folder, "demo", options.workers) as service:
            rows += await schemas(service, sets, "demo")
    if options.streams:
        model = write_tool_model(folder / "demo-tools")
        async with serving(folder, str(model), options.workers) as service:
            streams = asks.long_streams(options.streams, model.name)
            rows.append(await kills(service, streams, options.kill_every, options.seed))
    with_versions = {name: version(name) for name in ("openai", "jsonschema", "llguidance")}
    document = report("structured-faults", rows, model="demo", workers=options.workers, checked_with=with_versions)
    print(encode(document))
    if options.out is not None:
        write(document, options.out)
    return int(any(row.get(fault) for row in rows for fault in FAULTS))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maskbench", type=Path)
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--kill-every", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ["OCTAVO_CHECK_INTEGRITY"] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with tempfile.TemporaryDirectory(prefix="octavo-structured-") as folder:
        sys.exit(asyncio.run(main(given, Path(folder))))
