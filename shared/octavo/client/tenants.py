"""Questions and changes of an operator about tenants: their limits, and what they have used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import redis.asyncio

from octavo.client.requests import checked_tenant
from octavo.queue.calls import Watch, run
from octavo.queue.keys import Keys
from octavo.queue.tenants.limits import Limited, Scope, TenantCell, limited_tenants, read_limits
from octavo.queue.tenants.usage import Row, UsageCell, read_usage, tenants_with_usage


class Tenants:
    """The part of `AsyncClient` that is about tenants. Every method raises ServerUnavailable when the server cannot be
    reached."""

    def __init__(
        self,
        connection: redis.asyncio.Redis,
        keys: Keys,
        watch: Watch | None,
        errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._redis = connection
        self._keys = keys
        self._limits = TenantCell(keys, watch)
        self._usage = UsageCell(keys, watch)
        self._errors = errors

    async def limited(self, *, after: str = "", count: int = 100) -> list[str]:
        """Tenants that ever had limits, by name, beyond `after`."""
        with self._errors():
            return await limited_tenants(self._redis, self._keys, after=after, count=count)

    async def limits(self, tenant: str) -> Limited:
        """All limits of a tenant, by scope."""
        with self._errors():
            return await read_limits(self._redis, self._keys, checked_tenant(tenant))

    async def limit(self, tenant: str, values: Mapping[str, int | None], scope: Scope | None = None) -> dict[str, int]:
        """Set limits in one scope, or take those away that are None. The limits of the scope now. Raises
        InvalidRequest."""
        call = self._limits.change(checked_tenant(tenant), values, scope)
        with self._errors():
            return await run(self._redis, call)

    async def with_usage(self, since: float) -> list[str]:
        """Tenants that used anything since a time in seconds, by name."""
        with self._errors():
            return await tenants_with_usage(self._redis, self._keys, since)

    async def usage(self, start: float, end: float, tenants: Sequence[str] | None = None) -> list[Row]:
        """The account between two times in seconds, as fine as it is kept; of all tenants unless some are named."""
        with self._errors():
            if tenants is None:
                tenants = await tenants_with_usage(self._redis, self._keys, start)
            return await read_usage(self._redis, self._usage, tenants, start, end)
