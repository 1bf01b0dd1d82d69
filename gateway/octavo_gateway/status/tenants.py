"""Metrics by tenant: what the account of usage has of the last hour, read once a minute however often it is scraped."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric as Family

from octavo import AsyncClient
from octavo.queue.tenants.usage import HOUR_S, Sums, grouped
from octavo.service.metrics.registry import family
from octavo.terms.metrics.tenants import FAILURES, MOST_TENANTS, OTHER, REQUESTS, TOKENS

_KEPT_S = 60.0
_AT_ONCE = 64  # tenants


class TenantFigures:
    """Sums of all tenants, as they were read last. With ten thousand of them a read takes the server half a second,
    in short calls."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._reading = asyncio.Lock()
        self._read_at = -math.inf
        self._kept: list[Family] = []

    async def families(self) -> list[Family]:
        """Figures of the largest tenants. Raises ServerUnavailable."""
        async with self._reading:
            if time.monotonic() - self._read_at >= _KEPT_S:
                self._kept = list(_families(largest(await self._read(time.time()))))
                self._read_at = time.monotonic()
            return self._kept

    async def _read(self, now: float) -> dict[str, Sums]:
        """Sums by tenant; the rows of some at a time are in memory."""
        sums: dict[str, Sums] = {}
        names = await self._client.tenants.with_usage(now - HOUR_S)
        for at in range(0, len(names), _AT_ONCE):
            rows = await self._client.tenants.usage(now - HOUR_S, now, names[at : at + _AT_ONCE])
            sums |= grouped(rows, lambda row: row.tenant)
        return sums


def largest(sums: Mapping[str, Sums]) -> dict[str, Sums]:
    """The tenants with most tokens, and the sum of all others."""
    by_size = sorted(sums, key=lambda tenant: (-sums[tenant].input_tokens - sums[tenant].output_tokens, tenant))
    found = {tenant: sums[tenant] for tenant in by_size[:MOST_TENANTS]}
    for tenant in by_size[MOST_TENANTS:]:
        found[OTHER] = found.get(OTHER, Sums()) + sums[tenant]
    return found


def _families(sums: Mapping[str, Sums]) -> Iterable[Family]:
    tokens: Counter[tuple[str, ...]] = Counter()
    for tenant, of in sums.items():
        tokens[tenant, "input"] = of.input_tokens
        tokens[tenant, "cached"] = of.cached_tokens
        tokens[tenant, "output"] = of.output_tokens
    yield family(TOKENS, tokens)
    yield family(REQUESTS, {(tenant,): of.requests for tenant, of in sums.items()})
    yield family(FAILURES, {(tenant,): of.failures for tenant, of in sums.items()})
