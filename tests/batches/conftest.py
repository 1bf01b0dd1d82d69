"""A gateway that keeps files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import serving
from two_tenants import ai as ai
from two_tenants import http as http
from two_tenants import other as other

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
