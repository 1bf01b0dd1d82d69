"""Clients and conformance tests of others, in Node: the AI SDK's chat, the client and the tests of Durable Streams."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from durable_writer import MODEL as WRITTEN
from durable_writer import DurableWriter
from fake_worker import register
from gateway_process import GatewayProcess
from programs import run_program
from scripted_worker import MODEL, ScriptedWorker, whole_text
from waiting import STALL_S, until

from octavo import AsyncClient

pytestmark = [pytest.mark.node, pytest.mark.npm]

NODE = Path(__file__).parents[1] / "support" / "node"
TOKENS = 300

# What the suite asks of readers. The rest writes (idempotent producers, forks, lifetimes, subscriptions), or is about
# content types that logs do not have.
READING = (
    "Read Operations",
    "Long-Poll Operations",
    "HTTP Protocol should (return correct headers on GET|return empty body with up-to-date|read from offset)",
    "Browser Security Headers .* (GET|HEAD|SSE|long-poll|error) ",
    "HEAD Metadata should",
    "Offset Validation and Resumability",
    "Protocol Edge Cases should (preserve data immutability|generate unique|reject .* offset|ignore unknown)",
    "Long-Poll Edge Cases",
    "Caching and ETag should (?!allow)",
    "Read-Your-Writes Consistency",
    "SSE Mode (?!.*(base64|[Bb]inary|text/plain|CRLF))",
    "JSON Mode should (wrap|concatenate|handle various|preserve|work with client)",
    ".* Offset Validation Properties",
    "Stream Closure (HEAD with|Read Closed|Long-poll with|SSE with)",
)


def run_node(*words: str, **environment: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """A program that lies beside its packages."""
    return run_program(*words, folder=NODE, **environment)


async def test_use_chat_resumes_at_another_gateway(redis_url, tmp_path):
    async with ScriptedWorker(redis_url, pace=0.003) as worker:
        with GatewayProcess(redis_url, tmp_path / "1") as first, GatewayProcess(redis_url, tmp_path / "2") as second:
            urls = [await first.url(), await second.url()]
            async with run_node("node", "chat.mjs", *urls, MODEL, str(TOKENS)) as process:
                steps: list[dict[str, Any]] = []
                async for line in process.stdout:
                    steps.append(json.loads(line))
                    if steps[-1]["step"] == "streaming":
                        first.kill()
                said = (await process.stderr.read()).decode()
                assert await process.wait() == 0, said
        assert len(worker.seen) == 1
    _, broken, *resumed, nothing = steps
    assert broken["status"] == "error"
    assert 100 < len(broken["text"]) < len(whole_text(TOKENS))
    assert whole_text(TOKENS).startswith(broken["text"])
    assert len(resumed) == 2  # the same page, and one that was loaded again
    for step in resumed:
        assert (step["status"], step["text"]) == ("ready", whole_text(TOKENS))
        assert len(step["answers"]) == 1
    assert (nothing["status"], nothing["added"]) == ("ready", 0)


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_the_client_of_durable_streams_follows_a_log(http, redis_url, live):
    async with ScriptedWorker(redis_url, hold_after=5) as worker:
        job = {"model": MODEL, "prompt": "hello", "sampling": {"max_tokens": 40}}
        path = (await http.post("/v1/jobs", json=job)).json()["links"]["log"]
        async with run_node("node", "log.mjs", f"{http.base_url}{path}".replace("//v1", "/v1"), live) as process:
            reading = asyncio.create_task(process.communicate())
            await until(lambda: worker.seen)
            worker.go.set()
            out, said = await reading
            assert process.returncode == 0, said.decode()
        read = json.loads(out)
        assert read["messages"] == (await http.get(path)).json()
        assert (read["closed"], read["offset"]) == (True, "000000000040_1")


@asynccontextmanager
async def serving_writes(gateway: str, redis_url: str, connection: Any) -> AsyncIterator[str]:
    async with AsyncClient(redis_url) as client:
        writer = DurableWriter(gateway, client, connection)
        server = uvicorn.Server(uvicorn.Config(writer.app, port=0, log_config=None, timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve())
        try:
            await until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await serving


@pytest.mark.full
async def test_the_public_conformance_tests_pass_where_they_read(own_gateway, redis_url, redis_async):
    await register(redis_async, WRITTEN)
    url = own_gateway(keep_alive=3.0)
    async with serving_writes(url, redis_url, redis_async) as base:
        names = f"^(?:{'|'.join(READING)})"
        command = ("node", "node_modules/vitest/vitest.mjs", "run", "conformance.test.mjs", "--reporter=json")
        async with run_node(*command, "-t", names, CONFORMANCE_URL=base, NO_COLOR="1") as process:
            out, said = await process.communicate()
    report = json.loads(re.search(rb"\{.*\}", out, flags=re.DOTALL)[0])
    results = [test for file in report["testResults"] for test in file["assertionResults"]]
    failed = {test["fullName"]: test["failureMessages"] for test in results if test["status"] == "failed"}
    assert not failed, said.decode()
    passed = [test["fullName"] for test in results if test["status"] == "passed"]
    assert len(passed) >= 80, passed
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        assert len((await http.get("/v1/jobs", params={"limit": 1000})).json()["data"]) >= 80
