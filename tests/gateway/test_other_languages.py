"""The readers in docs/examples, which know no more than docs/wire.md says, get what the Python client gets."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_worker as fake
import pytest
import redis.asyncio
from killable_server import forgotten_by, killable_service
from programs import run_program
from scripted_worker import MODEL, ScriptedWorker, whole_text
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.client.handles import AsyncJob
from octavo.queue.calls import run
from octavo.queue.keys import Keys
from octavo.queue.protocol import Append, Cell
from octavo.queue.roles import ROLES
from octavo.service.server import EmbeddedServer
from octavo.terms.messages import Chunk, JobError, JobStatus, Terminal, Usage

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
FRAMES = json.loads((ROOT / "tests/shared/data/frames-0.1.json").read_text(encoding="utf-8"))
CELL = Cell()


@dataclass(frozen=True)
class Output:
    """Output of a reader: its events, and the rest."""

    code: int
    events: list[dict[str, Any]]
    said: str

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events for token in event.get("token_ids", ())]

    @property
    def text(self) -> str:
        return "".join(event.get("text", "") for event in self.events)

    @property
    def end(self) -> dict[str, Any]:
        return self.events[-1]


class Reading:
    """A reader that runs. `events` grows."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.events: list[dict[str, Any]] = []
        self._lines = asyncio.create_task(self._read())

    async def heard(self, tokens: int) -> None:
        await until(lambda: sum(len(event.get("token_ids", ())) for event in self.events) >= tokens)

    async def output(self) -> Output:
        said, _ = await asyncio.gather(self._process.stderr.read(), self._lines)
        return Output(await self._process.wait(), self.events, said.decode())

    async def _read(self) -> None:
        async for line in self._process.stdout:
            self.events.append(json.loads(line))


@dataclass(frozen=True)
class Example:
    """One of the programs."""

    command: tuple[str, ...]

    @asynccontextmanager
    async def running(self, *words: str, **environment: str) -> AsyncIterator[Reading]:
        async with run_program(*self.command, *words, **environment) as process:
            yield Reading(process)

    async def __call__(self, *words: str, **environment: str) -> Output:
        async with self.running(*words, **environment) as reading:
            return await reading.output()

    async def follow(self, url: str, job_id: str, after: int = 0) -> Output:
        return await self("follow", job_id, str(after), "--events", REDIS_URL=url)


@pytest.fixture(scope="module")
def go_reader(tmp_path_factory: pytest.TempPathFactory) -> str:
    program = str(tmp_path_factory.mktemp("go") / "reader")
    subprocess.run(["go", "build", "-o", program, "."], cwd=EXAMPLES / "go", check=True, timeout=STALL_S)
    return program


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("node", "go")])
def example(request: pytest.FixtureRequest) -> Example:
    if request.param == "node":
        return Example(("node", str(EXAMPLES / "node" / "main.mjs")))
    return Example((request.getfixturevalue("go_reader"),))


async def by_python(job: AsyncJob, after: int = 0) -> tuple[list[int], str, Terminal]:
    """Tokens, text and end of a job as the client tells them."""
    tokens: list[int] = []
    text = ""
    async for event in job.events(after=after):
        tokens += event.token_ids
        text += event.text
    assert event.end is not None
    return tokens, text, event.end


