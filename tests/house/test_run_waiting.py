"""`octavo run` says what it waits for, on stderr, and its answer is on stdout as ever."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager

import fake_worker
import pytest
import redis.asyncio
from programs import run_program
from scripted_worker import MODEL, ScriptedWorker, whole_text
from waiting import until

from octavo.cli import waiting as waiting_words
from octavo.cli.waiting import Waiting
from octavo.client.asynchronous import AsyncClient


def octavo_run(redis_url: str, *words: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    command = "from octavo.cli import main; main()"
    return run_program(sys.executable, "-c", command, "run", "x", "-m", MODEL, "--redis-url", redis_url, *words)


@pytest.mark.parametrize("words", [(), ("--json",)])
async def test_a_model_without_a_worker_is_no_silence(
    redis_url: str, redis_async: redis.asyncio.Redis, words: tuple[str, ...]
) -> None:
    await fake_worker.register(redis_async, MODEL)
    async with octavo_run(redis_url, "--max-tokens", "3", *words) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        line = (await process.stderr.readline()).decode()
        assert line.startswith(f"waiting: no worker of the model {MODEL} is alive, 1 job in its queue")
        async with ScriptedWorker(redis_url):
            out = (await process.stdout.read()).decode()
            assert await process.wait() == 0
    assert out == f"{whole_text(3)}\n" if not words else whole_text(3) in out


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_words, "SILENT_S", 0.05)


async def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The next words on stderr."""
    return await until(lambda: capsys.readouterr().err)


@pytest.mark.usefixtures("quick")
async def test_each_reason_is_told_once_and_again_after_a_word(
    redis_url: str, redis_async: redis.asyncio.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    await fake_worker.register(redis_async, MODEL)
    async with AsyncClient(redis_url) as client:
        job, other = [await client.submit("x", model=MODEL, max_tokens=2) for _ in range(2)]
        async with Waiting(client, job) as waiting:
            assert "no worker of the model toy is alive, 2 jobs in its queue" in await told(capsys)
            await asyncio.sleep(0.3)
            assert capsys.readouterr().err == ""
            await client.cancel(other.id)
            waiting.heard()
            assert "1 job in its queue" in await told(capsys)
            async with ScriptedWorker(redis_url, hold_after=0) as worker:
                assert "a worker has the job, and no token yet" in await told(capsys)
                worker.go.set()
                await job.result()


@pytest.mark.usefixtures("quick")
async def test_a_job_that_waits_behind_others_says_how_many(
    redis_url: str, redis_async: redis.asyncio.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    await fake_worker.register(redis_async, MODEL)
    await fake_worker.beat(redis_async)
    async with AsyncClient(redis_url) as client:
        jobs = [await client.submit("x", model=MODEL) for _ in range(3)]
        async with Waiting(client, jobs[2]):
            assert "3 jobs in the queue of toy, 1 worker" in await told(capsys)
