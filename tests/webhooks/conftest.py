"""A gateway with webhooks that may go to this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from couriers import SECRET
from receivers import LOCAL, Receiver, receiving
from serving import serving
from two_tenants import ai as ai
from two_tenants import http as http
from two_tenants import other as other

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
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found