def assert_same(read: Output, expected: tuple[list[int], str, Terminal]) -> None:
    tokens, text, end = expected
    assert (read.tokens, read.text) == (tokens, text), read.said
    error = None if end.error is None else {name: getattr(end.error, name) for name in ("code", "message", "param")}
    usage = {name: getattr(end.usage, name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}
    assert {name: read.end[name] for name in ("status", "error", "usage")} == {
        "status": end.status.value,
        "error": error,
        "usage": usage,
    }
    assert read.code == (0 if end.status is JobStatus.COMPLETED else 1)


async def test_every_recorded_entry_and_result_is_read(example: Example) -> None:
    rows = [(kind, frame, value) for kind, frame, value in FRAMES if kind in ("entry", "result")]
    said = (await example("decode", *(frame for _, frame, _ in rows))).events
    assert len(said) == len(rows) > 8
    for (kind, _, value), got in zip(rows, said, strict=True):
        chunks = value[1] if kind == "result" else [value] if "index" in value else []
        assert got.get("chunks", [got["chunk"]] if "chunk" in got else []) == [as_read(chunk) for chunk in chunks]
        if end := value[0] if kind == "result" else value if "status" in value else None:
            assert {name: got["end"][name] for name in ("status", "error")} == {
                name: end[name] for name in ("status", "error")
            }
            assert got["end"]["usage"].items() <= end["usage"].items()


def as_read(value: Any) -> Any:
    """A recorded message with tokens' bytes as numbers, as the examples print them."""
    if isinstance(value, dict):
        named = {name: as_read(item) for name, item in value.items() if name != "token"}
        return named | {"bytes": [*bytes.fromhex(value["token"])]} if "token" in value else named
    return [as_read(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("frame", ["c1", "01", "9501a163", "9501a163dd00ffffff", "9402a16300910790", "92c70000"])
async def test_what_is_no_frame_is_refused(example: Example, frame: str) -> None:
    read = await example("decode", FRAMES[3][1], frame)
    assert read.code == 1
    assert len(read.events) == 1
    assert len(read.said.splitlines()) == 1, read.said


async def test_a_job_submitted_over_http_is_read_from_the_server(
    example: Example, gateway_url: str, redis_url: str
) -> None:
    request = {"model": MODEL, "prompt": "hello", "sampling": {"max_tokens": 20, "logprobs": 2}}
    async with ScriptedWorker(redis_url, pace=0.005), AsyncClient(redis_url) as client:
        read = await example("submit", json.dumps(request), "--events", OCTAVO_GATEWAY=gateway_url, REDIS_URL=redis_url)
        job = client.job(read.said.split()[0])
        assert_same(read, await by_python(job))
        assert read.text == whole_text(20)
        logprobs = (await job.result()).sequences[0].logprobs
    assert [one for event in read.events[:-1] for one in event["logprobs"]] == [
        {**printed(one), "top": [printed(other) for other in one.top]} for one in logprobs
    ]


def printed(one: Any) -> dict[str, Any]:
    return {"token_id": one.token_id, "bytes": [*one.token], "logprob": one.logprob}


async def test_the_text_comes_as_it_is_generated(example: Example, gateway_url: str, redis_url: str) -> None:
    request = json.dumps({"model": MODEL, "prompt": "hello", "sampling": {"max_tokens": 4}})
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        process = await asyncio.create_subprocess_exec(
            *example.command,
            *("submit", request),
            env=os.environ | {"OCTAVO_GATEWAY": gateway_url, "REDIS_URL": redis_url},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        first = await process.stdout.readexactly(len(whole_text(2)))
        worker.go.set()
        rest, said = await process.communicate()
    assert (first + rest).decode() == whole_text(4)
    assert json.loads(said.splitlines()[-1])["status"] == "completed"
    assert process.returncode == 0


async def test_a_request_that_is_refused_says_why(example: Example, own_gateway: Callable[..., str]) -> None:
    url = own_gateway(api_keys="acme:secret")
    request = json.dumps({"model": "none", "prompt": "hello"})
    assert "invalid_api_key" in (await example("submit", request, OCTAVO_GATEWAY=url, OCTAVO_API_KEY="wrong")).said
    read = await example("submit", request, OCTAVO_GATEWAY=url, OCTAVO_API_KEY="secret")
    assert "model_not_found" in read.said
    assert read.code == 1


@pytest.mark.parametrize("prompt", ["hello", "fail 0", "fail 10"])
async def test_every_offset_is_resumed(
    example: Example, redis_url: str, redis_async: redis.asyncio.Redis, prompt: str
) -> None:
    """Inside of entries, which hold five tokens, and of the result once the stream has expired."""
    async with fake.fake_worker(redis_async, step=5), AsyncClient(redis_url) as client:
        job = await client.submit(prompt, model=fake.MODEL, max_tokens=13, seed=3)
        end = await by_python(job)
        offsets = [after for after in (0, 3, 5, 9, 10, 13) if after <= len(end[0])]
        for after in offsets:
            assert_same(await example.follow(redis_url, job.id, after), await by_python(job, after))
        await redis_async.delete(Keys().stream(job.id))
        for after in offsets:
            read = await example.follow(redis_url, job.id, after)
            assert_same(read, await by_python(job, after))
            assert read.end["offset"] == len(end[0])


@pytest.mark.full(but=1)
async def test_jobs_without_an_owner_end_for_their_reader(
    example: Example, redis_url: str, redis_async: redis.asyncio.Redis
) -> None:
    await fake.register(redis_async)
    async with AsyncClient(redis_url) as client:
        job = await client.submit("hello", model=fake.MODEL)
        async with example.running("follow", job.id, "--events", REDIS_URL=redis_url) as reading:
            await until(lambda: blocked(redis_async))
            await job.cancel()
            assert_same(await reading.output(), await by_python(job))
    unknown = await example.follow(redis_url, Keys().new_job_id())
    assert "never existed or has expired" in unknown.said
    assert unknown.code == 1


async def blocked(connection: redis.asyncio.Redis) -> list[str]:
    """Connections of readers that wait for tokens."""
    return [client["id"] for client in await connection.client_list() if client["cmd"] == "xread"]


async def test_a_lost_connection_costs_no_token(
    example: Example, redis_url: str, redis_async: redis.asyncio.Redis
) -> None:
    async with ScriptedWorker(redis_url, hold_after=100) as worker, AsyncClient(redis_url) as client:
        job = await client.submit("hello", model=MODEL, max_tokens=120)
        async with example.running("follow", job.id, "--events", REDIS_URL=redis_url) as reading:
            killed = 0
            while killed < 4:
                await reading.heard(30 * killed)
                for one in await blocked(redis_async):
                    killed += await redis_async.client_kill_filter(_id=one)
            worker.go.set()
            assert_same(await reading.output(), await by_python(job))


async def test_a_user_that_may_only_read_is_enough(
    example: Example, redis_url: str, redis_async: redis.asyncio.Redis
) -> None:
    (rule,) = [role.rule for role in ROLES if role.name == "reader"]
    await redis_async.execute_command("ACL", "SETUSER", "test-reader", ">p@ss", *rule.split())
    try:
        async with fake.fake_worker(redis_async), AsyncClient(redis_url) as client:
            job = await client.submit("hello", model=fake.MODEL, max_tokens=9)
            read = await example.follow(redis_url.replace("//", "//test-reader:p%40ss@"), job.id)
            assert_same(read, await by_python(job))
            denied = await example.follow(redis_url.replace("//", "//test-reader:wrong@"), job.id)
            assert "WRONGPASS" in denied.said
            assert denied.code == 1
    finally:
        await redis_async.execute_command("ACL", "DELUSER", "test-reader")


@asynccontextmanager
async def restarted(folder: Path, **sampling: Any) -> AsyncIterator[tuple[EmbeddedServer, AsyncJob, Any, Any]]:
    """A server that can forget, a running job, its claim and a connection."""
    async with killable_service(folder) as (server, client, connection):
        job = await client.submit("hello", model=fake.MODEL, **sampling)
        yield server, job, await fake.claimed(connection), connection


async def append(connection: Any, claim: Any, start: int, *tokens: tuple[int, int]) -> None:
    """Entries of one token each, of (sequence, position)."""
    for at, (index, position) in enumerate(tokens, start):
        chunk = Chunk(index=index, token_ids=(100 * index + position,), texts=(f" {index}.{position}",))
        several = claim.request.sampling.n > 1
        (reply,) = await run(connection, CELL.append([Append(claim.job_id, claim.token, at, chunk, several)]))
        assert reply.state == "ok"


async def finish(connection: Any, claim: Any, count: int) -> None:
    end = Terminal(status=JobStatus.FAILED, usage=Usage(1, count), error=JobError(code="e", message="m"))
    assert await run(connection, CELL.finish(claim.job_id, claim.token, end, b""))


async def test_tokens_that_a_server_forgot_come_once(example: Example, tmp_path: Path) -> None:
    tokens = [(0, position) for position in range(8)]
    async with restarted(tmp_path) as (server, job, claim, connection):
        await append(connection, claim, 0, *tokens[:3])
        async with example.running("follow", job.id, "--events", REDIS_URL=server.url) as reading:
            with forgotten_by(server, tmp_path):
                await append(connection, claim, 3, *tokens[3:6])
                await reading.heard(6)
            await append(connection, claim, 3, *tokens[3:])
            await finish(connection, claim, 8)
            read = await reading.output()
        assert_same(read, await by_python(job))
        assert read.tokens == list(range(8))


async def test_an_end_before_the_offset_is_seen(example: Example, tmp_path: Path) -> None:
    async with restarted(tmp_path) as (server, job, claim, connection):
        await append(connection, claim, 0, (0, 0))
        async with example.running("follow", job.id, "--events", REDIS_URL=server.url) as reading:
            with forgotten_by(server, tmp_path):
                await append(connection, claim, 1, (0, 1), (0, 2))
                await reading.heard(3)
            await finish(connection, claim, 1)
            read = await reading.output()
    assert read.tokens == [0, 1, 2]
    assert (read.end["status"], read.end["offset"]) == ("failed", 1)


async def test_sequences_in_another_order_come_once(example: Example, tmp_path: Path) -> None:
    async with restarted(tmp_path, n=2) as (server, job, claim, connection):
        await append(connection, claim, 0, (0, 0))
        async with (
            example.running("follow", job.id, "--events", REDIS_URL=server.url) as reading,
            example.running("follow", job.id, "1", "--events", REDIS_URL=server.url) as resumed,
        ):
            with forgotten_by(server, tmp_path):
                await append(connection, claim, 1, (0, 1), (1, 0))
                await reading.heard(3)
                await resumed.heard(2)
            await run(connection, CELL.release([(job.id, claim.token)]))
            claim = await fake.claimed(connection)
            await append(connection, claim, 1, (1, 0), (1, 1), (0, 1), (0, 2))
            await finish(connection, claim, 5)
            read, again = await reading.output(), await resumed.output()
    assert read.tokens == [0, 1, 100, 101, 2]
    assert [event["offset"] for event in read.events[:-1]] == [1, 2, 3, 4, 5]
    assert again.tokens == [1, 100, 0, 100, 101, 1, 2]
    assert [event.get("reset", False) for event in again.events] == [False, False, True, *[False] * 6]


async def test_a_restart_that_loses_nothing_starts_no_reader_over(example: Example, tmp_path: Path) -> None:
    async with restarted(tmp_path, n=2) as (server, job, claim, connection):
        await append(connection, claim, 0, (0, 0), (1, 0))
        async with example.running("follow", job.id, "1", "--events", REDIS_URL=server.url) as resumed:
            await resumed.heard(1)
            server.kill()
            server.start()
            await append(connection, claim, 2, (1, 1), (0, 1))
            await finish(connection, claim, 4)
            again = await resumed.output()
    assert again.tokens == [100, 101, 1]
    assert not any(event.get("reset") for event in again.events)


@pytest.mark.go
def test_the_go_example_is_formatted_and_vetted() -> None:
    for command in (["gofmt", "-l", "."], ["go", "vet", "."]):
        done = subprocess.run(command, cwd=EXAMPLES / "go", capture_output=True, text=True, timeout=STALL_S, check=True)
        assert done.stdout == ""
