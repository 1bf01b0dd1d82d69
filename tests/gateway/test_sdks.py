"""Helpers of Anthropic's and OpenAI's own packages: answers in types, tools that they run, a gateway that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import anthropic
import openai
import pydantic
import pytest
from front import Front
from gateway_process import GatewayProcess
from waiting import STALL_S, until

MODEL = "hermes"
ASKED = [{"role": "user", "content": "What is in note.txt?"}]
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "note.txt"}}\n</tool_call>'
BIRD = '{"name":"heron","legs":2}'
ANSWER = "It names a heron."


class Bird(pydantic.BaseModel):
    """A bird."""

    name: str
    legs: int


class Coin(pydantic.BaseModel):
    """A coin that was thrown."""

    side: Literal["heads", "tails"]


@pytest.fixture
async def claude(gateway_url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway_url, api_key="none", max_retries=0, timeout=STALL_S) as client:
        yield client


async def test_a_message_is_parsed(claude, start_model):
    start_model(MODEL, BIRD)
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": ASKED, "output_format": Bird}
    assert (await claude.messages.parse(**fields)).parsed_output == Bird(name="heron", legs=2)
    assert (await claude.beta.messages.parse(**fields)).parsed_output == Bird(name="heron", legs=2)
    async with claude.messages.stream(**fields) as stream:
        message = await stream.get_final_message()
    assert message.parsed_output == Bird(name="heron", legs=2)


async def test_a_type_is_a_grammar_and_no_wish(claude, start_model):
    start_model("qwen3_coder", "I would rather not.")  # has no thoughts, which come before an answer
    message = await claude.messages.parse(model="qwen3_coder", max_tokens=100, messages=ASKED, output_format=Coin)
    assert message.parsed_output.side in ("heads", "tails")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_runner_of_tools_answers(claude, start_model, stream):
    start_model(MODEL, CALL, reply=ANSWER)
    asked = []

    @anthropic.beta_async_tool
    async def read(path: str) -> str:
        """The content of a file.

        Args:
            path: its path
        """
        asked.append(path)
        return "a heron"

    runner = claude.beta.messages.tool_runner(
        model=MODEL, max_tokens=200, messages=ASKED, tools=[read], stream=stream, max_iterations=4
    )
    message = await runner.until_done()
    assert (message.content[0].text, message.stop_reason) == (ANSWER, "end_turn")
    assert asked == ["note.txt"]


async def ask_openai(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=STALL_S) as ai:
        reply = await ai.chat.completions.create(model=MODEL, messages=ASKED)
        return reply.choices[0].message.content


async def ask_openai_responses(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=STALL_S) as ai:
        return (await ai.responses.create(model=MODEL, input=ASKED)).output_text


async def ask_anthropic(url: str) -> str:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", timeout=STALL_S) as claude:
        return (await claude.messages.create(model=MODEL, max_tokens=200, messages=ASKED)).content[0].text


@pytest.mark.full(but=1)
@pytest.mark.parametrize("ask", [ask_openai, ask_openai_responses, ask_anthropic])
async def test_a_whole_answer_is_asked_for_again_after_a_kill(redis_url, start_model, tmp_path, ask):
    start_model(MODEL, ANSWER, step_seconds=0.1)
    with GatewayProcess(redis_url, tmp_path / "1") as first, GatewayProcess(redis_url, tmp_path / "2") as second:
        urls = [await first.url(), await second.url()]
        async with Front(urls[0]) as front:
            answering = asyncio.create_task(ask(front.url))
            await until(lambda: front.begun or answering.done())
            first.kill()
            front.gateway = urls[1]
            assert await answering == ANSWER
    assert (front.begun, len(front.sent)) == (2, 1)


async def stream_openai(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=STALL_S) as ai:
        async for _ in await ai.chat.completions.create(model=MODEL, messages=ASKED, stream=True):
            pass


async def stream_anthropic(url: str) -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key="none", timeout=STALL_S) as claude,
        claude.messages.stream(model=MODEL, max_tokens=200, messages=ASKED) as stream,
    ):
        await stream.get_final_message()


@pytest.mark.parametrize("ask", [stream_openai, stream_anthropic])
async def test_a_stream_that_breaks_off_is_an_error(redis_url, start_model, tmp_path, ask):
    start_model(MODEL, ANSWER * 20, step_seconds=0.01)
    with GatewayProcess(redis_url, tmp_path / "gateway.log") as gateway:
        async with Front(await gateway.url()) as front:
            answering = asyncio.create_task(ask(front.url))
            await until(lambda: front.passed > 1000 or answering.done())
            gateway.kill()
            with pytest.raises(Exception, match=r"peer closed connection|incomplete chunked read|Connection error"):
                await answering
    assert front.begun == 1
