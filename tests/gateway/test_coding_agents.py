"""Coding agents of others, unmodified: a question, a call of their shell, its result, an answer."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import recorded
from coding_agents import AGENTS, MODEL, NODE, QUESTION, Agent
from front import Front
from gateway_process import GatewayProcess
from programs import run_program
from real_clients import PACKAGES
from waiting import until

pytestmark = [pytest.mark.node, pytest.mark.npm]

THOUGHT = "I look into the file. " * 20
ANSWER = "It names a heron."
LONG_PROMPTS = {"max_model_len": 1 << 17, "num_blocks": 1 << 14}

each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.id)


def calls_made(folder: Path) -> list[str]:
    return (folder / "work" / "calls.txt").read_text().splitlines()


@each_agent
async def test_a_turn_with_a_call(own_gateway, start_model, tmp_path, agent: Agent):
    start_model(MODEL, agent.call, reply=ANSWER, **LONG_PROMPTS)
    async with Front(own_gateway()) as front, agent.asking(front.url, tmp_path) as process:
        out, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert ANSWER in out.decode()
    assert calls_made(tmp_path) == ["read"]
    first, second = front.posted
    assert (first.answer.status_code, second.answer.status_code) == (200, 200)
    assert QUESTION in str(first.body)
    assert "a heron" in str(second.body)
    recorded.check(agent.id, first)
    recorded.check(f"{agent.id}-result", second)


@pytest.mark.full
@each_agent
async def test_a_turn_whose_gateway_is_killed(redis_url, start_model, tmp_path, agent: Agent):
    start_model(MODEL, THOUGHT + agent.call, reply=ANSWER, step_seconds=0.01, **LONG_PROMPTS)
    with GatewayProcess(redis_url, tmp_path / "1") as first, GatewayProcess(redis_url, tmp_path / "2") as second:
        urls = [await first.url(), await second.url()]
        async with Front(urls[0]) as front, agent.asking(front.url, tmp_path) as process:
            answering = asyncio.create_task(process.communicate())
            await until(lambda: front.passed > 2000 or answering.done())
            first.kill()
            front.gateway = urls[1]
            out, said = await answering
    assert process.returncode == 0, said.decode()
    assert ANSWER in out.decode()
    assert calls_made(tmp_path) == ["read"]
    broken, again, last = front.posted
    assert recorded.Recorded.of(again).fields | {"stream"} == recorded.Recorded.of(broken).fields
    assert "a heron" in str(last.body)


@pytest.mark.parametrize("agent", {agent.package: agent for agent in AGENTS}.values(), ids=lambda agent: agent.package)
async def test_the_program_is_the_one_that_is_pinned(agent: Agent, tmp_path):
    async with run_program(
        str(NODE / "node_modules" / ".bin" / agent.words[0]), "--version", HOME=str(tmp_path)
    ) as run:
        out, said = await run.communicate()
    assert PACKAGES[agent.package] in re.findall(r"\d+\.\d+\.\d+", (out + said).decode())
