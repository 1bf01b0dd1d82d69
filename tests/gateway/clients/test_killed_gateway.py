"""Clients that ask again by themselves, and a gateway that is killed while it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from front import Front
from gateway_process import GatewayProcess
from waiting import until

pytestmark = pytest.mark.clients

MODEL = "hermes"
ASKED = "What will it be like?"
ANSWER = "Take a coat."


async def ask_langchain_openai(url: str) -> str:
    client = pytest.importorskip("langchain_openai").ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none")
    return (await client.ainvoke(ASKED)).text


async def ask_langchain_anthropic(url: str) -> str:
    client = pytest.importorskip("langchain_anthropic").ChatAnthropic(model=MODEL, base_url=url, api_key="none")
    return (await client.ainvoke(ASKED)).text


def litellm(provider: str, path: str) -> Callable[[str], Awaitable[str]]:
    async def ask_litellm(url: str) -> str:
        answer = await pytest.importorskip("litellm").acompletion(
            f"{provider}/{MODEL}",
            messages=[{"role": "user", "content": ASKED}],
            api_base=f"{url}{path}",
            api_key="none",
            num_retries=2,
        )
        return answer.choices[0].message.content

    ask_litellm.__name__ += f"_{provider}"
    return ask_litellm


@pytest.mark.full
@pytest.mark.parametrize(
    "ask",
    [ask_langchain_openai, ask_langchain_anthropic, litellm("openai", "/v1"), litellm("anthropic", "")],
    ids=lambda ask: ask.__name__,
)
async def test_a_whole_answer_is_asked_for_again(redis_url, start_model, tmp_path, ask):
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
