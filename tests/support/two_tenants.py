"""Clients of two tenants, by the keys k1 and k2. The fixture `gateway` is of the folder that imports them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from waiting import STALL_S


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
