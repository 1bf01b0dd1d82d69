"""A gateway with webhooks that may go to this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest
from couriers import SECRET
from receivers import LOCAL, Receiver, receiving
from serving import serving
from waiting import STALL_S

from octavo_gateway.settings import GatewaySettings


@pytest.fixture
def gateway(redis_url: str, tmp_path: Path) -> Iterator[str]:
    """Its address; it has the tenants acme and zoo."""
    settings = GatewaySettings(
        redis_url=redis_url, files=str(tmp_path / "files"), api_keys="acme:k1,zoo:k2", secret=SECRET,
        webhook_http=True, webhook_networks=LOCAL, operators=("acme",),
    )  # fmt: skip
    with serving(settings) as url:
        yield url


@pytest.fixture
async def http(gateway: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": "Bearer k1"}
    async with httpx.AsyncClient(base_url=gateway, timeout=STALL_S, headers=headers) as client:
        yield client


@pytest.fixture
async def ai(gateway: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway}/v1", api_key="k1", max_retries=0, timeout=STALL_S) as client:
        yield client


@pytest.fixture
async def other(gateway: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """Another tenant."""
    async with openai.AsyncOpenAI(base_url=f"{gateway}/v1", api_key="k2", max_retries=0, timeout=STALL_S) as client:
        yield client


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found
