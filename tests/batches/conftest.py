"""A gateway that keeps files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest
from serving import serving
from waiting import STALL_S

from octavo_gateway.settings import GatewaySettings

KEYS = "acme:k1,zoo:k2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def gateway(redis_url: str, folder: Path) -> Iterator[str]:
    """Its address; it keeps files in `folder`, for the tenants acme and zoo."""
    settings = GatewaySettings(
        redis_url=redis_url, files=str(folder), api_keys=KEYS, max_files_bytes_per_tenant=1_000_000, request_timeout=2.0
    )
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
